"""Take what is to be hoisted out of the bodies of scans: one scan becomes two.

    scan(x, w) { y = f(w); return g(x, y) }    becomes    ys = scan(w) { return f(w) }
                                                          scan(x, ys) { return g(x, y) }

The first one depends on parameters alone. Values that are the same in every step are computed
once, before both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tkcc.ir.graph import ARGUMENT, Function, Node, Value, fresh_like
from tkcc.ir.op import build
from tkcc.ir.passes.clean import with_operands
from tkcc.ir.passes.hoisting.copying import ancestors, copy_nodes, inputs_read
from tkcc.ir.passes.hoisting.flow import Fact, ParameterFlow


def split_scans(function: Function, flow: ParameterFlow, stored: set[Value]) -> Function:
    """The function with all stored values of scan bodies moved to its top level.

    `stored` and `flow.facts` gain the new values that hold them.
    """
    nodes: list[Node] = []
    for node in function.nodes:
        if node.op == "scan" and any(value not in flow.facts for value in node.results):
            nodes += _split(node, flow, stored)
        else:
            nodes.append(node)
    if all(a is b for a, b in zip(nodes, function.nodes, strict=False)) and len(nodes) == len(
        function.nodes
    ):
        return function
    return function.replace(nodes=tuple(nodes))


@dataclasses.dataclass
class _Parts:
    """A scan's operands and its body's inputs, by kind."""

    consts: list[tuple[Value, Value]]  # (operand, input of the body)
    carry: list[tuple[Value, Value]]
    slices: list[tuple[Value, Value]]

    @staticmethod
    def of(node: Node, body: Function) -> _Parts:
        pairs = list(zip(node.operands, body.inputs, strict=True))
        first = node.attribute("consts")
        last = first + node.attribute("carry")
        return _Parts(pairs[:first], pairs[first:last], pairs[last:])

    @property
    def all(self) -> list[tuple[Value, Value]]:
        return [*self.consts, *self.carry, *self.slices]


def _split(node: Node, flow: ParameterFlow, stored: set[Value]) -> list[Node]:
    body = split_scans(node.regions[0], flow, stored)
    wanted = flow.held(body, stored)
    if not wanted:
        return [node if body is node.regions[0] else node.replace(regions=(body,))]
    parts = _Parts.of(node, body)
    sliced = [value for value in wanted if node in flow.facts[value].loops]
    fixed = [value for value in wanted if node not in flow.facts[value].loops]
    lead, fixed_outside = _computed_once(body, parts, fixed)
    if sliced:
        first = _first_scan(node, body, parts, sliced)
        lead.append(first)
        parts.slices += zip(first.results, fresh_like(sliced), strict=True)
    parts.consts += zip(fixed_outside, fresh_like(fixed), strict=True)
    _note(flow, stored, node, fixed, fixed_outside)
    _note(flow, stored, node, sliced, lead[-1].results if sliced else ())
    return [*lead, _second_scan(node, body, parts, fixed, sliced)]


def _note(
    flow: ParameterFlow,
    stored: set[Value],
    scan: Node,
    inner: Sequence[Value],
    outer: Sequence[Value],
) -> None:
    """The outer values are stored now, and vary over the loops that are left."""
    for old, new in zip(inner, outer, strict=True):
        flow.facts[new] = Fact(new, flow.facts[old].loops - {scan})
    stored.update(outer)


def _computed_once(
    body: Function, parts: _Parts, values: Sequence[Value]
) -> tuple[list[Node], list[Value]]:
    """Nodes outside the scan for values that are the same in every step, and their results."""
    known = {inner: outer for outer, inner in parts.consts}
    nodes = copy_nodes(ancestors(body, values), known)
    return nodes, [known[value] for value in values]


def _first_scan(node: Node, body: Function, parts: _Parts, values: Sequence[Value]) -> Node:
    """A scan that only computes the values, stacked."""
    nodes = ancestors(body, values)
    used = [parts.all[i] for i in inputs_read(body, nodes)]
    assert not any(pair in parts.carry for pair in used), "a carry depends on the step"
    consts = sum(pair in parts.consts for pair in used)
    inputs = fresh_like([inner for _, inner in used])
    known = dict(zip([inner for _, inner in used], inputs, strict=True))
    copies = tuple(copy_nodes(nodes, known))
    made = Function(inputs, copies, tuple(known[value] for value in values))
    attributes = {"consts": consts, "carry": 0, "length": node.attribute("length")}
    operands = [outer for outer, _ in used]
    return build("scan", *operands, attributes=attributes, regions=[made], source=node.source)


def _second_scan(
    node: Node, body: Function, parts: _Parts, fixed: Sequence[Value], sliced: Sequence[Value]
) -> Node:
    """The scan with the values as further inputs of its body."""
    new = [inner for _, inner in parts.consts[len(parts.consts) - len(fixed) :]]
    new += [inner for _, inner in parts.slices[len(parts.slices) - len(sliced) :]]
    replaced = dict(zip([*fixed, *sliced], new, strict=True))
    inputs = tuple(inner for _, inner in parts.all)
    changed = body.replace(
        inputs=inputs,
        roles=(ARGUMENT,) * len(inputs),
        nodes=tuple(with_operands(inner, replaced) for inner in body.nodes),
        outputs=tuple(replaced.get(value, value) for value in body.outputs),
    )
    made = build(
        "scan",
        *(outer for outer, _ in parts.all),
        attributes={**dict(node.attributes), "consts": len(parts.consts)},
        regions=[changed],
        source=node.source,
    )
    return made.replace(results=node.results)
