"""Cost of lowering against the number of layers: scanned (flat) and unrolled (linear).

Must reach: lowering + raising of 80 scanned layers < 2 s; 32 unrolled layers < 30 s, rolled back to
one scan. Saves the figures and a plot (matplotlib). Run: python benchmarks/layer_count.py
"""

from __future__ import annotations

import time
from typing import Any

import common
import jax
import jax.numpy as jnp
import plain_llama

import tkcc
from tkcc.ir.passes.roll import roll

SCANNED = (2, 4, 8, 16, 32, 64, 80, 128)
UNROLLED = (2, 4, 8, 16, 32, 64, 128)


def arguments(shape: plain_llama.Shape, stacked: bool) -> tuple[Any, ...]:
    held = plain_llama.parameters(shape, stacked=stacked, abstract=True)
    state = plain_llama.caches(shape, 1, stacked=stacked, abstract=True)
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    position = jax.ShapeDtypeStruct((), jnp.int32)
    return (held, tokens, position, *(state if stacked else (state,)))


def scanned(layers: int) -> dict[str, Any]:
    shape = plain_llama.Shape(layers)
    step = plain_llama.scanned(shape)
    began = time.perf_counter()
    module = tkcc.lower(step, *arguments(shape, True), parameters=["p"], state=["k", "v"])
    return {
        "layers": layers,
        "seconds": time.perf_counter() - began,
        "ops": module.function().size(),
    }


def unrolled(layers: int) -> dict[str, Any]:
    shape = plain_llama.Shape(layers)
    step = plain_llama.unrolled(shape)
    began = time.perf_counter()
    module = tkcc.lower(step, *arguments(shape, False), parameters=["p"], state=["caches"])
    lowered = time.perf_counter() - began
    rolled = roll(module)
    scans = [node for node in rolled.function().nodes if node.op == "scan"]
    return {
        "layers": layers,
        "seconds": lowered,
        "ops": module.function().size(),
        "roll_seconds": time.perf_counter() - began - lowered,
        "rolled_ops": rolled.function().size(),
        "scans": [int(node.attribute("length")) for node in scans],
    }


def plot(figures: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(figsize=(6, 4))
    for name, marker in (("scanned", "o"), ("unrolled", "s")):
        rows = figures[name]
        x = [row["layers"] for row in rows]
        y = [row["seconds"] + row.get("roll_seconds", 0.0) for row in rows]
        axes.loglog(
            x, y, marker=marker, label=f"{name}: lower + raise" + " + roll" * (marker == "s")
        )
    axes.set_xlabel("layers")
    axes.set_ylabel("seconds")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    canvas.tight_layout()
    canvas.savefig(common.RESULTS / "layer_count.svg")


def main() -> None:
    scanned(2)  # JAX's own first-use costs
    figures = {
        "scanned": [scanned(layers) for layers in SCANNED],
        "unrolled": [unrolled(layers) for layers in UNROLLED],
    }
    common.save("layer_count", figures)
    plot(figures)


if __name__ == "__main__":
    main()
