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

from tkcc.ir.graph import Function, Module, Node
from tkcc.ir.passes.clean import remove_dead
from tkcc.ir.passes.rolling.apply import apply_plan
from tkcc.ir.passes.rolling.periods import find_runs
from tkcc.ir.passes.rolling.plan import Plan, Sequenced, best_plan
from tkcc.ir.passes.rolling.rows import undo_restacking
from tkcc.ir.passes.rolling.state import merge_states, unmerged_states
from tkcc.ir.passes.rolling.symbols import SymbolTable, early_nodes, literals, share_early

_ROLLED_REGIONS = ("scan", "while", "cond")
_PLANS_PER_PASS = 32


def roll(module: Module, *, minimum: int = 2) -> Module:
    """The module with repeated layers of its step functions rolled into scans.

    A repetition is rolled if there are at least `minimum` copies, each copy reads a value of the
    one before, and the function gets smaller: by one node where copies have inputs of their own,
    else by 8 (short chains are better fused). Where per-layer state becomes one stacked state, the
    functions `_pack_state` and `_unpack_state` convert between the module's former state and the
    new one. State that stays apart is stacked and unstacked in every step: correct, but slower;
    `unmerged_states` lists it. Returns the same object if nothing repeats.
    """
    rolled = {name: roll_function(function, minimum) for name, function in module.steps.items()}
    if all(rolled[name] is module.functions[name] for name in rolled):
        return module
    return merge_states(module.replace(functions={**module.functions, **rolled}))


def roll_function(function: Function, minimum: int = 2) -> Function:
    """Roll one function and, innermost last, the bodies of its loops and branches."""
    table = SymbolTable()
    current = function
    while (changed := _one_pass(current, table, minimum)) is not None:
        current = changed
    return _roll_regions(current, minimum)


def _one_pass(function: Function, table: SymbolTable, minimum: int) -> Function | None:
    """Apply the best plans that do not overlap; None if there is none."""
    shared = share_early(function)
    plans = sorted(_plans(shared, table, minimum), key=lambda plan: -plan.saving)
    current, used = shared, set[Node]()
    for plan in plans:
        if used.isdisjoint(plan.nodes) and plan.nodes <= set(current.nodes):
            changed = apply_plan(current, plan)
            current = changed if changed is not None else current
            used |= plan.nodes if changed is not None else set()
    if not used:
        return None
    return remove_dead(undo_restacking(current))


def _plans(function: Function, table: SymbolTable, minimum: int) -> list[Plan]:
    """Plans for the longest repetitions."""
    literal, early = literals(function), early_nodes(function)
    sequence = [node for node in function.nodes if node not in early]
    given = Sequenced(function, sequence, early, lambda node: table.number(node, literal))
    found: list[Plan] = []
    for run in find_runs([given.symbol(node) for node in sequence]):
        plan = best_plan(given, run, minimum)
        if plan is not None:
            found.append(plan)
        if len(found) == _PLANS_PER_PASS:
            break
    return found


def _roll_regions(function: Function, minimum: int) -> Function:
    nodes = tuple(_with_rolled_regions(node, minimum) for node in function.nodes)
    if all(a is b for a, b in zip(nodes, function.nodes, strict=True)):
        return function
    return function.replace(nodes=nodes)


def _with_rolled_regions(node: Node, minimum: int) -> Node:
    if node.op not in _ROLLED_REGIONS:
        return node
    regions = tuple(roll_function(region, minimum) for region in node.regions)
    changed = any(a is not b for a, b in zip(regions, node.regions, strict=True))
    return node.replace(regions=regions) if changed else node


__all__ = ["roll", "roll_function", "unmerged_states"]
