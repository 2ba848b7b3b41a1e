"""Compare targets: one row per target and function, every figure with how it was got."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tkcc.backends.base import Costs, Program, Provenance, Runtime, Target, get_backend
from tkcc.ir.cost import function_cost
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import ARGUMENT, Module
from tkcc.ir.passes.hoist import hoist
from tkcc.ir.types import TensorType, jax_dtype

IR_PROVENANCE = Provenance.estimated("shapes of the IR")
MEASURED_STEPS, MEASURED_SECONDS = 30, 3.0
_PARAMETER_SPREAD = 0.02


@dataclasses.dataclass(frozen=True)
class Cell:
    """One figure and its provenance; the value None means that nothing gives it."""

    value: float | None
    provenance: Provenance | None

    def plain(self) -> dict[str, Any]:
        return {"value": self.value, "provenance": str(self.provenance or "")}


NOTHING = Cell(None, None)


@dataclasses.dataclass(frozen=True)
class Row:
    """One target and function. Measured and estimated times are different columns.

    `flops` and `bytes` follow from the IR's shapes. `memory_bytes`: device memory of one call by
    the compiler. `measured_ms`: median step on the device. `estimated_ms`: the compiler's own
    guess. `error` says why a target has no figures.
    """

    target: str
    function: str
    flops: Cell = NOTHING
    bytes: Cell = NOTHING
    memory_bytes: Cell = NOTHING
    compile_seconds: Cell = NOTHING
    measured_ms: Cell = NOTHING
    estimated_ms: Cell = NOTHING
    error: str = ""


COLUMNS = ("flops", "bytes", "memory_bytes", "compile_seconds", "measured_ms", "estimated_ms")


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a comparison."""

    module: str
    rows: tuple[Row, ...]

    def json(self) -> str:
        """Rows and, per cell, provenance."""
        rows = [
            {
                "target": row.target,
                "function": row.function,
                "error": row.error,
                **{name: getattr(row, name).plain() for name in COLUMNS},
            }
            for row in self.rows
        ]
        return json.dumps({"module": self.module, "rows": rows}, indent=2)

    def provenances(self) -> dict[str, list[str]]:
        """Per column, how its figures were got (one line per source, with its targets)."""
        found: dict[str, dict[str, dict[str, None]]] = {}
        for row in self.rows:
            for name in COLUMNS:
                cell: Cell = getattr(row, name)
                if cell.provenance is not None:
                    targets = found.setdefault(name, {}).setdefault(str(cell.provenance), {})
                    targets[row.target] = None
        return {
            name: [f"{source} for {', '.join(targets)}" for source, targets in sources.items()]
            for name, sources in found.items()
        }


def compare_targets(
    module: Module,
    targets: Sequence[Target],
    *,
    measure: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Table:
    """Compile the module for every target and, where the device is here, time it.

    A target that cannot compile the module gets a row that says why; the others go on.
    """
    hoisted = hoist(module)
    rows: list[Row] = []
    for target in targets:
        progress(f"compiling for {target}")
        try:
            program = get_backend(target.backend).compile(hoisted, target)
        except BackendError as error:
            rows.append(Row(str(target), "", error=error.what))
            continue
        times = _measured(program, module, progress) if measure else {}
        rows += [_row(program, name, times) for name in program.functions]
    return Table(module.name, tuple(rows))


def _row(program: Program, name: str, times: dict[str, Cell]) -> Row:
    cost = function_cost(program.module.functions[name])
    costs = program.costs[name]
    here = Provenance.measured("this machine's clock")
    return Row(
        target=str(program.target),
        function=name,
        flops=Cell(cost.flops, IR_PROVENANCE),
        bytes=Cell(cost.bytes, IR_PROVENANCE),
        memory_bytes=_cell(costs.peak_bytes, costs),
        compile_seconds=Cell(program.compile_seconds, here),
        measured_ms=times.get(name, NOTHING),
        estimated_ms=_cell(None if costs.seconds is None else costs.seconds * 1e3, costs),
    )


def _cell(value: float | None, costs: Costs) -> Cell:
    return NOTHING if value is None else Cell(value, costs.provenance)


def _measured(program: Program, module: Module, progress: Callable[[str], None]) -> dict[str, Cell]:
    """Median milliseconds of every function, where the program can run here."""
    if not program.artifacts:
        return {}
    progress(f"measuring on {program.target}")
    generator = np.random.default_rng(0)
    parameters = {
        name: module.values.get(name, _random(type_, generator))
        for name, type_ in module.parameters.items()
    }
    backend = get_backend(program.target.backend)
    with backend.start(program.target, parameters) as runtime:
        runtime.swap(program)
        return {
            name: Cell(_median_ms(runtime, program, name, generator), runtime.provenance)
            for name in program.functions
        }


def _median_ms(runtime: Runtime, program: Program, name: str, generator: Any) -> float:
    function = program.module.functions[name]
    inputs = {v.name: _random(v.type, generator) for v in function.inputs_of(ARGUMENT)}
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < MEASURED_STEPS and time.perf_counter() - began < MEASURED_SECONDS:
        start = time.perf_counter()
        runtime.step(name, inputs)
        runtime.wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:] or times) * 1e3


def _random(type_: TensorType, generator: Any) -> Any:
    """Small normal floats; integers that are valid ids and positions everywhere: ones."""
    if type_.dtype.startswith("key<"):
        raise BackendError("PRNG keys cannot be made up", remedy="compare with --no-measure")
    dtype = jax_dtype(type_.dtype)
    if type_.is_float:
        values = generator.standard_normal(type_.shape, np.float32) * _PARAMETER_SPREAD
        return values.astype(dtype)
    return np.ones(type_.shape, dtype)
