"""Recognise softmax."""

from __future__ import annotations

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.axes import Dims
from tkcc.ir.reading.dots import read_sum, reduces_last
from tkcc.ir.reading.views import Reader, View
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule


@node_rule("lax.div", "lax.mul", group="raise")
def raise_softmax(editor: Editor, node: Node) -> Replacement | None:
    """exp(x - c) / sum(exp(x - c)) over the last axis, for any c that is constant along it.

    c is usually max(x), but softmax does not depend on it. A multiplication by 1 / sum counts too.
    """
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    for side in (0, 1) if node.op == "lax.mul" else (0,):
        exp = editor.node_of(node.operands[side])
        if exp is None or exp.op != "lax.exp" or exp.results[0].type != node.results[0].type:
            continue
        total = _denominator(reader, node, 1 - side, dims)
        if total is not None and _is_sum_of(reader, total, exp, dims):
            x = _without_shift(reader, exp.operands[0], dims)
            return {node.results[0]: editor.add("softmax", x)[0]}
    return None


def _denominator(reader: Reader, node: Node, side: int, dims: Dims) -> View | None:
    """What the node divides by: an operand of the division, or of 1 / it."""
    view = reader.operand(node, side, dims)
    if node.op == "lax.div":
        return view
    base = reader.base(view)
    inverse = reader.node(base)
    if inverse is None or inverse.op != "lax.div" or reader.scalar(inverse.operands[0]) != 1:
        return None
    return reader.operand(inverse, 1, base.dims)


def _is_sum_of(reader: Reader, total: View, exp: Node, dims: Dims) -> bool:
    """Whether `total` is the sum of exp's result over its last axis (JAX sums bfloat16 in float32
    and rounds the sum, as the reference of softmax does)."""
    found = read_sum(reader, total)
    if found is None:
        return False
    summed, reduced = found
    summed = reader.base(summed, widening=True)
    return summed.value is exp.results[0] and reduces_last(summed, reduced, dims)


def _without_shift(reader: Reader, value: Value, dims: Dims) -> Value:
    """x of `x - c` if c is constant along the last axis; else the value itself."""
    node = reader.define(value)
    if node is None or node.op != "lax.sub" or node.operands[0].type != value.type:
        return value
    shift = reader.base(reader.operand(node, 1, dims), widening=True)
    return value if set(dims[-1]) & shift.axes else node.operands[0]
