"""Recognise mixtures of experts: routing, and experts as products over all experts.

Experts come first: the shares of a token are read back to weights and ids, so that the named op
takes both. Routing is recognised only where its ids feed experts (a top-k of logits is sampling
elsewhere), and only with scores in float32: which experts are chosen must not change.
"""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.axes import Dim, Dims, axes_in, flat
from tkcc.ir.reading.build import arrange, convert
from tkcc.ir.reading.dots import read_dot, read_sum
from tkcc.ir.reading.experts import Experts, read_experts
from tkcc.ir.reading.shares import Chosen, read_shares
from tkcc.ir.reading.views import Reader, View
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Experts and the choice among them, for tokens over `tokens`."""

    experts: Experts
    chosen: Chosen
    tokens: Dim


@node_rule("lax.dot_general", "lax.reduce_sum", group="raise")
def raise_moe_experts(editor: Editor, node: Node) -> Replacement | None:
    """sum over experts of share * down(act(gate(x)) * up(x)) -> moe_experts, where a token's shares
    are its weights at its ids and zero elsewhere."""
    reader = Reader(editor.node_of)
    result, dims = node.results[0], reader.view(node.results[0]).dims
    for output, share, experts in _weighted_outputs(reader, node, dims):
        found = read_experts(reader, editor.is_parameter, output, experts)
        chosen = read_shares(reader, share, experts) if found is not None else None
        if found is None or chosen is None:
            continue
        target = rounded_result(editor, result, found.x.dtype)
        if target is not None:
            value = build_experts(editor, reader, found, chosen, dims)
            return None if value is None else {target: value}
    return None


def _weighted_outputs(reader: Reader, node: Node, dims: Dims) -> list[tuple[View, View, Dim]]:
    """(outputs, shares, experts) of a sum over experts of outputs * shares."""
    if node.op == "lax.dot_general":
        dot = read_dot(reader, node, dims)
        return [(dot.left, dot.right, dot.summed), (dot.right, dot.left, dot.summed)]
    found = read_sum(reader, View(node.results[0], dims))
    if found is None or len(found[1]) != 1:
        return []
    inner, (experts,) = found
    product = reader.base(inner, rounding=True)
    times = reader.node(product)
    if times is None or times.op != "lax.mul":
        return []
    left, right = reader.operands(times, product.dims)
    return [
        (reader.base(one, widening=True), two, experts)
        for one, two in ((left, right), (right, left))
    ]


def rounded_result(editor: Editor, value: Value, dtype: str) -> Value | None:
    """The value, or what it is rounded to before anybody reads it, if that has x's dtype."""
    if value.type.dtype == dtype:
        return value
    users = editor.users(value)
    if len(users) != 1 or editor.use_count(value) != 1:
        return None
    rounded = users[0].op == "lax.convert_element_type"
    return users[0].results[0] if rounded and users[0].results[0].type.dtype == dtype else None


def build_experts(
    editor: Editor, reader: Reader, found: Experts, chosen: Chosen, dims: Dims
) -> Value | None:
    """moe_experts laid out as `dims` (tokens and output channels); None if tokens do not fit."""
    outputs = found.outputs
    x = reader.resolve(found.x)
    tokens = tuple(d for d in flat(x.dims) if d not in found.channels)
    rows = axes_in((tokens,))
    choices = reader.axes.parts(chosen.choices)
    weights, ids = reader.resolve(chosen.weights), reader.resolve(chosen.ids)
    same = weights.axes == ids.axes == rows | axes_in((choices,))
    if not same or axes_in(dims) != rows | axes_in((outputs,)) or ids.dtype[0] not in "iu":
        return None
    middle = (found.experts, found.channels, found.hidden)
    (out,) = editor.add(
        "moe_experts",
        arrange(editor, x, (tokens, found.channels)),
        convert(editor, arrange(editor, weights, (tokens, choices)), "f32"),
        convert(editor, arrange(editor, ids, (tokens, choices)), "i32"),
        arrange(editor, found.gate, middle),
        arrange(editor, found.up, middle),
        arrange(editor, found.down, (found.experts, found.hidden, outputs)),
        attributes={"activation": found.activation},
    )
    return arrange(editor, View(out, (tokens, outputs)), reader.axes.resolve(dims))
