"""The XLA backend on a GPU, in one command: a Llama-3.2-1B shape, random bfloat16 weights, batch 1.

Checks that the imported program equals plain JAX on this GPU, times the two in turn, then runs the
optimiser. Weights are random, so this speaks of speed and of rules being right, not of a model.
Run: python benchmarks/gpu_check.py [budget, default 2m] [folder for the result]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import common
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tkcc.backends.base import Target
from tkcc.candidate import Workload
from tkcc.cli.common import seconds
from tkcc.ir.types import type_of
from tkcc.language import StepShape, lower_language_model
from tkcc.models.llama import Llama
from tkcc.models.llama_config import LlamaConfig
from tkcc.optimize.records import Experiment, Observer, Plan
from tkcc.optimize.run import Optimizer
from tkcc.optimize.session import Session

# Sizes of Llama-3.2-1B (its config.json); 2.47 GB of bfloat16 weights are read per token.
CONFIG = LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=16,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    tie_word_embeddings=True,
)
SHAPE = StepShape(batch=1, context=512, prompt=64)
PAIRS, STEPS = 30, 50


class Printer(Observer):
    def phase(self, text: str) -> None:
        print(text, flush=True)

    def experiment(self, experiment: Experiment, best: float) -> None:
        print(f"  {experiment.title:28s} {experiment.outcome:11s} {experiment.speedup} "
              f"{experiment.reason}", flush=True)  # fmt: skip


class PlainJit:
    """jax.jit of the model's decode with donated caches: what a good JAX programmer runs."""

    def __init__(self, model: Llama) -> None:
        graph, state = nnx.split(model)

        def step(state: Any, tokens: Any, positions: Any, k: Any, v: Any) -> Any:
            return tuple(nnx.merge(graph, state).decode(tokens, positions, k, v))

        self.held = state
        self.caches = list(model.empty_caches(SHAPE.batch, SHAPE.context))
        row = jnp.zeros(SHAPE.batch, jnp.int32)
        jitted = jax.jit(step, donate_argnums=(3, 4))
        self.compiled = jitted.lower(state, row, row, *self.caches).compile()

    def timed(self, first: Any, count: int) -> float:
        tokens = jnp.asarray(first)
        began = time.perf_counter()
        for i in range(count):
            position = np.full(SHAPE.batch, 64 + i, np.int32)
            tokens, _, *self.caches = self.compiled(self.held, tokens, position, *self.caches)
        np.asarray(tokens)
        return (time.perf_counter() - began) / count


def against_plain(session: Session, plain: PlainJit, start: Any) -> dict[str, float]:
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for pair in range(PAIRS + 2):
        both = {
            "plain": lambda: plain.timed(start.tokens, STEPS),
            "ours": lambda: session.timed(start, STEPS),
        }
        for name in both if pair % 2 == 0 else reversed(list(both)):
            times[name].append(both[name]())
    plain_s, ours_s = times["plain"][2:], times["ours"][2:]
    return {
        "plain_jit_ms": statistics.median(plain_s) * 1e3,
        "tkcc_ms": statistics.median(ours_s) * 1e3,
        "ratio": statistics.median(b / a for a, b in zip(plain_s, ours_s, strict=True)),
    }


def main() -> None:
    budget = seconds(sys.argv[1] if len(sys.argv) > 1 else "2m")
    if len(sys.argv) > 2:
        common.RESULTS = Path(sys.argv[2])
    model = Llama(CONFIG, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    module = lower_language_model(model, SHAPE, name="llama-3.2-1b-shape")
    generator = np.random.default_rng(0)
    prompts = [
        [generator.integers(0, CONFIG.vocab_size, 32).tolist() for _ in range(SHAPE.batch)]
        for _ in range(6)
    ]
    workload = Workload(model=module.name, dtype="bfloat16", batch=1, context=512, prompt=64)
    with Session(module, Target.parse("xla:gpu"), SHAPE) as session:
        start = session.read(prompts[0])
        figures: dict[str, Any] = {
            "weights_bytes": sum(type_of(v).bytes for v in module.values.values()),
            "decode, un-rewritten": against_plain(session, PlainJit(model), start),
        }
        print(figures, flush=True)
        result = Optimizer(session, workload, prompts, Plan(budget=budget), Printer()).run()
    figures["optimize"] = result.record()
    common.save("gpu_check", figures)


if __name__ == "__main__":
    main()
