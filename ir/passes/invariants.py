"""What a scan's steps share: computed inside for reading, outside for running.

Masks and tables of cos and sin are often computed once, before the loop over layers. `sink` copies
such computations into the loop's body, so that rules see them where they are used; `lift` moves
what does not change from step to step out of the body again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tkcc.ir.graph import PARAMETER, Function, Module, Node, Value, fresh_like
from tkcc.ir.op import build
from tkcc.ir.passes.clean import each_function, remove_dead, with_operands

_TELLING = frozenset(
    ["lax.cos", "lax.sin", "lax.lt", "lax.le", "lax.gt", "lax.ge", "lax.eq", "lax.select_n"]
)
_CHEAP = _TELLING | frozenset(
    [
        "constant",
        "lax.iota",
        "lax.add",
        "lax.sub",
        "lax.mul",
        "lax.div",
        "lax.neg",
        "lax.pow",
        "lax.exp",
        "lax.and",
        "lax.or",
        "lax.not",
        "lax.ne",
        "lax.convert_element_type",
        "lax.reshape",
        "lax.broadcast_in_dim",
        "lax.transpose",
        "lax.squeeze",
        "lax.concatenate",
        "lax.stack",
        "lax.slice",
        "lax.dynamic_slice",
        "lax.gather",
        "lax.complex",
        "lax.real",
        "lax.imag",
        "lax.integer_pow",
        "lax.max",
        "lax.min",
    ]
)
_TRIVIAL = frozenset(["constant", "lax.iota", "lax.broadcast_in_dim", "lax.reshape"])
_LARGEST_CONE = 60  # nodes
_SMALL = 1 << 16  # elements; larger things that parameters alone give stay where they are


def sink(module: Module) -> Module:
    """Copy cheap computations of masks and angles into the scans that read them."""
    return each_function(module, lambda f: _sink_function(f, f.inputs_of(PARAMETER)))


def _sink_function(function: Function, parameters: Collection[Value]) -> Function:
    alone = _from_parameters(function, parameters)
    # Values whose computation may be copied: the place of the node, and the node.
    known = {
        value: (place, node)
        for place, node in enumerate(function.nodes)
        for value in node.results
        if _is_cheap(node) and (value not in alone or value.type.size <= _SMALL)
    }
    nodes = []
    for node in function.nodes:
        if node.op == "scan":
            node = _sink_into(node, known)
        if node.op in ("scan", "while", "cond"):
            inner = [_sink_function(region, _own(node, region, alone)) for region in node.regions]
            node = node.replace(regions=tuple(inner))
        nodes.append(node)
    return remove_dead(function.replace(nodes=tuple(nodes)))


def _is_cheap(node: Node) -> bool:
    """Whether the node does no more than its result's size of simple work."""
    if node.op == "lax.dot_general":
        (summed, _), _ = node.attribute("dimension_numbers")
        return all(node.operands[0].type.shape[i] == 1 for i in summed)
    return node.op in _CHEAP


_Known = dict[Value, tuple[int, Node]]


def _sink_into(node: Node, known: _Known) -> Node:
    body, consts = node.regions[0], node.attribute("consts")
    cones = {i: _cone(node.operands[i], known) for i in range(consts)}
    sunk = [i for i, cone in cones.items() if cone]
    if not sunk:
        return node
    moved = {place: found for i in sunk for place, found in cones[i].items()}
    ordered = [moved[place] for place in sorted(moved)]
    inside = {value for n in ordered for value in n.results}
    leaves = list(dict.fromkeys(v for n in ordered for v in n.operands if v not in inside))
    renamed = dict(zip(leaves, fresh_like(leaves), strict=True))
    copies = [_copied(n, renamed) for n in ordered]
    kept = [i for i in range(len(node.operands)) if i not in sunk]
    replaced = {body.inputs[i]: renamed[node.operands[i]] for i in sunk}
    inner = [with_operands(n, replaced) for n in body.nodes]
    new_body = Function(
        (*(renamed[leaf] for leaf in leaves), *(body.inputs[i] for i in kept)),
        (*copies, *inner),
        tuple(replaced.get(value, value) for value in body.outputs),
    )
    operands = (*leaves, *(node.operands[i] for i in kept))
    return _scan(node, operands, new_body, consts + len(leaves) - len(sunk))


def _copied(node: Node, renamed: dict[Value, Value]) -> Node:
    """A copy with results of its own, which `renamed` then knows."""
    copy = with_operands(node, renamed).replace(results=fresh_like(node.results))
    renamed.update(zip(node.results, copy.results, strict=True))
    return copy


