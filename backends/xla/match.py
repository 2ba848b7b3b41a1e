"""What a group's body holds: which Pallas kernel computes the same, and on which operands.

A body fits a kernel only if it is exactly the ops that the kernel computes, with attributes that
the kernel knows; every other body is refused with the first thing that differs.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.ops.attention import cache_dims

Arrays = tuple[Any, ...]


class NoFit(Exception):
    """Why a body is not what a kernel computes, in one sentence."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """How a kernel computes a group.

    `take` makes the kernel's operands of the group's (arrays or tracers), `give` the group's
    results of the kernel's. `keywords` are the attributes that the kernel takes.
    """

    kernel: str
    take: Callable[[Sequence[Any]], Arrays]
    give: Callable[[Any], Arrays]
    keywords: Mapping[str, Any]


def body_of(node: Node) -> Function:
    """A group's body; another node is its own body."""
    if node.op == "group":
        return node.regions[0]
    return Function(tuple(dict.fromkeys(node.operands)), (node,), node.results)


def operands_of(node: Node) -> tuple[Value, ...]:
    """The values that stand for the inputs of `body_of(node)`."""
    return node.operands if node.op == "group" else tuple(dict.fromkeys(node.operands))


def fit(kernel: str, body: Function) -> Fit:
    """How the kernel computes the body. Raises NoFit with the reason."""
    return _MATCHERS[kernel](_Body(body))


def kernels() -> tuple[str, ...]:
    """Every kernel that a body may fit."""
    return tuple(_MATCHERS)


class _Body:
    """Questions to a body; each raises NoFit where the answer is that it does not fit."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def nodes(self, *ops: str) -> list[Node]:
        """The body's nodes in the order of `ops`, if it holds exactly these."""
        found = Counter(node.op for node in self.function.nodes)
        if found != Counter(ops):
            listed = ", ".join(sorted(found.elements())) or "nothing"
            raise NoFit(f"the group holds {listed}; the kernel is {', '.join(ops)}")
        left = list(self.function.nodes)
        return [left.pop([node.op for node in left].index(op)) for op in ops]

    def index(self, value: Value, what: str) -> int:
        """Which of the group's operands a value is."""
        if value not in self.function.inputs:
            raise NoFit(f"{what} is made inside the group, but must come from outside")
        return self.function.inputs.index(value)

    def maker(self, value: Value, op: str, what: str) -> Node:
        """The node that makes a value, which must be of that op."""
        node = self.function.definitions.get(value, (None, 0))[0]
        if node is None or node.op != op:
            raise NoFit(f"{what} is not the result of the group's {op}")
        return node

    def gives(self, value: Value) -> None:
        """The value is the only result."""
        if self.function.outputs != (value,):
            raise NoFit(
                "the group must give the last op's result and nothing else; "
                f"it gives {len(self.function.outputs)} values"
            )


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise NoFit(reason)


def _reshaped(value: Value) -> Callable[[Any], Arrays]:
    def give(result: Any) -> Arrays:
        assert result.dtype == value.type.struct().dtype, (result.dtype, value.type)
        return (result.reshape(value.type.shape),)

    return give


def _rows(x: Any) -> Any:
    """[.., k] as [rows, k]."""
    return x.reshape(-1, x.shape[-1])


def _norm_linear(body: _Body) -> Fit:
    norm, linear = body.nodes("rms_norm", "linear")
    _need(linear.operands[0] is norm.result, "the linear op does not read the normed rows")
    _need(not linear.keys, "the linear op has a bias, which the kernel does not add")
    body.gives(linear.result)
    at = [
        body.index(norm.operands[0], "x"),
        body.index(norm.operands[1], "the norm's weight"),
        body.index(linear.operands[1], "the linear op's weight"),
    ]
    plus_one = norm.attribute("plus_one")

    def take(operands: Sequence[Any]) -> Arrays:
        x, w_norm, w = (operands[i] for i in at)
        # The reference adds the one in float32 too.
        scale = w_norm.astype(jnp.float32) + 1.0 if plus_one else w_norm
        return _rows(x), scale, w

    keywords = {"eps": norm.attribute("eps"), "transposed": linear.attribute("transposed")}
    return Fit("norm_linear", take, _reshaped(linear.result), keywords)


