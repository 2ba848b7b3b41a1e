"""Recognise products with weights.

A weight is a value that depends on parameters alone; products of two activations stay
`lax.dot_general` (declare parameters when lowering: `lower(f, w, x, parameters=("w",))`).
"""

from __future__ import annotations

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.axes import Dim, Dims, axes_in, flat
from tkcc.ir.reading.build import arrange
from tkcc.ir.reading.dots import plain_precision, read_dot
from tkcc.ir.reading.views import Reader, View, holds_all, widens
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule

_ACCUMULATED = ("bf16", "f16", "f32", "f64")


@node_rule("lax.dot_general", group="raise")
def raise_linear(editor: Editor, node: Node) -> Replacement | None:
    """A product with a weight over the last axes of x, of any rank on both sides: linear.

    Weights and x of more dimensions are reshaped (and transposed where the order differs).
    """
    dtype = _exact_dtype(node)
    (summed, _), (batch, _) = node.attribute("dimension_numbers")
    if dtype is None or batch or not summed:
        return None
    left, right = map(editor.is_parameter, node.operands)
    if left == right:
        return None
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    dot = read_dot(reader, node, dims)
    x, w = (dot.left, dot.right) if right else (dot.right, dot.left)
    return {node.results[0]: _linear(editor, reader, x, w, dot.summed, dims)}


def _exact_dtype(node: Node) -> str | None:
    """The result's dtype, if the op gives it with the same roundings: the wider operand's."""
    left, right, result = (v.type.dtype for v in (*node.operands, *node.results))
    wider = left if holds_all(left, right) else right
    known = wider in _ACCUMULATED and holds_all(wider, left) and holds_all(wider, right)
    return result if known and result == wider and plain_precision(node) else None


def _linear(editor: Editor, reader: Reader, x: View, w: View, summed: Dim, dims: Dims) -> Value:
    stored = reader.base(w)
    x, w = reader.resolve(x), reader.resolve(w)
    w = stored if stored.axes == w.axes else w  # not through a broadcast
    summed, dims = reader.axes.parts(summed), reader.axes.resolve(dims)
    axes = axes_in((summed,))
    lead = tuple(dim for dim in x.dims if not axes & set(dim))
    outputs = tuple(digit for dim in w.dims for digit in dim if digit not in axes)
    depth = tuple(digit for digit in flat(x.dims) if digit in axes)
    transposed = flat(w.dims) != (*depth, *outputs) and flat(w.dims) == (*outputs, *depth)
    matrix = arrange(editor, w, (outputs, depth) if transposed else (depth, outputs))
    rows = arrange(editor, x, (*lead, depth))
    y = editor.add("linear", rows, matrix, attributes={"transposed": transposed})[0]
    return arrange(editor, View(y, (*lead, outputs)), dims)


@node_rule("lax.add", group="raise")
def raise_linear_bias(editor: Editor, node: Node) -> Replacement | None:
    """linear(x, w) + b, b over the outputs -> linear(x, w, bias=b); through reshapes of both."""
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    for side in (0, 1):
        if node.operands[side].type != node.results[0].type:
            continue
        product = _alone(editor, reader, reader.operand(node, side, dims))
        if product is None:
            continue
        linear, y = product
        bias = reader.base(reader.operand(node, 1 - side, dims), widening=True)
        y, bias = reader.resolve(y), reader.resolve(bias)
        fits = flat(bias.dims) == y.dims[-1] and editor.is_parameter(bias.value)
        if fits and holds_all(y.dtype, bias.dtype):
            (out,) = editor.add(
                "linear",
                *linear.positional,
                optional={"bias": arrange(editor, bias, (y.dims[-1],))},
                attributes=dict(linear.attributes),
            )
            return {node.results[0]: arrange(editor, View(out, y.dims), reader.axes.resolve(dims))}
    return None


def _alone(editor: Editor, reader: Reader, view: View) -> tuple[Node, View] | None:
    """The linear without bias that a value is a layout of, if nobody else reads either."""
    current: View | None = view
    while current is not None and editor.use_count(current.value) == 1:
        node = reader.node(current)
        if node is not None and node.op == "linear":
            return None if node.keys else (node, current)
        current = reader.back(current)
    return None


@node_rule("lax.convert_element_type", group="raise")
def raise_narrow_linear(editor: Editor, node: Node) -> Replacement | None:
    """A product of widened (or short) operands in float32, rounded to their dtype -> linear.

    bfloat16 products are exact in float32, and linear accumulates in float32.
    """
    dot = editor.node_of(node.operands[0])
    if dot is None or editor.use_count(dot.results[0]) != 1:
        return None
    if dot.op == "lax.dot_general":
        return _from_dot(editor, node, dot)
    if dot.op != "linear" or dot.keys:
        return None
    operands = [_narrow(editor, value, node.results[0]) for value in dot.positional]
    if any(value is None for value in operands) or dot.results[0].type.dtype != "f32":
        return None
    x, w = (value for value in operands if value is not None)
    return {node.results[0]: editor.add("linear", x, w, attributes=dict(dot.attributes))[0]}


def _narrow(editor: Editor, value: Value, result: Value) -> Value | None:
    """The value in the result's dtype, if it was widened from that."""
    node = editor.node_of(value)
    if node is None or not widens(node):
        return None
    before = node.operands[0]
    return before if before.type.dtype == result.type.dtype else None


def _from_dot(editor: Editor, node: Node, dot: Node) -> Replacement | None:
    """A dot_general of short floats with a float32 result that is rounded to their dtype."""
    dtype = node.results[0].type.dtype
    (summed, _), (batch, _) = dot.attribute("dimension_numbers")
    if any(value.type.dtype != dtype for value in dot.operands) or batch or not summed:
        return None
    left, right = map(editor.is_parameter, dot.operands)
    if left == right or dtype not in ("bf16", "f16") or dot.results[0].type.dtype != "f32":
        return None
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    read = read_dot(reader, dot, dims)
    x, w = (read.left, read.right) if right else (read.right, read.left)
    return {node.results[0]: _linear(editor, reader, x, w, read.summed, dims)}
