"""Flax modules (nnx and linen) as pure functions of named parameters and state."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Functional:
    """`call(parameters, state, *args) -> (outputs, new state)`; both dicts map names to arrays."""

    call: Callable[..., Any]
    parameters: dict[str, Any]
    state: dict[str, Any]
    name: str


def functional(target: Any) -> Functional | None:
    """The pure form of a Flax nnx module, of a bound method of one, or None for anything else."""
    if importlib.util.find_spec("flax") is None:
        return None
    from flax import nnx

    owner, method = target, "__call__"
    if not isinstance(target, nnx.Module):
        owner = getattr(target, "__self__", None)
        method = getattr(target, "__name__", "")
    if not isinstance(owner, nnx.Module):
        return None
    return _from_nnx(owner, method)


def _from_nnx(module: Any, method: str) -> Functional:
    from flax import nnx

    graph, parameters, state = nnx.split(module, nnx.Param, ...)  # type: ignore[misc]

    def call(parameter_values: dict[str, Any], state_values: dict[str, Any], *args: Any) -> Any:
        merged = nnx.merge(
            graph, _filled(parameters, parameter_values), _filled(state, state_values)
        )
        outputs = getattr(merged, method)(*args)
        _, _, changed = nnx.split(merged, nnx.Param, ...)  # type: ignore[misc]
        return outputs, _named(changed)

    name = type(module).__name__ if method == "__call__" else f"{type(module).__name__}.{method}"
    return Functional(call, _named(parameters), _named(state), name)


def _named(state: Any) -> dict[str, Any]:
    """Arrays by dotted path; nnx variables are unwrapped."""
    from flax import nnx

    return {".".join(map(str, path)): _raw(leaf) for path, leaf in nnx.to_flat_state(state)}


def _raw(leaf: Any) -> Any:
    get = getattr(leaf, "get_value", None)
    return get() if get is not None else leaf


def _filled(state: Any, values: dict[str, Any]) -> Any:
    """The nnx state with each variable's value taken from `values`."""
    from flax import nnx

    flat = []
    for path, leaf in nnx.to_flat_state(state):
        new = values[".".join(map(str, path))]
        flat.append((path, leaf.replace(new) if isinstance(leaf, nnx.Variable) else new))
    return nnx.from_flat_state(flat)


def linen_call(module: Any) -> Callable[..., Any] | None:
    """`apply(variables, *args)` of a linen module, or None for anything else."""
    if importlib.util.find_spec("flax") is None:
        return None
    from flax import linen

    return module.apply if isinstance(module, linen.Module) else None