def _swiglu_mlp(body: _Body) -> Fit:
    unit = body.nodes("swiglu", "linear", "linear", "linear")[0]
    gate = body.maker(unit.operands[0], "linear", "swiglu's gate")
    up = body.maker(unit.operands[1], "linear", "swiglu's up")
    _need(gate is not up, "gate and up are one linear op")
    down = next(n for n in body.function.nodes if n.op == "linear" and n not in (gate, up))
    _need(down.operands[0] is unit.result, "the third linear op does not read swiglu's result")
    _need(gate.operands[0] is up.operands[0], "gate and up read different inputs")
    _need(not (gate.keys or up.keys or down.keys), "a linear op has a bias")
    transposed = {node.attribute("transposed") for node in (gate, up, down)}
    _need(len(transposed) == 1, "some weights are transposed and some are not")
    body.gives(down.result)
    names = ("the gate's weight", "the up weight", "the down weight")
    weights = zip((gate, up, down), names, strict=True)
    at = [body.index(gate.operands[0], "x"), *(body.index(n.operands[1], s) for n, s in weights)]

    def take(operands: Sequence[Any]) -> Arrays:
        x, *rest = (operands[i] for i in at)
        return (_rows(x), *rest)

    keywords = {"activation": unit.attribute("activation"), "transposed": transposed.pop()}
    return Fit("swiglu_mlp", take, _reshaped(down.result), keywords)


_NO_ATTENTION_OPERAND = ("mask", "bias", "sinks")


def _attention(body: _Body) -> tuple[Node, dict[str, Any], Callable[[Sequence[Any]], Arrays]]:
    """The attention op, and what both attention kernels share of keywords and operands."""
    (node,) = body.nodes("attention")
    body.gives(node.result)
    _need(node.attribute("softcap") is None, "the kernel has no softcap")
    for key in _NO_ATTENTION_OPERAND:
        _need(key not in node.keys, f"the kernel takes no {key}")
    window = node.attribute("window")
    _need(window is None or window >= 1, f"the window is {window}")
    at = [body.index(value, name) for value, name in zip(node.positional, "qkv", strict=True)]
    optional = {key: _integers(body, node, key) for key in ("positions", "lengths")}
    keys = cache_dims(node.operands[1].type, node.attribute("layout"))[1]

    def take(operands: Sequence[Any]) -> Arrays:
        q, k, v = (operands[i] for i in at)
        where, lengths = (None if i is None else operands[i] for i in optional.values())
        if where is None:  # the op's default: the queries are the last keys
            batch, queries = q.shape[:2]
            last = jnp.arange(keys - queries, keys, dtype=jnp.int32)
            where = jnp.broadcast_to(last, (batch, queries))
        return (q, k, v, where) if lengths is None else (q, k, v, where, lengths)

    names = ("layout", "window", "scale")
    return node, {name: node.attribute(name) for name in names}, take


def _integers(body: _Body, node: Node, key: str) -> int | None:
    value = node.optional(key)
    if value is None:
        return None
    _need(value.type.dtype == "i32", f"{key} are {value.type}, and the kernel takes i32")
    return body.index(value, key)


def _decode_attention(body: _Body) -> Fit:
    node, keywords, take = _attention(body)
    _need(bool(node.attribute("causal")), "the attention is not causal, and the kernel always is")
    queries = node.operands[0].type.shape[1]
    _need(queries == 1, f"there are {queries} queries per sequence, and the kernel takes one")
    return Fit("decode_attention", take, _reshaped(node.result), keywords)


def _flash_attention(body: _Body) -> Fit:
    node, keywords, take = _attention(body)
    full = {**keywords, "causal": node.attribute("causal")}
    return Fit("flash_attention", take, _reshaped(node.result), full)


_MATCHERS: dict[str, Callable[[_Body], Fit]] = {
    "norm_linear": _norm_linear,
    "swiglu_mlp": _swiglu_mlp,
    "decode_attention": _decode_attention,
    "flash_attention": _flash_attention,
}
