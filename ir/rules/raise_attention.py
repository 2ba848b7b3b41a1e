"""Recognise softmax attention.

The product of probabilities with values is the start; from there the code is read back through
layout ops in named axes (`tkcc.ir.reading.attention`), so the order of dimensions, repeated or
grouped key heads, and the place where the scale is applied do not matter.

The named op keeps scores in float32 until the probabilities are rounded, so roundings of scores to
bfloat16 on the way disappear; no rounding is added. A query that sees no key gives zeros: where
the plain code gives NaN (masks with -inf) that is a change for the better; where it gives the mean
of all values (masks with a large finite number) the mask is kept as a bias, unless it is made of
bounds by positions (which must not be negative) and lengths (which must not be zero), under which
every query sees a key.
"""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.attention import (
    Probabilities,
    ScoreReader,
    Scores,
    read_probabilities,
)
from tkcc.ir.reading.axes import Dim, Dims, axes_in, flat
from tkcc.ir.reading.bounds import Groups
from tkcc.ir.reading.build import arrange, convert
from tkcc.ir.reading.dots import plain_precision, read_dot
from tkcc.ir.reading.heads import find_groups
from tkcc.ir.reading.scalars import short
from tkcc.ir.reading.views import Reader, View, holds_all, origin
from tkcc.ir.reading.visible import decide_visible
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule


@dataclasses.dataclass(frozen=True)
class _Plain:
    """Plain attention, its operands as far back as they could be read."""

    q: View
    k: View
    v: View
    groups: Groups
    scores: Scores
    rounded: str  # the narrowest dtype of the probabilities


@node_rule("lax.dot_general", group="raise")
def raise_attention(editor: Editor, node: Node) -> Replacement | None:
    """softmax(scale * q . k, masked) . v -> attention(q, k, v)."""
    if not plain_precision(node):
        return None
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    dot = read_dot(reader, node, dims)
    for weights, values in ((dot.left, dot.right), (dot.right, dot.left)):
        found = read_probabilities(reader, editor, weights, dot.summed)
        plain = _read(reader, editor, found, values, dot.summed) if found is not None else None
        if plain is not None:
            result = _build(editor, reader, plain, View(node.results[0], dims))
            return None if result is None else {node.results[0]: result}
    return None


def _read(
    reader: Reader, editor: Editor, found: Probabilities, values: View, keys: Dim
) -> _Plain | None:
    scores = ScoreReader(reader, editor).read(found.scores)
    if scores is None:
        return None
    v = reader.base(values, widening=True)
    sides = [reader.resolve(scores.left), reader.resolve(scores.right)]
    keys, channels = reader.axes.parts(keys), reader.axes.parts(scores.summed)
    if not axes_in((keys,)) <= sides[1].axes:
        sides.reverse()
    q, k = sides
    rows = reader.resolve(found.scores)
    groups = find_groups(
        reader,
        q,
        k,
        v,
        scores=rows,
        repeated=axes_in(reader.axes.resolve(scores.paired)) - k.axes,
        keys=keys,
        channels=channels,
        outputs=tuple(digit for digit in flat(v.dims) if digit not in rows.axes),
        tests=scores.tests,
    )
    return None if groups is None else _Plain(q, k, v, groups, scores, found.rounded)


def _build(editor: Editor, reader: Reader, plain: _Plain, result: View) -> Value | None:
    groups = plain.groups
    visible = decide_visible(editor, reader, plain.scores, groups)
    if visible is None:
        return None
    heads = (*groups.heads, *groups.repeats)
    dtypes = _dtypes(plain, result.dtype)
    rows = (groups.batch, groups.queries, heads)
    q = arrange(editor, plain.q, (*rows, groups.channels), expand=_lacks(plain.q, groups))
    layout, middle = _key_layout(plain.k, groups)
    k = arrange(editor, plain.k, (groups.batch, *middle, groups.channels))
    v = arrange(editor, plain.v, (groups.batch, *middle, groups.outputs))
    (out,) = editor.add(
        "attention",
        convert(editor, q, dtypes[0]),
        convert(editor, k, dtypes[1]),
        convert(editor, v, dtypes[2]),
        optional=visible.operands,
        attributes={**visible.attributes, "scale": _scale(plain), "layout": layout},
    )
    whole = View(out, (*rows, groups.outputs))
    laid_out = arrange(editor, whole, reader.axes.resolve(result.dims))
    return convert(editor, laid_out, result.dtype)


def _lacks(q: View, groups: Groups) -> bool:
    """Whether q is the same for several batch rows or heads, so that it must be repeated."""
    return not axes_in((groups.batch, groups.heads)) <= q.axes


def _key_layout(k: View, groups: Groups) -> tuple[str, Dims]:
    """The cache layout that needs no transpose, and its middle dimensions."""
    order = flat(k.dims)
    first = {digit: place for place, digit in enumerate(order)}
    heads_first = bool(groups.heads) and bool(groups.keys)
    if heads_first and first[groups.heads[0]] < first[groups.keys[0]]:
        return "bhsd", (groups.heads, groups.keys)
    return "bshd", (groups.keys, groups.heads)


def _dtypes(plain: _Plain, result: str) -> tuple[str, str, str]:
    """Dtypes of q, k and v with which the op rounds nothing that the plain code does not round.

    The op rounds k to q's dtype, the probabilities to v's and the result to q's.
    """
    q, k, v = plain.q.dtype, plain.k.dtype, plain.v.dtype
    for wanted in (result, k):
        if not holds_all(q, wanted):
            q = wanted if holds_all(wanted, q) else "f32"
    if not holds_all(v, plain.rounded):
        v = plain.rounded if holds_all(plain.rounded, v) else "f32"
    return q, k, v


def _scale(plain: _Plain) -> float:
    return short(plain.scores.scale, "f32") if plain.q.dtype != "f64" else plain.scores.scale


@node_rule("lax.convert_element_type", group="raise")
def raise_narrow_attention(editor: Editor, node: Node) -> Replacement | None:
    """attention of q widened to float32, rounded to q's dtype: attention of q, which works in
    float32 and rounds once, if k holds no more than that dtype does."""
    reader = Reader(editor.node_of)
    current: View | None = reader.view(node.operands[0])
    dims = current.dims if current is not None else ()
    while current is not None and editor.use_count(current.value) == 1:
        made = reader.node(current)
        if made is not None and made.op == "attention":
            value = _narrow(editor, made, node.results[0].type.dtype)
            whole = View(value, reader.resolve(current).dims) if value is not None else None
            if whole is None:
                return None
            return {node.results[0]: arrange(editor, whole, reader.axes.resolve(dims))}
        current = reader.back(current)
    return None


def _narrow(editor: Editor, made: Node, dtype: str) -> Value | None:
    q, k, v = made.positional
    narrow_q, narrow_k = origin(editor.node_of, q), origin(editor.node_of, k)
    if narrow_q.type.dtype != dtype or not holds_all(dtype, narrow_k.type.dtype):
        return None
    (out,) = editor.add(
        "attention",
        narrow_q,
        narrow_k,
        v,
        optional={key: made.optional(key) for key in made.keys},
        attributes=dict(made.attributes),
    )
    return out
