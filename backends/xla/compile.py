"""One function of the IR through jax.jit: traced, lowered and compiled ahead of time."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from typing import Any

import jax

from tkcc.backends.xla.placement import Placement
from tkcc.backends.xla.sources import LazyTexts
from tkcc.ir.errors import BackendError
from tkcc.ir.evaluate import Override, evaluate
from tkcc.ir.graph import Function


@dataclasses.dataclass(frozen=True, eq=False)
class Executable:
    """A compiled function. `order` says which of the function's outputs each result is."""

    call: Any
    function: Function
    order: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """What compiling one function gave. `sources` are texts by name."""

    executable: Executable
    sources: LazyTexts


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """What a function is compiled for: a device (a local one, or one of a topology without
    hardware) and compiler settings."""

    device: Any
    options: dict[str, Any]


def compile_function(
    name: str, function: Function, placement: Placement, settings: Settings
) -> Compiled:
    """Compile a function; state inputs that an output replaces are donated.

    Raises BackendError with the compiler's reason.
    """
    order = _output_order(name, function)
    lowered = lower(name, function, placement.override, settings, order)
    compiled = finish(name, lowered, settings)
    texts = {
        f"{name}.stablehlo": lowered.as_text,
        f"{name}.hlo": functools.partial(_optimised_text, compiled),
        **placement.sources(),
    }
    return Compiled(Executable(compiled, function, order), LazyTexts(texts))


def lower(
    name: str,
    function: Function,
    override: Override,
    settings: Settings,
    order: tuple[int, ...] | None = None,
) -> Any:
    """Trace and lower with an override in place. Raises BackendError if JAX refuses."""
    kept = _output_order(name, function) if order is None else order

    def run(*inputs: Any) -> tuple[Any, ...]:
        outputs = evaluate(function, inputs, override)
        return tuple(outputs[i] for i in kept)

    run.__name__ = run.__qualname__ = name
    donated = tuple(sorted(position for _, position in function.aliases))
    try:
        return jax.jit(run, donate_argnums=donated).lower(*_structs(function, settings.device))
    except (NotImplementedError, ValueError, TypeError) as error:
        raise BackendError(
            f"JAX cannot lower {name} for {settings.device.platform}: {first_line(error)}",
            remedy="rewrite the op that the reason names, or use another target",
        ) from error


def finish(name: str, lowered: Any, settings: Settings) -> Any:
    """Run XLA's compiler. Raises BackendError with its reason."""
    try:
        return lowered.compile(compiler_options=settings.options or None)
    except jax.errors.JaxRuntimeError as error:
        raise BackendError(
            f"XLA cannot compile {name}: {first_line(error)}",
            remedy="see the reason; a kernel's config or a compiler setting may be at fault",
        ) from error


def first_line(error: Exception) -> str:
    """The part of JAX's message that a person reads; whole programs follow it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:500]


def _structs(function: Function, device: Any) -> list[jax.ShapeDtypeStruct]:
    sharding = jax.sharding.SingleDeviceSharding(device)
    plain = [value.type.struct() for value in function.inputs]
    made = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
    return [made(item.shape, item.dtype) for item in plain]


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


def _optimised_text(compiled: Any) -> str:
    try:
        return str(compiled.as_text())
    except jax.errors.JaxRuntimeError as error:  # jaxlib is older than libtpu's HLO
        version = importlib.metadata.version("jaxlib")
        return f"// jaxlib {version} cannot read this HLO: {first_line(error)}\n"
