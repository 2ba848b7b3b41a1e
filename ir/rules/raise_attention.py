"""Recognise softmax attention.

The product of probabilities with values is the start; from there the code is read back through
layout ops in named axes (`reading.attention`), so the order of dimensions, repeated or grouped key
heads, and the place where the scale is applied do not matter.

The named op keeps scores in float32 until the probabilities are rounded, so roundings of scores to
bfloat16 on the way disappear; no rounding is added. A query that sees no key gives zeros: where
the plain code gives NaN (masks with -inf) that is a change for the better; where it gives the mean
of all values (masks with a large finite number) the mask is kept as a bias, unless positions are
not negative and lengths not zero make sure that a key is seen.
"""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node, Value
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule
from tkcc.ir.rules.reading.attention import (
    Added,
    Hiding,
    Probabilities,
    ScoreReader,
    Scores,
    read_probabilities,
)
from tkcc.ir.rules.reading.axes import Dim, Dims, axes_in
from tkcc.ir.rules.reading.bounds import (
    Bounds,
    Groups,
    never_sees_a_key,
    read_bounds,
    sees_a_key,
)
from tkcc.ir.rules.reading.build import (
    arrange,
    binary,
    broadcast,
    constant,
    convert,
    full,
    form_value,
)
from tkcc.ir.rules.reading.dots import plain_precision, read_dot
from tkcc.ir.rules.reading.forms import Form
from tkcc.ir.rules.reading.heads import find_groups
from tkcc.ir.rules.reading.masks import Test
from tkcc.ir.rules.reading.scalars import short
from tkcc.ir.rules.reading.views import Reader, View, holds_all
from tkcc.ir.types import jax_dtype

import numpy as np


@dataclasses.dataclass(frozen=True)
class _Plain:
    """Plain attention: operands as far back as they could be read, and what the scores go through."""

    q: View
    k: View
    v: View
    groups: Groups
    scores: Scores
    rounded: str  # the narrowest dtype of the probabilities


@node_rule("lax.dot_general", group="raise")
def raise_attention(editor: Editor, node: Node) -> Replacement | None:
    """softmax(scale * q . k, masked) . v -> attention(q, k, v)."""
    if node.results[0].type.rank < 2 or not plain_precision(node):
        return None
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    dot = read_dot(reader, node, dims)
    for weights, values in ((dot.left, dot.right), (dot.right, dot.left)):
        if editor.is_parameter(values.value):
            continue
        found = read_probabilities(reader, editor, weights, dot.summed)
        plain = _read_plain(reader, editor, found, values, dot.summed) if found else None
        if plain is not None:
            result = _build(editor, reader, plain, View(node.results[0], dims))
            return None if result is None else {node.results[0]: result}
    return None


def _read_plain(
    reader: Reader, editor: Editor, found: Probabilities, values: View, keys: Dim
) -> _Plain | None:
    scores = ScoreReader(reader, editor).read(found.scores)
    if scores is None:
        return None
    keys = reader.axes.parts(keys)
    sides = [scores.left, scores.right]
    if not set(keys) <= sides[1].axes:
        sides.reverse()
    q, whole_k = sides
    k, v = reader.base(whole_k, widening=True), reader.base(values, widening=True)
    views = [reader.resolve(view) for view in (q, k, v, whole_k, values)]
    q, k, v, whole_k, values = views
    keys, channels = reader.axes.parts(keys), reader.axes.parts(scores.summed)
    outputs = tuple(
        d for d in _flat(v.dims) if d not in set(_flat(found_dims(reader, found))) and d not in keys
    )
    groups = find_groups(
        reader, q, k, v,
        repeated=whole_k.axes - k.axes,
        keys=keys,
        channels=channels,
        outputs=outputs,
        tests=[t for h in _tests(scores) for t in h],
    )
    return None if groups is None else _Plain(q, k, v, groups, scores, found.rounded)
