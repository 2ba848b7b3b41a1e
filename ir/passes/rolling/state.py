"""Per-layer state (k_0, k_1, ...) becomes one stacked state, in all functions at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tkcc.ir.graph import PACK, STATE, UNPACK, Function, Module, Node, Value
from tkcc.ir.op import build
from tkcc.ir.passes.clean import remove_dead, with_operands
from tkcc.ir.passes.naming import stacked_name
from tkcc.ir.passes.rolling.rows import ROLLED, definer, rows_of, take_row
from tkcc.ir.passes.state import known_conversion

Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Use:
    """How one function uses a group of states: the stacks of them, where they are among inputs and
    outputs, and the stacked value whose rows are the new states (None if not written)."""

    stacks: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    result: Value | None


def merge_states(module: Module) -> Module:
    """Merge every group of states that all functions stack alike, and extend pack and unpack."""
    for names in _groups(module):
        if not all(name in module.state for name in names):
            continue
        uses = {key: _use(function, names) for key, function in module.steps.items()}
        if None in uses.values():
            continue
        module = _merge(module, names, {k: use for k, use in uses.items() if use is not None})
    return module


def unmerged_states(module: Module) -> dict[str, tuple[Names, ...]]:
    """Per function, the groups of states that it stacks in every step (a copy of each)."""
    found = {name: tuple(_state_stacks(f)) for name, f in module.steps.items()}
    return {name: groups for name, groups in found.items() if groups}


def _state_stacks(function: Function) -> dict[Names, Node]:
    states = set(function.inputs_of(STATE))
    return {
        tuple(value.name for value in node.operands): node
        for node in function.nodes
        if node.op == "stack" and all(value in states for value in node.operands)
    }


def _groups(module: Module) -> list[Names]:
    """Groups of distinct states that some function stacks, in order."""
    found = dict.fromkeys(n for f in module.steps.values() for n in _state_stacks(f))
    return [names for names in found if len(set(names)) == len(names) > 1]


def _use(function: Function, names: Names) -> _Use | None:
    """How the function uses the group; None if it treats its members differently."""
    places = {v.name: i for i, v in enumerate(function.inputs) if function.roles[i] == STATE}
    if not any(name in places for name in names):
        return _Use((), (), (), None)
    if not all(name in places for name in names):
        return None
    inputs = tuple(places[name] for name in names)
    members = tuple(function.inputs[i] for i in inputs)
    stacks = tuple(n for n in function.nodes if n.op == "stack" and n.operands == members)
    if any(node not in stacks for value in members for node in function.uses.get(value, ())):
        return None
    return _with_outputs(function, _Use(stacks, inputs, (), None), members)


def _with_outputs(function: Function, use: _Use, members: Sequence[Value]) -> _Use | None:
    """Add where the new states are; None unless they are the rows of one value."""
    written = {place: output for output, place in function.aliases}
    outputs = tuple(written[i] for i in use.inputs if i in written)
    plain = [v for i, v in enumerate(function.outputs) if i not in outputs]
    if len(outputs) not in (0, len(members)) or any(value in plain for value in members):
        return None
    values = [function.outputs[i] for i in outputs]
    if not outputs or values == list(members):
        return dataclasses.replace(use, outputs=outputs)
    rows = rows_of(values, definer(function))
    if rows is None or rows[1] != 0 or rows[0].type.shape[0] != len(members):
        return None
    return dataclasses.replace(use, outputs=outputs, result=rows[0])


def _merge(module: Module, names: Names, uses: dict[str, _Use]) -> Module:
    first = module.state[names[0]]
    merged = first.with_shape((len(names), *first.shape))
    name = _free_name(stacked_name(names), module)
    functions = dict(module.functions)
    for key, use in uses.items():
        if use.inputs:
            functions[key] = _merged(functions[key], use, Value(merged, name))
    functions[PACK] = _packed(known_conversion(module, PACK), names, name)
    functions[UNPACK] = _unpacked(known_conversion(module, UNPACK), names, Value(merged, name))
    return module.replace(functions=functions)


def _free_name(name: str, module: Module) -> str:
    taken, number = {*module.state, *module.parameters}, 2
    free = name
    while free in taken:
        free, number = f"{name}~{number}", number + 1
    return free


def _merged(function: Function, use: _Use, state: Value) -> Function:
    """The function with the group's inputs and outputs replaced by one of each."""
    result = use.result if use.result is not None else state
    place, drop_in = min(use.inputs), set(use.inputs)
    keep_in = [i for i in range(len(function.inputs)) if i not in drop_in or i == place]
    keep_out = [
        i for i in range(len(function.outputs)) if i not in use.outputs or i == min(use.outputs)
    ]
    replaced = {node.result: state for node in use.stacks}
    changed = function.replace(
        inputs=tuple(state if i == place else function.inputs[i] for i in keep_in),
        roles=tuple(function.roles[i] for i in keep_in),
        nodes=tuple(with_operands(n, replaced) for n in function.nodes if n not in use.stacks),
        outputs=tuple(result if i in use.outputs else function.outputs[i] for i in keep_out),
        output_names=_merged_names(function, use, keep_out, state.name),
        aliases=_merged_aliases(function, use, keep_in, keep_out),
    )
    outputs = tuple(replaced.get(value, value) for value in changed.outputs)
    return remove_dead(changed.replace(outputs=outputs))


def _merged_names(function: Function, use: _Use, keep: Sequence[int], name: str) -> tuple[str, ...]:
    if not function.output_names:
        return ()
    return tuple(name if i in use.outputs else function.output_names[i] for i in keep)


def _merged_aliases(
    function: Function, use: _Use, keep_in: Sequence[int], keep_out: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    place_in = {old: new for new, old in enumerate(keep_in)}
    place_out = {old: new for new, old in enumerate(keep_out)}
    pairs = [(o, min(use.inputs) if i in use.inputs else i) for o, i in function.aliases]
    return tuple((place_out[o], place_in[i]) for o, i in pairs if o in place_out)


def _packed(function: Function, names: Names, name: str) -> Function:
    """The pack function, which now also stacks the group."""
    at = dict(zip(function.output_names, function.outputs, strict=True))
    node = build("stack", *(at[member] for member in names), source=ROLLED)
    kept = _renamed(function.output_names, names, name)
    at[name] = node.result
    return function.replace(
        nodes=(*function.nodes, node),
        outputs=tuple(at[key] for key in kept),
        output_names=kept,
    )


def _renamed(keys: Sequence[str], names: Names, name: str) -> Names:
    """The keys with the group's first one renamed and the others left out."""
    first = min(keys.index(member) for member in names)
    return tuple(
        name if i == first else key for i, key in enumerate(keys) if i == first or key not in names
    )


def _unpacked(function: Function, names: Names, state: Value) -> Function:
    """The unpack function, which now first takes the group's rows."""
    known = {value.name: value for value in function.inputs}
    nodes: list[Node] = []
    for number, member in enumerate(names):
        piece, row = take_row(state, number)
        nodes += [piece, row.replace(results=(known[member],))]
    kept = _renamed([value.name for value in function.inputs], names, state.name)
    inputs = tuple(state if key == state.name else known[key] for key in kept)
    return function.replace(
        inputs=inputs, roles=(STATE,) * len(inputs), nodes=(*nodes, *function.nodes)
    )
