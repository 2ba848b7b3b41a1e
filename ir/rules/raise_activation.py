"""Recognise activation functions and gated units.

A value is recognised by what it computes (`tkcc.ir.reading.curves`), so every spelling counts:
gelu with erf, erfc or tanh, silu as a product, a quotient or with tanh. `lax.tanh` and
`lax.logistic` alone are names already and stay.
"""

from __future__ import annotations

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.curves import curve_of
from tkcc.ir.reading.scalars import scalar
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule

_CANDIDATES: dict[str, tuple[str, ...]] = {
    "lax.logistic": ("silu",),
    "lax.exp": ("silu",),
    "lax.tanh": ("gelu_tanh", "silu"),
    "lax.erf": ("gelu",),
    "lax.erfc": ("gelu",),
    "lax.max": ("relu",),
}
_ARITHMETIC = ("lax.mul", "lax.add", "lax.div", "lax.sub", "lax.neg")
_INNER = (*_ARITHMETIC, "lax.integer_pow", "lax.pow", "lax.square")
_FURTHEST = 8  # values that are tried as the result
_DEEPEST = 6  # values that are tried as x
_DTYPES = ("bf16", "f16", "f32", "f64")


@node_rule(*_CANDIDATES, group="raise")
def raise_activation(editor: Editor, node: Node) -> Replacement | None:
    """silu, gelu (erf or tanh) and relu of x, however written -> activation(x)."""
    type_ = node.results[0].type
    if type_.dtype not in _DTYPES or type_.rank == 0 or editor.is_parameter(node.results[0]):
        return None
    inputs = _before(editor, node)
    for result in _after(editor, node, inputs):
        for x in inputs:
            if x.type != result.type:
                continue
            kind = curve_of(editor.node_of, result, x, _CANDIDATES[node.op])
            if kind is not None:
                return {result: editor.add("activation", x, attributes={"kind": kind})[0]}
    return None


def _after(editor: Editor, node: Node, inputs: list[Value]) -> list[Value]:
    """Values made of the node's result, the inputs and numbers alone, the furthest first."""
    found = [node.results[0]]
    known = {*inputs, *found}
    for value in found:
        for user in editor.users(value):
            result = user.results[0]
            if user.op not in _ARITHMETIC or result in known or len(found) >= _FURTHEST:
                continue
            if result.type == value.type and all(
                _is_made_of(editor, v, known) for v in user.operands
            ):
                known.add(result)
                found.append(result)
    return found[::-1]


def _is_made_of(editor: Editor, value: Value, known: set[Value]) -> bool:
    """Whether it is known, a number, or simple arithmetic on these."""
    if value in known or value.type.rank == 0:
        return True
    node = editor.node_of(value)
    if node is None or node.op not in _ARITHMETIC:
        return scalar(editor.node_of, value) is not None
    return all(v in known or scalar(editor.node_of, v) is not None for v in node.operands)


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
        if made is not None and made.op in _INNER:
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
