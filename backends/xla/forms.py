"""The form of a module's state, and that of the baseline that it came from.

A rewrite may change what a cache looks like. Such a module has `_pack_state` (baseline's state in,
its own out) and `_unpack_state` (the other way round); state that neither names is the same in
both. Parameters that `_prepare` derives are its outputs, by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from tkcc.ir.errors import BackendError
from tkcc.ir.graph import PACK, PARAMETER, PREPARE, UNPACK, Function, Module, Value
from tkcc.ir.types import TensorType

SPECIAL = (PREPARE, PACK, UNPACK)
Types = dict[str, TensorType]


def special_functions(module: Module) -> tuple[str, ...]:
    """Those of a module that a swap runs."""
    return tuple(name for name in SPECIAL if name in module.functions)


def named_outputs(function: Function) -> Types:
    """Types of a special function's outputs by name."""
    return {
        name: value.type
        for name, value in zip(function.output_names, function.outputs, strict=True)
    }


def prepared_types(module: Module) -> Types:
    """Parameters that `_prepare` derives."""
    return named_outputs(module.functions[PREPARE]) if PREPARE in module.functions else {}


def packed_names(module: Module) -> frozenset[str]:
    """State of the module that is not in the baseline's form."""
    return (
        frozenset(module.functions[PACK].output_names) if PACK in module.functions else frozenset()
    )


def baseline_types(module: Module) -> Types:
    """The module's state by baseline name, in the baseline's form."""
    packed = packed_names(module)
    types = {name: type_ for name, type_ in module.state.items() if name not in packed}
    return {**types, **_state_inputs(module, PACK)}


def _state_inputs(module: Module, name: str) -> Types:
    if name not in module.functions:
        return {}
    return dict(_typed(_plain_inputs(module.functions[name])))


def _plain_inputs(function: Function) -> Iterable[Value]:
    return (v for v, role in zip(function.inputs, function.roles, strict=True) if role != PARAMETER)


def _typed(values: Iterable[Value]) -> Iterable[tuple[str, TensorType]]:
    return ((value.name, value.type) for value in values)


def check_special_functions(module: Module) -> None:
    """Raise BackendError unless `_prepare` and the two state functions fit the module."""
    for name in special_functions(module):
        function = module.functions[name]
        if len(set(function.output_names)) != len(function.outputs):
            raise BackendError(
                f"{name} of module {module.name} does not name each of its outputs once",
                remedy="give output_names: what it computes is found by name",
            )
    if (PACK in module.functions) != (UNPACK in module.functions):
        raise BackendError(
            f"module {module.name} has only one of {PACK} and {UNPACK}",
            remedy="a rewrite that changes state gives both directions",
        )
    if PACK in module.functions:
        _check_directions(module)


def _check_directions(module: Module) -> None:
    packed = named_outputs(module.functions[PACK])
    own = {name: type_ for name, type_ in module.state.items() if name in packed}
    _same(f"{PACK} gives", packed, "the module's state is", own)
    _same(
        f"{UNPACK} gives",
        named_outputs(module.functions[UNPACK]),
        f"{PACK} takes",
        {n: t for n, t in _state_inputs(module, PACK).items() if n not in _kept(module)},
    )
    missing = set(_state_inputs(module, UNPACK)) - set(module.state)
    if missing:
        raise BackendError(
            f"{UNPACK} reads {sorted(missing)}, which is not state of the module",
            remedy=f"the module's state is {sorted(module.state)}",
        )


def _kept(module: Module) -> set[str]:
    """Baseline state that the state functions read but that the module keeps as it is."""
    return set(module.state) - packed_names(module)


def _same(left: str, given: Types, right: str, wanted: Types) -> None:
    if given != wanted:
        raise BackendError(
            f"{left} {_text(given)}, but {right} {_text(wanted)}",
            remedy="give both the same names and types",
        )


def _text(types: Types) -> str:
    return ", ".join(f"{name}: {type_}" for name, type_ in sorted(types.items())) or "nothing"
