"""Roll unrolled layers: L copies of the same nodes become one `scan` of length L.

A model written as a Python loop over layers is imported as one long sequence of nodes. `roll`
finds the repetition, turns what goes from layer to layer into the scan's carry, what each layer
has of its own (weights, caches) into stacked operands, and what all layers read into constants of
the scan. Layers whose ops, attributes, types or constants differ are not rolled together; layers
that alternate (A B A B) are rolled as pairs.

Only stacks of what was separate are added; `tkcc.ir.passes.hoist` then moves stacks of parameters
to `_prepare`. Per-layer state becomes one stacked state if every function agrees
(`tkcc.ir.passes.rolling.state`). Groups are left alone.
"""

from __future__ import annotations

from collections.abc import Collection

from tkcc.ir.graph import Function, Module, Node, Value
from tkcc.ir.passes.clean import remove_dead
from tkcc.ir.passes.rolling.apply import apply_plan
from tkcc.ir.passes.rolling.periods import Run, find_runs
from tkcc.ir.passes.rolling.plan import Plan, plans_for
from tkcc.ir.passes.rolling.rows import undo_restacking
from tkcc.ir.passes.rolling.saving import Sequenced
from tkcc.ir.passes.rolling.state import merge_states, unmerged_states
from tkcc.ir.passes.rolling.symbols import (
    SymbolTable,
    early_nodes,
    literals,
    share_early,
    with_distances,
)


def roll(module: Module, *, minimum: int = 2) -> Module:
    """The module with repeated layers of its step functions rolled into scans.

    A repetition is rolled if there are at least `minimum` copies, each copy reads a value of the
    one before, and the function gets smaller: by one node where copies have inputs of their own,
    else by 8 (short chains are better fused). Where per-layer state becomes one stacked state, the
    functions `_pack_state` and `_unpack_state` convert between the module's former state and the
    new one. State that stays apart is stacked and unstacked in every step: correct, but slower;
    `unmerged_states` lists it. Returns the same object if nothing repeats.
    """
    while (further := _once(module, minimum)) is not module:
        module = further
    return module


def _once(module: Module, minimum: int) -> Module:
    """Roll every step function and merge state; the same object if nothing repeats.

    Every roll leaves fewer nodes that compute, so this ends.
    """
    rolled = {name: roll_function(function, minimum) for name, function in module.steps.items()}
    if all(rolled[name] is module.functions[name] for name in rolled):
        return module
    return merge_states(module.replace(functions={**module.functions, **rolled}))


def roll_function(function: Function, minimum: int = 2, shared: Collection[Value] = ()) -> Function:
    """Roll one function and then the bodies of its loops and branches.

    `shared` are inputs that belong to no single layer: they may be read, but not stacked.
    """
    table = SymbolTable()
    current = function
    while (changed := _one_pass(current, table, minimum, shared)) is not None:
        current = changed
    return _roll_regions(current, minimum)


def _one_pass(
    function: Function, table: SymbolTable, minimum: int, shared: Collection[Value]
) -> Function | None:
    """Apply the best plans that do not overlap; None if there is none."""
    current, used = share_early(function), set[Node]()
    plans = _plans(current, table, minimum, shared)
    for plan in sorted(plans, key=lambda plan: -plan.saving):
        changed = apply_plan(current, plan) if used.isdisjoint(plan.nodes) else None
        if changed is not None:
            current = changed
            used |= plan.nodes
    if not used:
        return None
    return remove_dead(undo_restacking(current))


def _plans(
    function: Function, table: SymbolTable, minimum: int, shared: Collection[Value]
) -> list[Plan]:
    """Plans for the longest repetitions."""
    literal, early = literals(function), early_nodes(function)
    sequence = [node for node in function.nodes if node not in early]
    symbol = lambda node: table.number(node, literal)  # noqa: E731
    invariant = _computed_from(function, shared, literal)
    given = Sequenced(function, sequence, early, symbol, literal, invariant)
    symbols = [symbol(node) for node in sequence]
    runs = {*find_runs(symbols), *find_runs(with_distances(sequence, symbols))}
    return plans_for(given, sorted(runs, key=Run.order), minimum)


def _computed_from(
    function: Function, values: Collection[Value], constants: Collection[Value]
) -> set[Value]:
    """The values, and what is computed from them and constants alone."""
    found = set(values)
    for node in function.nodes if found else ():
        rest = [value for value in node.operands if value not in constants]
        if rest and all(value in found for value in rest):
            found.update(node.results)
    return found


def _roll_regions(function: Function, minimum: int) -> Function:
    nodes = tuple(_with_rolled_regions(node, minimum) for node in function.nodes)
    if all(a is b for a, b in zip(nodes, function.nodes, strict=True)):
        return function
    return function.replace(nodes=nodes)


def _with_rolled_regions(node: Node, minimum: int) -> Node:
    counts = _shared_counts(node)
    regions = tuple(
        roll_function(region, minimum, region.inputs[:count])
        for region, count in zip(node.regions, counts, strict=False)
    )
    if all(a is b for a, b in zip(regions, node.regions, strict=False)):
        return node
    return node.replace(regions=regions)


def _shared_counts(node: Node) -> list[int]:
    """For each region that may be rolled, how many of its first inputs are the same in each step.

    None of a group's: it is one kernel, and stays as it was drawn.
    """
    if node.op == "scan":
        return [node.attribute("consts")]
    if node.op == "while":
        return [node.attribute("condition_consts"), node.attribute("body_consts")]
    return [0] * len(node.regions) if node.op == "cond" else []


__all__ = ["roll", "roll_function", "unmerged_states"]
