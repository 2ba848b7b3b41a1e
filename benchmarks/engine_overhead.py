"""The engine around the bare step: 16 requests at once on this machine's CPU, and swaps meanwhile.

Must reach: time outside the compiled step below 10 % of the wall time. Then the same requests again
while two programs take turns in the slot: no answer may change; the pauses are reported.
Run: python benchmarks/engine_overhead.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import common

from tkcc.backends.base import Program, Target, get_backend
from tkcc.backends.xla.platform import select_platforms
from tkcc.engine.engine import Engine
from tkcc.engine.programs import ServeShape, serving_module
from tkcc.engine.requests import Request, Sampling
from tkcc.ir.graph import Module
from tkcc.ir.passes.hoist import hoist
from tkcc.ir.rewrite.driver import apply_rule
from tkcc.ir.rewrite.rule import get_rule
from tkcc.models import registry
from tkcc.models.prompts import PROMPTS

CONCURRENT, TOKENS, SWAP_EVERY = 16, 32, 2
SHAPE = ServeShape(256, 16, 16 * 16 + 1, decode=(1, 16), extend=((1, 32), (4, 64)))
CPU = Target.parse("xla:cpu")


def requests(tokenizer: Any) -> list[Request]:
    """Different prompts: beginnings of the built-in ones."""
    texts = [prompt.tokens(tokenizer) for prompt in PROMPTS]
    made = []
    for number in range(CONCURRENT):
        tokens = texts[number % len(texts)]
        cut = max(4, len(tokens) - 3 * (number // len(texts)))
        sampling = Sampling(max_tokens=TOKENS, ignore_end=True)
        made.append(Request(f"r{number}", tuple(tokens[: min(cut, 128)]), sampling))
    return made


def served(engine: Engine, asked: list[Request], programs: list[Program]) -> dict[str, Any]:
    """Serve all at once; with `programs`, swap one in after every SWAP_EVERY steps."""
    answers: dict[str, list[int]] = {request.id: [] for request in asked}
    pauses: list[float] = []
    for request in asked:
        engine.submit(request)
    began, steps = time.perf_counter(), 0
    while not engine.idle:
        for event in engine.step():
            if event.token is not None:
                answers[event.request].append(event.token)
        steps += 1
        if programs and steps % SWAP_EVERY == 0:
            before = time.perf_counter()
            engine.swap(programs[len(pauses) % len(programs)])
            pauses.append(time.perf_counter() - before)
    return {
        "answers": answers,
        "seconds": time.perf_counter() - began,
        "steps": steps,
        "pauses": pauses,
    }


def compiled(module: Module, *rules: str) -> Program:
    for name in rules:
        module, fired = apply_rule(module, get_rule(name))
        assert fired
    return get_backend("xla").compile(hoist(module), CPU)


def main() -> None:
    select_platforms()
    loaded = registry.load("smollm2-135m", "float32")
    module = serving_module(loaded.module, SHAPE, name="smollm2-135m")
    plain, other = compiled(module), compiled(module, "merge_qkv")
    asked = requests(loaded.tokenizer)
    runtime = get_backend("xla").start(CPU, module.values)
    runtime.swap(plain)

    def engine() -> Engine:
        runtime.reset_state()
        return Engine(runtime, SHAPE, vocabulary=loaded.config.vocab_size)

    served(engine(), asked, [])  # warm-up
    measured = engine()
    alone = served(measured, asked, [])
    wall, device = alone["seconds"], measured.clock.device
    swapping = served(engine(), asked, [other, plain])
    pauses = sorted(swapping["pauses"])
    figures = {
        "concurrent": CONCURRENT,
        "tokens_each": TOKENS,
        "steps": alone["steps"],
        "wall_seconds": wall,
        "seconds_in_the_compiled_step": device,
        "share_outside": (wall - device) / wall,
        "output_tokens_per_second": CONCURRENT * TOKENS / wall,
        "swaps": len(pauses),
        "swap_ms_median": statistics.median(pauses) * 1e3,
        "swap_ms_p99": pauses[min(len(pauses) - 1, int(0.99 * len(pauses)))] * 1e3,
        "answers_changed_by_swaps": sum(
            alone["answers"][name] != swapping["answers"][name] for name in alone["answers"]
        ),
    }
    runtime.close()
    common.save("engine_overhead", figures)


if __name__ == "__main__":
    main()
