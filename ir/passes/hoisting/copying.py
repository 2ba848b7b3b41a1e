"""Copies of nodes with results of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tkcc.ir.graph import Function, Node, Value, fresh_like


def copy_nodes(nodes: Iterable[Node], known: dict[Value, Value]) -> list[Node]:
    """The nodes with new results, reading `known[v]` for v; `known` gains the results."""
    copies = []
    for node in nodes:
        results = fresh_like(node.results)
        known.update(zip(node.results, results, strict=True))
        operands = tuple(known[value] for value in node.operands)
        copies.append(node.replace(operands=operands, results=results))
    return copies


def ancestors(function: Function, values: Sequence[Value]) -> list[Node]:
    """The function's nodes that the values need, in order."""
    needed, found = set(values), []
    for node in reversed(function.nodes):
        if any(value in needed for value in node.results):
            found.append(node)
            needed.update(node.operands)
    return found[::-1]


def inputs_read(function: Function, nodes: Sequence[Node]) -> list[int]:
    """Positions of the inputs that the nodes read."""
    used = {value for node in nodes for value in node.operands}
    return [i for i, value in enumerate(function.inputs) if value in used]


def own_regions(function: Function, seen: set[Value] | None = None) -> Function:
    """The function with no value defined at two places: regions that nodes share are copied."""
    seen = set() if seen is None else seen
    nodes = []
    for node in function.nodes:
        regions = tuple(_own(region, seen) for region in node.regions)
        same = all(a is b for a, b in zip(regions, node.regions, strict=True))
        nodes.append(node if same else node.replace(regions=regions))
    if all(a is b for a, b in zip(nodes, function.nodes, strict=True)):
        return function
    return function.replace(nodes=tuple(nodes))


def _own(region: Function, seen: set[Value]) -> Function:
    if not seen.isdisjoint(_defined(region)):
        known = dict(zip(region.inputs, fresh_like(region.inputs), strict=True))
        nodes = tuple(copy_nodes(region.nodes, known))
        outputs = tuple(known[value] for value in region.outputs)
        inputs = tuple(known[value] for value in region.inputs)
        region = region.replace(inputs=inputs, nodes=nodes, outputs=outputs)
    seen.update(_defined(region))
    return own_regions(region, seen)


def _defined(function: Function) -> list[Value]:
    return [*function.inputs, *(value for node in function.nodes for value in node.results)]
