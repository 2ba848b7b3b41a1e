"""A compiled function's costs, and who says so."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import math
from typing import Any

from tkcc.backends.base import Costs, Provenance
from tkcc.backends.xla.compile import Compiled, Settings, finish, lower
from tkcc.backends.xla.loops import Figures, scans, with_loops
from tkcc.backends.xla.placement import Placement
from tkcc.ir.cost import function_cost
from tkcc.ir.errors import BackendError
from tkcc.ir.evaluate import Override
from tkcc.ir.graph import Function

_UNKNOWN = Figures(None, None, None)


def ir_costs(compiled: Compiled) -> Costs:
    """Flops and bytes as the IR counts them, memory as XLA planned it.

    For CPU and GPU: XLA's own counts there take loops once, and the CPU's count whole stacks
    wherever a slice is read. Time is not estimated: it can be measured.
    """
    function = compiled.executable.function
    cost = function_cost(function)
    costs = Costs(
        Provenance.estimated(
            f"tkcc's IR; memory by XLA of jaxlib {importlib.metadata.version('jaxlib')}"
        ),
        flops=float(cost.flops),
        bytes=float(cost.bytes),
        loops_counted_once=sum(node.op in ("while", "lax.while") for node in function.walk()),
    )
    return _with_memory(costs, compiled)


def compiler_costs(
    name: str, compiled: Compiled, placement: Placement, settings: Settings, by: str
) -> Costs:
    """Flops, bytes and seconds as the compiler counts them, scans as often as they run.

    Compiles the function again for every scan, to know what one run of its body costs. Flops,
    bytes and seconds are None where that fails (a longer body may exceed the memory).
    """
    function = compiled.executable.function

    def measure(override: Override) -> Figures:
        return _figures(finish(name, lower(name, function, override, settings), settings))

    figures = _UNKNOWN
    with contextlib.suppress(BackendError):
        figures = with_loops(function, _figures(compiled.executable.call), placement, measure)
    loops = compiled.sources[f"{name}.stablehlo"].count("stablehlo.while")
    costs = Costs(
        Provenance.estimated(by),
        flops=figures.flops,
        bytes=figures.bytes,
        seconds=figures.seconds,
        untimed_ops=round(figures.untimed),
        loops_counted_once=max(0, loops - _scans_kept(function, placement)),
    )
    return _with_memory(costs, compiled)


def _scans_kept(function: Function, placement: Placement) -> int:
    return sum(scan.counted < scan.runs for scan in scans(function, placement))


def _figures(compiled: Any) -> Figures:
    found = compiled.cost_analysis() or {}
    seconds = found.get("optimal_seconds")
    # The compiler takes -1 second for every op that it has no time for.
    untimed = math.ceil(-seconds) if seconds is not None and seconds < 0 else 0
    return Figures(
        flops=_figure(found.get("flops")),
        bytes=_figure(found.get("bytes accessed")),
        seconds=None if seconds is None else float(seconds) + untimed,
        untimed=float(untimed),
    )


def _figure(value: Any) -> float | None:
    return float(value) if value is not None and value >= 0 else None


def _with_memory(costs: Costs, compiled: Compiled) -> Costs:
    memory = compiled.executable.call.memory_analysis()
    if memory is None:
        return costs
    arguments, outputs = memory.argument_size_in_bytes, memory.output_size_in_bytes
    aliased, temporary = memory.alias_size_in_bytes, memory.temp_size_in_bytes
    return dataclasses.replace(
        costs,
        peak_bytes=arguments + outputs - aliased + temporary,
        argument_bytes=arguments,
        output_bytes=outputs,
        alias_bytes=aliased,
        temporary_bytes=temporary,
    )
