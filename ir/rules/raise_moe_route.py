"""Recognise the routing of tokens to experts.

A top-k of scores is routing only where its ids feed experts (elsewhere it is sampling), and only
with scores in float32: which experts are chosen must not change.
"""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.build import reshape
from tkcc.ir.reading.dots import read_sum, reduces_last
from tkcc.ir.reading.rows import reads_along
from tkcc.ir.reading.scalars import short
from tkcc.ir.reading.views import Reader, origin
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule

_MOVES = ("lax.reshape", "lax.transpose", "lax.convert_element_type")
_SCORINGS = {"softmax": "softmax", "lax.logistic": "sigmoid"}
_SMALL = 1e-8  # beside a sum of weights, which is at least k / (number of experts) or not small


@dataclasses.dataclass(frozen=True)
class _Scores:
    """How the values that top_k reads come from logits; `plain` are the scores without bias."""

    scoring: str
    logits: Value
    plain: Value
    bias: Value | None = None


@node_rule("lax.top_k", group="raise")
def raise_moe_route(editor: Editor, node: Node) -> Replacement | None:
    """The k largest scores of each token, perhaps normalised -> moe_route, if experts read them."""
    (scores,), (values, ids) = node.operands, node.results
    last = node.attribute("axis") % scores.type.rank == scores.type.rank - 1
    if not last or scores.type.dtype != "f32" or not _feeds_experts(editor, ids):
        return None
    reader = Reader(editor.node_of)
    read = _scores(editor, reader, scores)
    if read.scoring == "softmax_topk":
        end = _softmax_of(editor, values)
        return None if end is None else _route(editor, node, read, end)
    weights = values if read.bias is None else _scores_at(editor, reader, read.plain, ids)
    if weights is None:
        return None
    normal = _normalized(editor, reader, weights)
    end, scale = _scaled(editor, reader, normal or weights)
    return _route(editor, node, read, end, normalize=normal is not None, scale=scale)


def _feeds_experts(editor: Editor, ids: Value) -> bool:
    """Whether experts read the ids, with nothing but moves in between."""
    stack, seen = [ids], set[Value]()
    while stack:
        value = stack.pop()
        for user in editor.users(value):
            if user.op == "moe_experts":
                return True
            if user.op in _MOVES and user.results[0] not in seen:
                seen.add(user.results[0])
                stack.append(user.results[0])
    return False


def _scores(editor: Editor, reader: Reader, scores: Value) -> _Scores:
    node = editor.node_of(scores)
    if node is not None and node.op in _SCORINGS:
        logits = origin(editor.node_of, node.operands[0])
        return _Scores(_SCORINGS[node.op], logits, scores)
    if node is not None and node.op == "lax.add":
        dims = reader.view(scores).dims
        for side in (0, 1):
            inner = editor.node_of(node.operands[side])
            bias = reader.base(reader.operand(node, 1 - side, dims), widening=True)
            if inner is None or inner.op not in _SCORINGS or bias.dims != (dims[-1],):
                continue
            logits = origin(editor.node_of, inner.operands[0])
            return _Scores(_SCORINGS[inner.op], logits, node.operands[side], bias.value)
    return _Scores("softmax_topk", origin(editor.node_of, scores), scores)


def _softmax_of(editor: Editor, values: Value) -> Value | None:
    users = editor.users(values)
    alone = len(users) == 1 == editor.use_count(values)
    return users[0].results[0] if alone and users[0].op == "softmax" else None


def _scores_at(editor: Editor, reader: Reader, scores: Value, ids: Value) -> Value | None:
    """take_along_axis(scores, ids, -1), where it is made from these ids."""
    for user in editor.users(scores):
        if user.op == "lax.gather" and reads_along(reader, user, ids):
            return user.results[0]
    return None


def _normalized(editor: Editor, reader: Reader, weights: Value) -> Value | None:
    """weights / sum(weights) over the last axis, if nobody else reads the weights."""
    users = editor.users(weights)
    quotient = next((u for u in users if u.op == "lax.div" and u.operands[0] is weights), None)
    if quotient is None or len(users) != 2 or editor.use_count(weights) != 2:
        return None
    dims = reader.view(weights).dims
    total = reader.base(reader.operand(quotient, 1, dims))
    node = reader.node(total)
    if node is not None and node.op == "lax.add":
        numbers = [reader.scalar(operand) for operand in node.operands]
        place = next((i for i, n in enumerate(numbers) if n is not None and 0 <= n <= _SMALL), None)
        if place is None:
            return None
        total = reader.operand(node, 1 - place, total.dims)
    found = read_sum(reader, total)
    if found is None or found[0].value is not weights or not reduces_last(*found, dims):
        return None
    return quotient.results[0]


def _scaled(editor: Editor, reader: Reader, weights: Value) -> tuple[Value, float]:
    """The weights times a number, if that is all that reads them; and the number."""
    users = editor.users(weights)
    if len(users) == 1 == editor.use_count(weights) and users[0].op == "lax.mul":
        for operand in users[0].operands:
            number = reader.scalar(operand) if operand is not weights else None
            if number is not None and users[0].results[0].type == weights.type:
                return users[0].results[0], short(number, "f32")
    return weights, 1.0


def _route(
    editor: Editor,
    node: Node,
    read: _Scores,
    end: Value,
    *,
    normalize: bool = True,
    scale: float = 1.0,
) -> Replacement:
    logits, experts = read.logits, read.logits.type.shape[-1]
    rows = reshape(editor, logits, (logits.type.size // experts, experts))
    weights, ids = editor.add(
        "moe_route",
        rows,
        optional={"bias": read.bias},
        attributes={
            "k": node.attribute("k"),
            "scoring": read.scoring,
            "normalize": normalize,
            "scale": scale,
        },
    )
    shape = node.results[1].type.shape
    return {
        end: reshape(editor, weights, shape),
        node.results[1]: reshape(editor, ids, shape),
    }
