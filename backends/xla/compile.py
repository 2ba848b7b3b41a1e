"""One function of the IR through jax.jit: traced, lowered and compiled ahead of time."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from tkcc.backends.base import Costs, Provenance
from tkcc.backends.xla.placement import Placement
from tkcc.ir.errors import BackendError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function


@dataclasses.dataclass(frozen=True, eq=False)
class Executable:
    """A compiled function. `order` says which of the function's outputs each result is."""

    call: Any
    function: Function
    order: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """What compiling one function gave."""

    executable: Executable
    sources: dict[str, str]
    costs: Costs


def compile_function(
    name: str, function: Function, placement: Placement, device: Any, options: dict[str, Any]
) -> Compiled:
    """Compile for one device (a local one, or one of a topology without hardware).

    State inputs that an output replaces are donated. Raises BackendError with the compiler's
    reason.
    """
    order = _output_order(name, function)
    lowered, compiled = _compile(name, function, placement.override, device, options, order)
    sources = {
        f"{name}.stablehlo": lowered.as_text(),
        f"{name}.hlo": _optimised_text(compiled),
        **placement.sources(),
    }
    return Compiled(Executable(compiled, function, order), sources, lowered)


def compiler_figures(compiled: Compiled, placement: Placement, device: Any, options: Any) -> Costs:
def first_line(error: Exception) -> str:
    """The part of JAX's message that a person reads; whole programs follow it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:500]


def _output_order(name: str, function: Function) -> tuple[int, ...]:
    """State first, in the order of its inputs.

    JAX pairs donated inputs with outputs of the same type in order, so this pairs each state with
    its own successor, which is then written in place.
    """
    outputs = {position: output for output, position in function.aliases}
    if len(outputs) != len(function.aliases):
        raise BackendError(
            f"two outputs of {name} replace one input", remedy="alias each state input once"
        )
    state = [outputs[position] for position in sorted(outputs)]
    return (*state, *(i for i in range(len(function.outputs)) if i not in state))


def _lower(
    name: str, function: Function, placement: Placement, device: Any, order: tuple[int, ...]
) -> Any:
    sharding = jax.sharding.SingleDeviceSharding(device)

    def run(*inputs: Any) -> tuple[Any, ...]:
        outputs = evaluate(function, inputs, placement.override)
        return tuple(outputs[i] for i in order)

    run.__name__ = run.__qualname__ = name
    donated = tuple(sorted(position for _, position in function.aliases))
    structs = []
    for value in function.inputs:
        struct = value.type.struct()
        structs.append(jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding))
    try:
        return jax.jit(run, donate_argnums=donated).lower(*structs)
    except (NotImplementedError, ValueError, TypeError) as error:
        raise BackendError(
            f"JAX cannot lower {name} for {device.platform}: {first_line(error)}",
            remedy="see the reason; the report of a smaller schedule shows what else can run it",
        ) from error


def _costs(compiled: Any, provenance: Provenance) -> Costs:
    """The compiler's figures; those that this compiler does not give are None."""
    found = compiled.cost_analysis() or {}
    memory = compiled.memory_analysis()
    figures = Costs(
        provenance,
        flops=_figure(found, "flops"),
        bytes=_figure(found, "bytes accessed"),
        seconds=_figure(found, "optimal_seconds"),
    )
    if memory is None:
        return figures
    arguments, outputs = memory.argument_size_in_bytes, memory.output_size_in_bytes
    aliased, temporary = memory.alias_size_in_bytes, memory.temp_size_in_bytes
    return dataclasses.replace(
        figures,
        peak_bytes=arguments + outputs - aliased + temporary,
        argument_bytes=arguments,
        output_bytes=outputs,
        alias_bytes=aliased,
        temporary_bytes=temporary,
    )


def _figure(found: Any, key: str) -> float | None:
    value = found.get(key)
    return float(value) if value is not None and value > 0 else None
