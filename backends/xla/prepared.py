"""Derived parameters: what `_prepare` computed, kept while a program that needs it is near."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax

from tkcc.backends.base import Program
from tkcc.backends.xla.binding import Arrays, call_by_name
from tkcc.backends.xla.cache import function_key
from tkcc.backends.xla.forms import prepared_types
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import PREPARE


@dataclasses.dataclass(frozen=True, eq=False)
class Obtained:
    """Derived parameters by name; `bytes` and `seconds` are what it cost now (0 if kept)."""

    values: Arrays
    bytes: int = 0
    seconds: float = 0.0


def _key(program: Program) -> str | None:
    prepare = program.module.functions.get(PREPARE)
    return None if prepare is None else function_key(prepare)


def prepared_bytes(program: Program) -> int:
    """Bytes of the parameters that the program's `_prepare` derives."""
    return sum(type_.bytes for type_ in prepared_types(program.module).values())


class PreparedParameters:
    """Derived parameters by the function that computes them; programs that share it share them.

    `budget` bounds the bytes of the program in the slot and the one that comes in together; None
    means no bound.
    """

    def __init__(self, budget: int | None) -> None:
        self._budget = budget
        self._kept: dict[str, Arrays] = {}

    def obtain(self, program: Program, parameters: Arrays, current: Program | None) -> Obtained:
        """The program's derived parameters, computed unless they are kept. Raises BackendError."""
        key = _key(program)
        if key is None:
            return Obtained({})
        if key in self._kept:
            return Obtained(self._kept[key])
        self._make_room(program, current)
        began = time.perf_counter()
        values = call_by_name(program.artifacts[PREPARE], parameters)
        jax.block_until_ready(values)  # type: ignore[no-untyped-call]
        self._kept[key] = values
        return Obtained(values, prepared_bytes(program), time.perf_counter() - began)

    def _make_room(self, program: Program, current: Program | None) -> None:
        if self._budget is None:
            return
        needed, staying = prepared_bytes(program), self._bytes_kept([current] if current else [])
        if needed + staying > self._budget:
            raise BackendError(
                f"the program derives {needed} bytes of parameters; with {staying} bytes of the "
                f"program in the slot that exceeds the budget of {self._budget}",
                remedy="raise prepare_budget_bytes, or drop rewrites that copy large parameters",
            )
        if needed + sum(map(_bytes, self._kept.values())) > self._budget:
            self.keep([current] if current else [])  # a rollback prepares its own again

    def _bytes_kept(self, programs: Sequence[Program]) -> int:
        keys = {_key(program) for program in programs}
        return sum(_bytes(values) for key, values in self._kept.items() if key in keys)

    def keep(self, programs: Sequence[Program]) -> None:
        """Free what none of these programs needs."""
        keys = {_key(program) for program in programs}
        self._kept = {key: values for key, values in self._kept.items() if key in keys}


def _bytes(values: dict[str, Any]) -> int:
    return sum(array.nbytes for array in values.values())
