"""Recognise RMS norm and layer norm.

First x times (or over) the root of its mean square becomes `rms_normalize`, and the centred form
`layer_norm`; then weights, biases and conversions around them are taken in one by one.

The named ops compute in float32 and round once. Where plain code rounds before it multiplies by
the weight or adds the bias (as Llama in transformers does), that rounding is left out; no rounding
is added, so the error is never larger.
"""

from __future__ import annotations

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.axes import Dims
from tkcc.ir.reading.build import arrange, binary, convert, full
from tkcc.ir.reading.moments import Moment, read_root
from tkcc.ir.reading.scalars import short
from tkcc.ir.reading.views import Reader, View, origin
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule

_NORMS = ("rms_normalize", "rms_norm", "layer_norm")


@node_rule("lax.mul", "lax.div", group="raise")
def raise_norm(editor: Editor, node: Node) -> Replacement | None:
    """x / sqrt(mean(x * x) + eps) -> rms_normalize(x); x - mean(x) over the root of the variance
    -> layer_norm. Factors that the root was multiplied by first (a weight) are kept."""
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    for side in (0, 1) if node.op == "lax.mul" else (0,):
        x = node.operands[side]
        if x.type != node.results[0].type:
            continue
        other = reader.operand(node, 1 - side, dims)
        found = read_root(reader, other, dims, x, inverse=node.op == "lax.mul")
        if found is not None:
            normal = _normalized(editor, found.moment, x.type.dtype)
            for factor in found.factors:
                factor = convert(editor, factor, x.type.dtype)
                normal = binary(editor, "lax.mul", normal, factor)
            return {node.results[0]: normal}
    return None


def _normalized(editor: Editor, moment: Moment, dtype: str) -> Value:
    eps = moment.eps if dtype == "f64" else short(moment.eps, "f32")
    x = convert(editor, moment.x, dtype)
    if not moment.centred:
        return editor.add("rms_normalize", x, attributes={"eps": eps})[0]
    ones = full(editor, 1.0, dtype, x.type.shape[-1:])
    return editor.add("layer_norm", x, ones, attributes={"eps": eps})[0]


@node_rule("lax.mul", group="raise")
def raise_norm_weight(editor: Editor, node: Node) -> Replacement | None:
    """A norm without weight, times w over the last axis -> the norm with w (or 1 + w)."""
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    for side in (0, 1):
        norm = _norm(editor, node.operands[side], node.results[0])
        if norm is None or not _without_weight(reader, norm):
            continue
        weight = _per_channel(editor, reader, reader.operand(node, 1 - side, dims), dims)
        if weight is not None:
            return {node.results[0]: _weighted(editor, reader, norm, weight, node.results[0])}
    return None


@node_rule("lax.add", group="raise")
def raise_norm_bias(editor: Editor, node: Node) -> Replacement | None:
    """layer_norm(x, w) + b over the last axis -> layer_norm(x, w, bias=b)."""
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    for side in (0, 1):
        norm = _norm(editor, node.operands[side], node.results[0])
        if norm is None or norm.op != "layer_norm" or norm.keys:
            continue
        bias = _per_channel(editor, reader, reader.operand(node, 1 - side, dims), dims)
        if bias is not None:
            x, w = norm.positional
            return {
                node.results[0]: editor.add(
                    "layer_norm",
                    convert(editor, x, node.results[0].type.dtype),
                    w,
                    optional={"bias": arrange(editor, bias, (dims[-1],))},
                    attributes=dict(norm.attributes),
                )[0]
            }
    return None


@node_rule("lax.convert_element_type", group="raise")
def raise_narrow_norm(editor: Editor, node: Node) -> Replacement | None:
    """A norm of x widened to float32, rounded to x's dtype: the norm of x (it works in float32)."""
    norm = editor.node_of(node.operands[0])
    if norm is None or norm.op not in _NORMS or editor.use_count(norm.results[0]) != 1:
        return None
    x = origin(editor.node_of, norm.operands[0])
    if x.type != node.results[0].type or norm.results[0].type.dtype == "f64":
        return None
    (result,) = editor.add(
        norm.op,
        x,
        *norm.positional[1:],
        optional={key: norm.optional(key) for key in norm.keys},
        attributes=dict(norm.attributes),
    )
    return {node.results[0]: result}


def _norm(editor: Editor, value: Value, result: Value) -> Node | None:
    """The norm that a value is (or is widened from), if nobody else reads it."""
    before = origin(editor.node_of, value)
    node = editor.node_of(before)
    if node is None or node.op not in _NORMS or value.type != result.type:
        return None
    alone = editor.use_count(before) == 1 and editor.use_count(value) == 1
    return node if alone and (before is value or value.type.dtype != "f64") else None


def _without_weight(reader: Reader, norm: Node) -> bool:
    if norm.op == "rms_normalize":
        return True
    unit = norm.op == "layer_norm" and reader.scalar(norm.operands[1]) == 1
    return unit and not norm.keys


def _per_channel(editor: Editor, reader: Reader, view: View, dims: Dims) -> View | None:
    """The vector that a value is, repeated over all but the last axis; None if it is none."""
    base = reader.base(view, widening=True)
    vector = len(dims[-1]) == 1 and [d for dim in base.dims for d in dim] == list(dims[-1])
    if not vector or base.dtype not in ("bf16", "f16", "f32", view.dtype):
        return None
    return base if len(dims) > 1 or editor.is_parameter(base.value) else None


def _weighted(editor: Editor, reader: Reader, norm: Node, weight: View, result: Value) -> Value:
    x = convert(editor, norm.operands[0], result.type.dtype)
    plus_one, weight = _plus_one(reader, weight) if norm.op == "rms_normalize" else (False, weight)
    attributes = dict(norm.attributes)
    vector = arrange(editor, weight, tuple(dim for dim in weight.dims if dim))
    if norm.op == "layer_norm":
        return editor.add("layer_norm", x, vector, attributes=attributes)[0]
    attributes["plus_one"] = plus_one
    return editor.add("rms_norm", x, vector, attributes=attributes)[0]


def _plus_one(reader: Reader, weight: View) -> tuple[bool, View]:
    """(True, w) if the vector is 1 + w."""
    node = reader.node(weight)
    if node is not None and node.op == "lax.add":
        for side in (0, 1):
            other = node.operands[1 - side]
            if (
                reader.scalar(node.operands[side]) == 1
                and other.type.shape == weight.value.type.shape
            ):
                return True, reader.base(View(other, weight.dims), widening=True)
    return False, weight
