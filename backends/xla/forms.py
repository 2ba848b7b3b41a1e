"""The form of a module's state, and that of the baseline that it came from.

A rewrite may change what a cache looks like. Such a module has `_pack_state` (baseline's state in,
its own out) and `_unpack_state` (the other way round). State that both pass through unchanged, or
do not name, is the same in both forms and is never copied. Parameters that `_prepare` derives are
its outputs, by name.
"""

from __future__ import annotations

from tkcc.ir.errors import BackendError
from tkcc.ir.graph import PACK, PARAMETER, PREPARE, UNPACK, Function, Module
from tkcc.ir.types import TensorType

SPECIAL = (PREPARE, PACK, UNPACK)
Types = dict[str, TensorType]


def special_functions(module: Module) -> dict[str, Function]:
    """What a swap runs, by name; conversions without what they pass through."""
    found = {name: module.functions[name] for name in SPECIAL if name in module.functions}
    trimmed = {n: f if n == PREPARE else _without_unchanged(f) for n, f in found.items()}
    return {name: function for name, function in trimmed.items() if function.outputs}


def _without_unchanged(function: Function) -> Function:
    """A conversion without outputs that are the input of the same name, and unread inputs."""
    pairs = list(zip(function.output_names, function.outputs, strict=True))
    kept = [(n, v) for n, v in pairs if not (v in function.inputs and v.name == n)]
    outputs = tuple(value for _, value in kept)
    read = {value for node in function.nodes for value in node.operands} | set(outputs)
    inputs = [(v, r) for v, r in zip(function.inputs, function.roles, strict=True) if v in read]
    return Function(
        inputs=tuple(value for value, _ in inputs),
        nodes=function.nodes,
        outputs=outputs,
        roles=tuple(role for _, role in inputs),
        output_names=tuple(name for name, _ in kept),
    )


def _outputs(function: Function | None) -> Types:
    if function is None:
        return {}
    return {n: v.type for n, v in zip(function.output_names, function.outputs, strict=True)}


def _inputs(function: Function | None) -> Types:
    return {} if function is None else {value.name: value.type for value in function.inputs}


def prepared_types(module: Module) -> Types:
    """Parameters that `_prepare` derives."""
    return _outputs(module.functions.get(PREPARE))


def packed_names(module: Module) -> frozenset[str]:
    """State of the module that is not in the baseline's form."""
    return frozenset(_outputs(special_functions(module).get(PACK)))


def baseline_types(module: Module) -> Types:
    """The module's state by baseline name, in the baseline's form."""
    packed = packed_names(module)
    types = {name: type_ for name, type_ in module.state.items() if name not in packed}
    return {**types, **_inputs(special_functions(module).get(PACK))}


def check_special_functions(module: Module) -> None:
    """Raise BackendError unless `_prepare` and the two conversions fit the module."""
    present = [name for name in SPECIAL if name in module.functions]
    for name in present:
        function = module.functions[name]
        if len(set(function.output_names)) != len(function.outputs):
            raise BackendError(
                f"{name} of module {module.name} does not name each of its outputs once",
                remedy="give output_names: what it computes is found by name",
            )
    if (PACK in present) != (UNPACK in present):
        raise BackendError(
            f"module {module.name} has only one of {PACK} and {UNPACK}",
            remedy="a rewrite that changes state gives both directions",
        )
    if PACK in present:
        _check_directions(module)


def _check_directions(module: Module) -> None:
    special = special_functions(module)
    pack, unpack = special.get(PACK), special.get(UNPACK)
    for name, function in ((PACK, pack), (UNPACK, unpack)):
        if function is not None and PARAMETER in function.roles:
            raise BackendError(
                f"{name} reads parameters", remedy="it converts state from state alone"
            )
    packed = _outputs(pack)
    own = {name: type_ for name, type_ in module.state.items() if name in packed}
    _same(f"{PACK} gives", packed, "the module's state is", own)
    unchanged = {n for n in module.state if n not in packed}
    taken = {name: type_ for name, type_ in _inputs(pack).items() if name not in unchanged}
    _same(f"{UNPACK} gives", _outputs(unpack), f"{PACK} takes", taken)
    missing = sorted(set(_inputs(unpack)) - set(module.state))
    if missing:
        raise BackendError(
            f"{UNPACK} reads {missing}, which is not state of the module",
            remedy=f"the module's state is {sorted(module.state)}",
        )


def _same(left: str, given: Types, right: str, wanted: Types) -> None:
    if given != wanted:
        raise BackendError(
            f"{left} {_text(given)}, but {right} {_text(wanted)}",
            remedy="give both the same names and types",
        )


def _text(types: Types) -> str:
    return ", ".join(f"{name}: {type_}" for name, type_ in sorted(types.items())) or "nothing"
