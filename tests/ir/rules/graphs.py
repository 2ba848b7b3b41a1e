"""Random graphs that rules have something to do in, for property tests."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st

from tkcc.ir.graph import ARGUMENT, PARAMETER, Function, Module, Node, Value
from tkcc.ir.op import build
from tkcc.ir.types import TensorType

WIDTH, HEADS, KEYS, LENGTH = 8, 2, 8, 2  # channels, heads, cached positions, scan steps
ROWS = (2, 3)


@dataclasses.dataclass
class _Drawing:
    """A function that grows: its values of type [2, 3, WIDTH], its parameters, its nodes."""

    draw: st.DrawFn
    dtype: str
    known: list[Value]
    parameters: list[Value] = dataclasses.field(default_factory=list)
    nodes: list[Node] = dataclasses.field(default_factory=list)

    def pick(self) -> Value:
        return self.draw(st.sampled_from(self.known[-4:]))

    def parameter(self, *shape: int) -> Value:
        """A new parameter, or one of that type that is there already."""
        type_ = TensorType(self.dtype, shape)
        old = [value for value in self.parameters if value.type == type_]
        if old and self.draw(st.integers(0, 3)) == 0:
            return self.draw(st.sampled_from(old))
        self.parameters.append(Value(type_, f"w{len(self.parameters)}"))
        return self.parameters[-1]

    def add(self, op: str, *operands: Value, **attributes: object) -> Value:
        node = build(op, *operands, attributes=attributes)
        self.nodes.append(node)
        return node.results[0]

    def linear(self, x: Value, width: int) -> Value:
        transposed = self.draw(st.booleans())
        depth = x.type.shape[-1]
        w = self.parameter(*((width, depth) if transposed else (depth, width)))
        bias = self.parameter(width) if self.draw(st.integers(0, 3)) == 0 else None
        node = build("linear", x, w, attributes={"transposed": transposed}, optional={"bias": bias})
        self.nodes.append(node)
        return node.result

    def norm(self, x: Value) -> Value:
        plus_one = self.draw(st.booleans())
        return self.add("rms_norm", x, self.parameter(WIDTH), eps=1e-5, plus_one=plus_one)

    def grow(self) -> None:
        kind = self.draw(st.sampled_from(sorted(_PIECES)))
        self.known += _PIECES[kind](self)


def _several_linears(d: _Drawing) -> list[Value]:
    """Linears over one value, as query, key and value are."""
    x = d.norm(d.pick()) if d.draw(st.booleans()) else d.pick()
    return [d.linear(x, WIDTH) for _ in range(d.draw(st.integers(1, 3)))]


def _mlp(d: _Drawing) -> list[Value]:
    x = d.pick()
    gate, up = d.linear(x, 12), d.linear(x, 12)
    return [d.linear(d.add("swiglu", gate, up), WIDTH)]


def _residual(d: _Drawing) -> list[Value]:
    total = d.add("lax.add", d.pick(), d.pick())
    return [d.norm(total), total]


def _chain(d: _Drawing) -> list[Value]:
    x = d.pick()
    for _ in range(d.draw(st.integers(1, 4))):
        if d.draw(st.booleans()):
            x = d.add(d.draw(st.sampled_from(("lax.neg", "lax.abs", "lax.tanh"))), x)
        else:
            x = d.add(d.draw(st.sampled_from(("lax.mul", "lax.sub", "lax.max"))), x, d.pick())
    return [x]


def _dead_end(d: _Drawing) -> list[Value]:
    d.add("softmax", d.norm(d.pick()))
    return []


def _attention(d: _Drawing) -> list[Value]:
    """Attention of two heads over keys and values that are made from parameters' side."""
    x = d.pick()
    shape = {"keep": 2, "shape": (HEADS, WIDTH // HEADS)}
    q, k, v = (d.add("reshape", d.linear(x, WIDTH), **shape) for _ in range(3))
    keys = [d.add("concat", item, item, item, item, axis=1) for item in (k, v)]
    keys = [d.add("split", item, axis=1, sizes=(KEYS, 4 * ROWS[1] - KEYS)) for item in keys]
    positions = np.broadcast_to(np.arange(ROWS[1], dtype=np.int32), ROWS)
    at = d.add("constant", value=np.ascontiguousarray(positions))
    node = build("attention", q, *keys, optional={"positions": at}, attributes={"scale": 0.5})
    d.nodes.append(node)
    return [d.add("reshape", node.result, keep=2, shape=(WIDTH,))]


_PIECES = {
    "attention": _attention,
    "chain": _chain,
    "dead end": _dead_end,
    "linears": _several_linears,
    "mlp": _mlp,
    "residual": _residual,
}


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """One function with several outputs; half of them with all of it as the body of a scan."""
    dtype = draw(st.sampled_from(("f32", "f32", "bf16")))
    x = Value(TensorType(dtype, (*ROWS, WIDTH)), "x")
    drawing = _Drawing(draw, dtype, [x])
    for _ in range(draw(st.integers(1, 5))):
        drawing.grow()
    outputs = tuple(draw(st.lists(st.sampled_from(drawing.known), min_size=1, max_size=3)))
    inputs = (x, *drawing.parameters)
    roles = (ARGUMENT, *(PARAMETER for _ in drawing.parameters))
    flat = Function(inputs, tuple(drawing.nodes), outputs, roles)
    return Module({"main": _scanned(flat) if draw(st.booleans()) else flat}, "random")


def _scanned(flat: Function) -> Function:
    """The function as the body of a scan: x is carried, each step has its own parameters."""
    outer = [Value(flat.inputs[0].type, "x")]
    outer += [
        Value(value.type.with_shape((LENGTH, *value.type.shape)), value.name)
        for value in flat.inputs[1:]
    ]
    squashed = build("lax.tanh", flat.outputs[0], attributes={"accuracy": None})
    body = Function(flat.inputs, (*flat.nodes, squashed), (squashed.result, *flat.outputs))
    attributes = {"carry": 1, "length": LENGTH}
    loop = build("scan", *outer, attributes=attributes, regions=[body])
    return Function(tuple(outer), (loop,), loop.results, flat.roles)
