"""FLOPs and bytes of nodes and functions, from shapes alone."""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.op import lookup


@dataclasses.dataclass(frozen=True)
class Cost:
    """`flops`: floating-point operations (a multiply-add counts two). `bytes`: read plus written,
    if every operand is read once from memory and every result written once."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, count: int) -> Cost:
        return Cost(self.flops * count, self.bytes * count)


def node_cost(node: Node) -> Cost:
    """Cost of one node, regions included (a scan counts every step, a while one iteration)."""
    flops = lookup(node.op).flops(node)
    if node.op == "scan":
        return Cost(flops, function_cost(node.regions[0]).bytes * int(node.attribute("length")))
    if node.op in ("while", "cond"):
        return Cost(flops, max(function_cost(region).bytes for region in node.regions))
    return Cost(flops, _traffic(node))


def _traffic(node: Node) -> int:
    if node.op == "constant":
        return 0
    special = _PARTIAL_READS.get(node.op)
    if special is not None:
        return special(node)
    operands = dict.fromkeys(node.operands)
    return _bytes(tuple(operands)) + _bytes(node.results)


def _bytes(values: tuple[Value, ...]) -> int:
    return sum(value.type.bytes for value in values)


def _rows_read(node: Node) -> int:
    """An embedding reads the rows it returns, not the table."""
    return 2 * node.results[0].type.bytes + node.operands[1].type.bytes


def _piece_written(node: Node) -> int:
    """A donated cache is written in place: the new piece is read and written."""
    return 2 * node.operands[1].type.bytes


_PARTIAL_READS = {
    "embedding": _rows_read,
    "lax.gather": _rows_read,
    "lax.dynamic_slice": lambda node: 2 * node.results[0].type.bytes,
    "lax.slice": lambda node: 2 * node.results[0].type.bytes,
    "update_cache": _piece_written,
    "update_stacked_cache": _piece_written,
    "take_row": lambda node: 2 * node.results[0].type.bytes,
    "lax.dynamic_update_slice": _piece_written,
}


def function_cost(function: Function) -> Cost:
    """Sum over the function's nodes."""
    return sum((node_cost(node) for node in function.nodes), Cost())
