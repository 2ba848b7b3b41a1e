"""A module of 10,000 equations: import, raise and fuse to a fixed point, print and parse.

Must reach: import < 5 s beyond JAX's own tracing, raise + fuse < 10 s, print + parse < 5 s.
Run: python benchmarks/large_modules.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import common
import jax
import jax.numpy as jnp

import tkcc
from tkcc.ir.passes.recognise import recognise
from tkcc.ir.rewrite.driver import Log, rewrite
from tkcc.ir.rewrite.rule import all_rules, node_rules
from tkcc.ir.text import parse_module, print_module

EQUATIONS, REPEATS = 10_000, 3
FUSE = (
    "merge_linears",
    "merge_qkv",
    "residual_norm",
    "group_norm_linear",
    "group_mlp",
    "group_elementwise",
)


def block(x: Any, w: Any) -> Any:
    """About 30 equations: a norm, a gated unit, a softmax, elementwise arithmetic."""
    h = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * w["norm"]
    gate, up = h @ w["gate"], h @ w["up"]
    x = x + (jax.nn.silu(gate) * up) @ w["down"]
    return jnp.tanh(x * 1.5 + jax.nn.softmax(x, axis=-1)) + x


def program(blocks: int) -> Callable[..., Any]:
    def run(x: Any, ws: list[Any]) -> Any:
        for i in range(blocks):
            x = block(x, ws[i % len(ws)])
        return x

    return run


def weights() -> list[Any]:
    one = {"norm": (16,), "gate": (16, 32), "up": (16, 32), "down": (32, 16)}
    return [{k: jax.ShapeDtypeStruct(v, jnp.float32) for k, v in one.items()} for _ in range(64)]


def count(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr")
        total += count(getattr(inner, "jaxpr", inner)) if inner is not None else 1
    return total


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made


def once(blocks: int) -> dict[str, float]:
    x = jax.ShapeDtypeStruct((4, 16), jnp.float32)
    ws = weights()
    trace, _ = seconds(lambda: jax.make_jaxpr(program(blocks))(x, ws))
    whole, module = seconds(
        lambda: tkcc.lower(program(blocks), x, ws, parameters=["ws"], recognise=False)
    )
    raise_seconds, raised = seconds(lambda: recognise(module))
    rules = node_rules([all_rules()[name] for name in FUSE])
    log = Log()
    fuse_seconds, fused = seconds(lambda: rewrite(raised, rules, log))
    print_seconds, text = seconds(lambda: print_module(module))
    parse_seconds, _ = seconds(lambda: parse_module(text))
    return {
        "trace": trace,
        "import_beyond_trace": whole - trace,
        "raise": raise_seconds,
        "fuse": fuse_seconds,
        "raise_and_fuse": raise_seconds + fuse_seconds,
        "print_and_parse": print_seconds + parse_seconds,
        "nodes_imported": module.function().size(),
        "nodes_raised": raised.function().size(),
        "nodes_fused": fused.function().size(),
        "rewrites": len(log.events),
    }


def main() -> None:
    per_block = count(jax.make_jaxpr(program(1))(jnp.ones((4, 16)), _ones()).jaxpr)
    blocks = -(-EQUATIONS // per_block)
    runs = [once(blocks) for _ in range(REPEATS)]
    figures: dict[str, Any] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    figures = {"equations": blocks * per_block, "repeats": REPEATS, **figures}
    common.save("large_modules", figures)


def _ones() -> list[Any]:
    return jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), weights())


if __name__ == "__main__":
    main()