def _scan(node: Node, operands: Sequence[Value], body: Function, consts: int) -> Node:
    attributes = {**dict(node.attributes), "consts": consts}
    made = build("scan", *operands, attributes=attributes, regions=[body], source=node.source)
    return made.replace(results=node.results)


def _cone(value: Value, known: _Known) -> dict[int, Node]:
    """The cheap nodes behind a value by place, if they tell something; else none."""
    found: dict[int, Node] = {}
    stack = [value]
    while stack and len(found) <= _LARGEST_CONE:
        top = stack.pop()
        if top in known and known[top][0] not in found:
            place, node = known[top]
            found[place] = node
            stack += node.operands
    tells = any(node.op in _TELLING for node in found.values())
    return found if tells and len(found) <= _LARGEST_CONE else {}


def lift(module: Module) -> Module:
    """Move what is the same in every step of a scan in front of it."""
    return each_function(module, lambda f: _lift_function(f, f.inputs_of(PARAMETER)))


def _lift_function(function: Function, parameters: Collection[Value]) -> Function:
    alone = _from_parameters(function, parameters)
    nodes: list[Node] = []
    for node in function.nodes:
        if node.op in ("scan", "while", "cond"):
            inner = [_lift_function(region, _own(node, region, alone)) for region in node.regions]
            node = node.replace(regions=tuple(inner))
        nodes += _lifted(node, alone) if node.op == "scan" else [node]
    return function.replace(nodes=tuple(nodes))


def _own(node: Node, region: Function, alone: Collection[Value]) -> list[Value]:
    """The inputs of a scan's body that depend on parameters alone (of other regions: none)."""
    if node.op != "scan":
        return []
    first = node.attribute("consts")
    carried = range(first, first + node.attribute("carry"))
    pairs = enumerate(zip(node.operands, region.inputs, strict=True))
    return [inner for i, (outer, inner) in pairs if outer in alone and i not in carried]


def _from_parameters(function: Function, parameters: Collection[Value]) -> set[Value]:
    """Values that depend on parameters and constants alone."""
    alone = set(parameters)
    for node in function.nodes:
        if all(value in alone for value in node.operands):
            alone.update(node.results)
    return alone


def _lifted(node: Node, alone: Collection[Value]) -> list[Node]:
    """The invariant nodes of a scan's body, and the scan without them."""
    body, consts = node.regions[0], node.attribute("consts")
    outer = dict(zip(body.inputs[:consts], node.operands[:consts], strict=True))
    steady, free = set(outer), set[Value]()  # free: made of constants alone
    fixed = {inner for inner, value in outer.items() if value in alone}
    moved: list[Node] = []
    for item in body.nodes:
        if item.regions or not all(v in steady or v in free for v in item.operands):
            continue
        if not any(v in steady for v in item.operands):
            free.update(item.results)
            if item.op not in _TRIVIAL:
                moved.append(item)
            continue
        if all(v in fixed or v in free for v in item.operands):
            if any(v.type.size > _SMALL for v in item.results):
                continue
            fixed.update(item.results)
        steady.update(item.results)
        moved.append(item)
    return _apart(node, body, outer, moved) if moved else [node]


def _apart(
    node: Node, body: Function, outer: dict[Value, Value], moved: Sequence[Node]
) -> list[Node]:
    consts = node.attribute("consts")
    copies: list[Node] = []
    renamed = dict(outer)
    definitions = body.definitions
    for item in _with_constants(moved, definitions, outer):
        copies.append(_copied(item, renamed))
    gone = {value for item in moved for value in item.results}
    left = [item for item in body.nodes if item.results[0] not in gone]
    read = {v for item in left for v in item.operands} | set(body.outputs)
    needed = [value for item in moved for value in item.results if value in read]
    inputs = (*needed, *body.inputs)
    operands = (*(renamed[value] for value in needed), *node.operands)
    inner = Function(inputs, tuple(left), body.outputs)
    return [*copies, _scan(node, operands, inner, consts + len(needed))]


def _with_constants(
    moved: Sequence[Node], definitions: dict[Value, tuple[Node, int]], outer: dict[Value, Value]
) -> list[Node]:
    """The nodes, each after those made of constants alone that it reads."""
    order: list[Node] = []
    done: set[Value] = set(outer)

    def visit(item: Node) -> None:
        if item.results[0] in done:
            return
        done.update(item.results)
        for value in item.operands:
            if value not in done:
                visit(definitions[value][0])
        order.append(item)

    for item in moved:
        visit(item)
    return order
