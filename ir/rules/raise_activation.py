"""Recognise activation functions and gated units.

A value is recognised by what it computes (`reading.curves`), so every spelling counts: gelu with
erf, erfc or tanh, silu as a product, a quotient or with tanh. `lax.tanh` and `lax.logistic` alone
are names already and stay.
"""

from __future__ import annotations

from tkcc.ir.graph import Node, Value
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule
from tkcc.ir.rules.reading.curves import curve_of

_CANDIDATES: dict[str, tuple[str, ...]] = {
    "lax.logistic": ("silu",),
    "lax.exp": ("silu",),
    "lax.tanh": ("gelu_tanh", "silu"),
    "lax.erf": ("gelu",),
    "lax.erfc": ("gelu",),
    "lax.max": ("relu",),
}
_FURTHEST = 5  # nodes from the characteristic one to the end
_DEEPEST = 6  # nodes from x to the characteristic one
_DTYPES = ("bf16", "f16", "f32", "f64")


@node_rule(*_CANDIDATES, group="raise")
def raise_activation(editor: Editor, node: Node) -> Replacement | None:
    """silu, gelu (erf or tanh) and relu of x, however written -> activation(x)."""
    type_ = node.results[0].type
    if type_.dtype not in _DTYPES or type_.rank == 0 or editor.is_parameter(node.results[0]):
        return None
    inputs = _before(editor, node)
    for result in _after(editor, node):
        for x in inputs:
            if x.type != result.type:
                continue
            kind = curve_of(editor.node_of, result, x, _CANDIDATES[node.op])
            if kind is not None:
                return {result: editor.add("activation", x, attributes={"kind": kind})[0]}
    return None


def _after(editor: Editor, node: Node) -> list[Value]:
    """Values of the same type that are made from the node's result, the furthest first."""
    found, frontier = [node.results[0]], [node.results[0]]
    for _ in range(_FURTHEST):
        users = [user for value in frontier for user in editor.users(value)]
        frontier = [
            user.results[0]
            for user in users
            if user.op in ("lax.mul", "lax.add", "lax.div", "lax.sub")
            and user.results[0].type == node.results[0].type
            and user.results[0] not in found
        ]
        frontier = list(dict.fromkeys(frontier))[:4]
        found += frontier
    return found[::-1]


def _before(editor: Editor, node: Node) -> list[Value]:
    """Values of the same type that the node's operand is made from, the nearest first."""
    found: list[Value] = []
    frontier = list(node.operands)
    while frontier and len(found) < _DEEPEST:
        value = frontier.pop(0)
        if value.type != node.results[0].type or value in found:
            continue
        found.append(value)
        made = editor.node_of(value)
        if made is not None and made.op.startswith("lax.") and len(made.results) == 1:
            frontier += made.operands
    return found


@node_rule("lax.mul", group="raise")
def raise_swiglu(editor: Editor, node: Node) -> Replacement | None:
    """activation(gate) * up, both of one type -> swiglu(gate, up)."""
    for gate, up in (node.operands, node.operands[::-1]):
        made = editor.node_of(gate)
        if made is None or made.op != "activation" or gate.type != up.type or gate is up:
            continue
        if editor.use_count(gate) != 1:
            continue
        kind = {"activation": made.attribute("kind")}
        return {node.results[0]: editor.add("swiglu", made.operands[0], up, attributes=kind)[0]}
    return None
