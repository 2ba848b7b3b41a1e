"""Rules over loops and branches."""

from __future__ import annotations

from typing import Any

import numpy as np

from tkcc.ir.attributes import Dense
from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.hashing import node_key
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule


@node_rule("scan", options={"k": (2, 3, 4, 5, 6, 8, 10)})
def unroll_scan(editor: Editor, node: Node, k: int) -> Replacement | None:
    """Lay k steps of a scan out in one iteration of the loop, where k divides its length."""
    length, unroll = node.attribute("length"), node.attribute("unroll")
    if unroll != 1 or k >= length or length % k:
        return None
    attributes = {**dict(node.attributes), "unroll": k}
    results = editor.add("scan", *node.operands, attributes=attributes, regions=node.regions)
    return dict(zip(node.results, results, strict=True))


@node_rule("cond")
def share_across_branches(editor: Editor, node: Node) -> Replacement | None:
    """Compute before a cond what all of its branches compute alike from its operands."""
    shared = _shared(node)
    if not shared:
        return None
    outer = dict(zip(node.regions[0].inputs, node.operands[1:], strict=True))
    moved: list[Value] = []
    for alike in shared:
        first = alike[0]
        results = editor.add(
            first.op,
            *(outer[v] for v in first.positional),
            optional={key: outer[first.optional(key)] for key in first.keys},  # type: ignore[index]
            attributes=dict(first.attributes),
            regions=first.regions,
        )
        outer.update(zip(first.results, results, strict=True))
        moved += results
    regions = [_without(region, i, shared) for i, region in enumerate(node.regions)]
    results = editor.add("cond", *node.operands, *moved, regions=regions)
    return dict(zip(node.results, results, strict=True))


def _shared(node: Node) -> list[list[Node]]:
    """Nodes that stand in every branch: one list per node, its twin of each branch in order."""
    if len(node.regions) < 2:
        return []
    canonical: list[dict[Any, Node]] = [_keyed(region) for region in node.regions]
    common = [key for key in canonical[0] if all(key in other for other in canonical[1:])]
    found = [[branch[key] for branch in canonical] for key in common]
    return [alike for alike in found if alike[0].op != "constant"]


def _keyed(region: Function) -> dict[Any, Node]:
    """Nodes that depend on inputs alone, by what they compute (inputs by position)."""
    name: dict[Value, Any] = {value: i for i, value in enumerate(region.inputs)}
    found: dict[Any, Node] = {}
    for node in region.nodes:
        if not node.operands or not all(value in name for value in node.operands):
            continue
        op, _, keys, attributes, regions = node_key(node)
        key = (op, tuple(name[v] for v in node.operands), keys, attributes, regions)
        found.setdefault(key, node)
        if found[key] is node:
            name.update({value: (key, i) for i, value in enumerate(node.results)})
    return found


def _without(region: Function, branch: int, shared: list[list[Node]]) -> Function:
    """The branch with the shared nodes' results as further inputs."""
    dropped = [alike[branch] for alike in shared]
    extra = tuple(value for node in dropped for value in node.results)
    gone = {node.results[0] for node in dropped}
    nodes = tuple(node for node in region.nodes if node.results[0] not in gone)
    return Function((*region.inputs, *extra), nodes, region.outputs)


MAX_UNROLLED_NODES = 20_000


@node_rule("scan")
def unroll_layers(editor: Editor, node: Node) -> Replacement | None:
    """Lay a scan out whole, with each layer's parameters kept as arrays of their own.

    A loop over stacked weights copies a slice of them in every iteration on some backends; here
    the slices are made once, in prepare.
    """
    length, body = node.attribute("length"), node.regions[0]
    if node.attribute("reverse") or length * len(body.nodes) > MAX_UNROLLED_NODES or not length:
        return None
    consts, carry = node.attribute("consts"), node.attribute("carry")
    state = list(node.operands[consts : consts + carry])
    stacked: list[list[Value]] = [[] for _ in node.results[carry:]]
    for layer in range(length):
        slices = [_row(editor, value, layer) for value in node.operands[consts + carry :]]
        inputs = (*node.operands[:consts], *state, *slices)
        outputs = _inlined(editor, body, dict(zip(body.inputs, inputs, strict=True)))
        state = outputs[:carry]
        for rows, value in zip(stacked, outputs[carry:], strict=True):
            rows.append(value)
    made = [*state, *(editor.add("stack", *rows)[0] for rows in stacked)]
    return dict(zip(node.results, made, strict=True))


def _row(editor: Editor, value: Value, layer: int) -> Value:
    """Row `layer` of a stacked value; of a parameter, as a parameter of its own."""
    index = editor.add("constant", attributes={"value": Dense.of(np.int32(layer))})[0]
    row = editor.add("take_row", value, index)[0]
    return editor.add("prepared", row)[0] if editor.is_parameter(value) else row


def _inlined(editor: Editor, body: Function, place: dict[Value, Value]) -> list[Value]:
    """The body's nodes once more, on the values that `place` gives for its inputs."""
    for node in body.nodes:
        results = editor.add(
            node.op,
            *(place[value] for value in node.positional),
            optional={key: place[node.optional(key)] for key in node.keys},  # type: ignore[index]
            attributes=dict(node.attributes),
            regions=node.regions,
            source=node.source,
        )
        place.update(zip(node.results, results, strict=True))
    return [place[value] for value in body.outputs]
