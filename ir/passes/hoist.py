"""Hoist parameter arithmetic: what depends on parameters alone runs once, in `_prepare`.

In every step function, nodes that depend on parameters and constants only are moved, also out of
the bodies of scans (per-layer weights: the new parameter is stacked) and of scans in scans. The
step function then reads the results as parameters. Which values that pays for is told in
`tkcc.ir.passes.hoisting.choose`.

Left alone: nodes that depend on constants only (they are no parameter's), groups and all that is
in them (a group is one kernel, drawn by whoever wanted it so), collectives, and bodies of `while`,
`cond` and `lax` ops that also read arguments or state.
"""

from __future__ import annotations

from collections.abc import Sequence

from tkcc.ir.graph import PARAMETER, PREPARE, Function, Module, Value
from tkcc.ir.passes.clean import remove_dead, with_operands
from tkcc.ir.passes.hoisting.choose import choose
from tkcc.ir.passes.hoisting.copying import own_regions
from tkcc.ir.passes.hoisting.flow import ParameterFlow
from tkcc.ir.passes.hoisting.prepare import (
    Preparation,
    PrepareCost,
    prepare_cost,
    run_prepare,
)
from tkcc.ir.passes.hoisting.split import split_scans


def hoist(module: Module) -> Module:
    """The module with parameter arithmetic moved to `_prepare`.

    `_prepare` takes original parameters and gives new ones, named `<sources>~<hash of the
    expression>`, so functions that compute the same share one. Parameters that a step function no
    longer reads leave its inputs. A module that has a `_prepare` is hoisted further: its new
    `_prepare` still starts from the original parameters, and drops what no step reads any more.
    Returns the same object if nothing changes.
    """
    while (further := _once(module)) is not module:
        module = further
    return module


def _once(module: Module) -> Module:
    """Hoist, taking parameters that `_prepare` computes for given; the same object if that changes
    nothing."""
    preparation = Preparation(module)
    steps = {name: _hoisted(function, preparation) for name, function in module.steps.items()}
    read = {v.name for function in steps.values() for v in function.inputs_of(PARAMETER)}
    wanted = [name for name in preparation.outputs if name in read]
    nothing_moved = all(steps[name] is module.functions[name] for name in steps)
    if nothing_moved and len(wanted) == len(preparation.outputs):
        return module
    kept = {name: f for name, f in module.functions.items() if name != PREPARE}
    prepare = preparation.function(wanted)
    last = {PREPARE: prepare} if prepare is not None else {}
    return module.replace(functions={**kept, **steps, **last})


def _hoisted(function: Function, preparation: Preparation) -> Function:
    owned = own_regions(remove_dead(function))
    flow = ParameterFlow(owned)
    stored = choose(flow)
    if not stored:
        return function
    split = split_scans(owned, flow, stored)
    values = flow.held(split, stored)
    names = preparation.add(split, values)
    return _reading(split, values, names)


def _reading(function: Function, values: Sequence[Value], names: Sequence[str]) -> Function:
    """The function with the values as parameters instead."""
    inputs = {name: Value(v.type, name) for v, name in zip(values, names, strict=True)}
    replaced = {value: inputs[name] for value, name in zip(values, names, strict=True)}
    nodes = tuple(with_operands(node, replaced) for node in function.nodes)
    outputs = tuple(replaced.get(value, value) for value in function.outputs)
    live = remove_dead(function.replace(nodes=nodes, outputs=outputs))
    return _with_parameters(live, list(inputs.values()))


def _with_parameters(function: Function, added: Sequence[Value]) -> Function:
    """New parameters after the last one, and without those that nothing reads."""
    used = {v for node in function.nodes for v in node.operands} | set(function.outputs)
    last = max(i for i, role in enumerate(function.roles) if role == PARAMETER)
    pairs = list(zip(function.inputs, function.roles, strict=True))
    pairs[last + 1 : last + 1] = [(value, PARAMETER) for value in added]
    kept = [(value, role) for value, role in pairs if role != PARAMETER or value in used]
    place = {value: i for i, (value, _) in enumerate(kept)}
    return function.replace(
        inputs=tuple(value for value, _ in kept),
        roles=tuple(role for _, role in kept),
        aliases=tuple((out, place[function.inputs[i]]) for out, i in function.aliases),
    )


__all__ = ["PrepareCost", "hoist", "prepare_cost", "run_prepare"]
