"""A running model: one runtime, real prompts, and steps through whatever program is in the slot."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tkcc.backends.base import Backend, Program, Runtime, Schedule, Target, get_backend
from tkcc.ir.errors import TkccError
from tkcc.ir.graph import Module
from tkcc.ir.passes.hoist import hoist
from tkcc.language import StepShape

DECODE, PREFILL = "decode", "prefill"


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Prompts that were read: the state after them, the first new tokens and their positions."""

    tokens: np.ndarray[Any, Any]  # i32[batch]
    positions: np.ndarray[Any, Any]  # i32[batch]
    state: dict[str, Any]


class Session:
    """The runtime of one module. `baseline` is in the slot after construction."""

    def __init__(self, module: Module, target: Target, shape: StepShape) -> None:
        self.module, self.target, self.shape = module, target, shape
        self.backend: Backend = get_backend(target.backend)
        self.runtime: Runtime = self.backend.start(target, module.values)
        self.baseline = self.compile(module, functions=(PREFILL, DECODE))
        self.runtime.swap(self.baseline)

    def close(self) -> None:
        self.runtime.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compile(
        self,
        module: Module,
        schedule: Schedule = Schedule(),  # noqa: B008  (frozen)
        functions: Sequence[str] = (DECODE,),
    ) -> Program:
        """Hoist parameter arithmetic and compile. Raises BackendError."""
        return self.backend.compile(hoist(module), self.target, schedule, list(functions))

    def read(self, prompts: Sequence[Sequence[int]]) -> Start:
        """Run prefill of the program in the slot on `batch` prompts, from empty caches.

        Raises TkccError for a wrong number of prompts, or one that is empty or too long.
        """
        tokens, lengths = self._padded(prompts)
        self.runtime.reset_state()
        out = self.runtime.step(PREFILL, {"tokens": tokens, "lengths": lengths})
        first = np.asarray(out["next_tokens"])
        return Start(first, lengths, self.runtime.get_state())

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        if len(prompts) != self.shape.batch:
            raise TkccError(
                f"{len(prompts)} prompts for a batch of {self.shape.batch}",
                remedy="give one prompt per row",
            )
        tokens = np.zeros((self.shape.batch, self.shape.prompt), np.int32)
        for row, prompt in zip(tokens, prompts, strict=True):
            if not 0 < len(prompt) <= self.shape.prompt:
                raise TkccError(
                    f"a prompt has {len(prompt)} tokens",
                    remedy=f"prompts have 1 to {self.shape.prompt} tokens",
                )
            row[: len(prompt)] = prompt
        return tokens, np.array([len(prompt) for prompt in prompts], np.int32)

    def generate(self, start: Start, count: int) -> tuple[Any, Any]:
        """Greedy decoding: tokens i32[count, batch] and logits f32[count, batch, v]."""
        return self._run(start, count, fed=None)

    def forced(self, start: Start, tokens: Any) -> tuple[Any, Any]:
        """As `generate`, but the tokens [count, batch] of another run are fed."""
        return self._run(start, len(tokens), fed=[start.tokens, *tokens[:-1]])

    def _run(self, start: Start, count: int, fed: Sequence[Any] | None) -> tuple[Any, Any]:
        self.runtime.set_state(start.state)
        tokens, logits = [], []
        current: Any = start.tokens
        for step in range(count):
            out = self._decode(current if fed is None else fed[step], start.positions + step)
            current = out["next_tokens"]
            tokens.append(np.asarray(current))
            logits.append(np.asarray(out["logits"], np.float32))
        return np.stack(tokens), np.stack(logits)

    def timed(self, start: Start, count: int) -> float:
        """Seconds per step of `count` chained decode steps: each step's tokens feed the next."""
        current: Any = start.tokens
        self.runtime.wait()
        began = time.perf_counter()
        for step in range(count):
            current = self._decode(current, start.positions + step)["next_tokens"]
        np.asarray(current)  # the host has the last token: everything before it is done
        return (time.perf_counter() - began) / count

    def _decode(self, tokens: Any, positions: Any) -> dict[str, Any]:
        return self.runtime.step(DECODE, {"tokens": tokens, "positions": positions})
