"""The program of an imported, un-rewritten module against plain `jax.jit` of the same function.

A Llama-like model of 4 layers, decode and prefill, float32. The two alternate in one process; the
ratio of neighbouring blocks counts. Must reach: within 1.03x.
Run: python benchmarks/overhead.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import common
import jax
import jax.numpy as jnp
import numpy as np
import plain_llama

import tkcc
from tkcc.backends.base import Target, get_backend

SHAPE = plain_llama.Shape(layers=4)
PAIRS = 150
CASES = {"decode": (1, 20), "prefill": (128, 3)}  # tokens, steps per block


class Plain:
    """jax.jit with donated caches."""

    def __init__(self, step: Any, held: Any, tokens: Any) -> None:
        self.state = plain_llama.caches(SHAPE, 1, stacked=True)
        compiled = jax.jit(step, donate_argnums=(3, 4))
        self.compiled = compiled.lower(held, tokens, jnp.int32(0), *self.state).compile()
        self.held, self.tokens = held, tokens

    def block(self, steps: int) -> float:
        began = time.perf_counter()
        out: Any = None
        for i in range(steps):
            out, *self.state = self.compiled(self.held, self.tokens, np.int32(i), *self.state)
        jax.block_until_ready(out)
        return time.perf_counter() - began


class Ours:
    """The imported module in a runtime's slot."""

    def __init__(self, step: Any, held: Any, tokens: Any, recognise: bool) -> None:
        state = plain_llama.caches(SHAPE, 1, stacked=True, abstract=True)
        module = tkcc.lower(
            step,
            held,
            tokens,
            jnp.int32(0),
            *state,
            parameters=["p"],
            state=["k", "v"],
            outputs=["logits"],
            recognise=recognise,
        )
        target = Target.parse("xla:cpu")
        self.runtime = get_backend("xla").start(target, module.values)
        self.runtime.swap(tkcc.compile(module))
        self.tokens = tokens

    def block(self, steps: int) -> float:
        began = time.perf_counter()
        out: Any = None
        for i in range(steps):
            given = {"tokens": self.tokens, "position": np.int32(i)}
            out = self.runtime.step("main", given)["logits"]
        jax.block_until_ready(out)
        return time.perf_counter() - began


def compare(tokens_count: int, steps: int, recognise: bool) -> dict[str, Any]:
    step = plain_llama.scanned(SHAPE)
    held = plain_llama.parameters(SHAPE, stacked=True)
    tokens = jnp.ones((1, tokens_count), jnp.int32)
    plain, ours = Plain(step, held, tokens), Ours(step, held, tokens, recognise)
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for pair in range(PAIRS + 2):
        both = [("plain", plain), ("ours", ours)]
        for name, engine in both if pair % 2 == 0 else both[::-1]:
            times[name].append(engine.block(steps) / steps)
    ratios = [b / a for a, b in zip(times["plain"][2:], times["ours"][2:], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "plain_jit_ms": statistics.median(times["plain"][2:]) * 1e3,
        "tkcc_ms": statistics.median(times["ours"][2:]) * 1e3,
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [low, high],
        "ratio_of_minima": min(times["ours"][2:]) / min(times["plain"][2:]),
        "pairs": PAIRS,
    }


def main() -> None:
    figures = {}
    for name, (tokens, steps) in CASES.items():
        for recognise in (False, True):
            key = f"{name}, {'raised' if recognise else 'as imported'}"
            figures[key] = compare(tokens, steps, recognise)
    common.save("overhead", figures)


if __name__ == "__main__":
    main()
