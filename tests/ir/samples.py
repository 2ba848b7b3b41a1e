"""Small pieces of IR that several tests use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

from tkcc.ir.graph import ARGUMENT, Function, Module, Node, Source, Value
from tkcc.ir.hashing import module_hash
from tkcc.ir.op import build
from tkcc.ir.text import parse_module, print_module
from tkcc.ir.text.lexer import Reader
from tkcc.ir.types import TensorType, jax_dtype


def type_from(text: str) -> TensorType:
    """The type written as `f32[2,3]`."""
    return Reader(text).type()


def value(type_text: str, name: str = "") -> Value:
    return Value(type_from(type_text), name)


def function(inputs: Sequence[Value], nodes: Sequence[Node], *outputs: Value) -> Function:
    """A function whose inputs are all arguments."""
    return Function(tuple(inputs), tuple(nodes), outputs, (ARGUMENT,) * len(inputs))


def one_node(node: Node) -> Function:
    """The function that takes the node's operands (each once) and returns its results."""
    return function(tuple(dict.fromkeys(node.operands)), (node,), *node.results)


def assert_round_trips(module: Module, *, sources: bool = True) -> str:
    """print -> parse -> print is exact and keeps the hash; returns the text."""
    text = print_module(module, sources=sources)
    again = parse_module(text)
    assert print_module(again, sources=sources) == text
    assert module_hash(again) == module_hash(module)
    return text


def assert_function_round_trips(function: Function) -> str:
    return assert_round_trips(Module({"main": function}))


def random_array(type_: TensorType, seed: int = 0) -> Any:
    """Reproducible data of a type: small integers, or normal floats."""
    generator = np.random.default_rng(seed)
    if type_.dtype.startswith("key<"):
        keys = jax.random.split(jax.random.key(seed), max(1, type_.size))
        return keys[: type_.size].reshape(type_.shape)
    if type_.dtype == "bool":
        return generator.random(type_.shape) < 0.5
    dtype = jax_dtype(type_.dtype)
    if type_.dtype[0] in "iu":
        return generator.integers(0, 2, type_.shape).astype(dtype)
    return generator.standard_normal(type_.shape).astype(dtype)


def random_inputs(function: Function, seed: int = 0) -> list[Any]:
    return [random_array(v.type, seed + i) for i, v in enumerate(function.inputs)]


def small_module() -> Module:
    """Two functions that share a parameter and state, with a scan, records and provenance."""
    return Module({"prefill": _prefill(), "decode": _decode()}, "small")


def _prefill() -> Function:
    tokens, table, cache = (
        value("i32[2,3]", "tokens"),
        value("bf16[11,4]", "table"),
        value("bf16[2,8,1,4]", "cache"),
    )
    rows = build("embedding", table, tokens, source=Source("embed", "model.py:3"))
    heads = build("reshape", rows.result, attributes={"keep": 2, "shape": (1, 4)})
    zero = build("constant", attributes={"value": np.zeros(2, np.int32)})
    new = build("update_cache", cache, heads.result, zero.result)
    total = build("lax.reduce_sum", rows.result, attributes={"axes": (0, 1), "out_sharding": None})
    return Function(
        (tokens, table, cache),
        (rows, heads, zero, new, total),
        (total.result, new.result),
        ("arg", "param", "state"),
        ((1, 2),),
        ("logits", "cache"),
    )


def _decode() -> Function:
    x, table, stack = (
        value("bf16[4]", "x"),
        value("bf16[11,4]", "table"),
        value("bf16[5,4]", "stack"),
    )
    loop = build(
        "scan",
        table,
        x,
        stack,
        attributes={"consts": 1, "carry": 1, "length": 5, "reverse": True},
        regions=[_step()],
        source=Source("layers", "model.py:9", ("roll#1", "fuse#2")),
    )
    return Function((x, table, stack), (loop,), loop.results, ("arg", "param", "param"))


def _step() -> Function:
    table, carry, row = value("bf16[11,4]"), value("bf16[4]", "carry"), value("bf16[4]", "row")
    norm = build("rms_norm", carry, row, attributes={"eps": 1e-5})
    scores = build("linear", norm.result, table, attributes={"transposed": True})
    both = build("lax.add", norm.result, row)
    return function((table, carry, row), (norm, scores, both), both.result, scores.result)


UNARY = ("lax.neg", "lax.abs", "lax.sign", "lax.floor")
BINARY = ("lax.add", "lax.mul", "lax.sub", "lax.max")


@st.composite
def functions(draw: st.DrawFn, depth: int = 1) -> Function:
    """A random function of two f32[3] arguments: arithmetic, loops, branches, dead code, copies."""
    inputs = (value("f32[3]", "a"), value("f32[3]", "b"))
    known: list[Value] = list(inputs)
    nodes: list[Node] = []
    for _ in range(draw(st.integers(1, 6))):
        node = draw(_nodes(tuple(known), depth))
        nodes.append(node)
        known += node.results
    outputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
    return function(inputs, nodes, *outputs)


@st.composite
def _nodes(draw: st.DrawFn, known: tuple[Value, ...], depth: int) -> Node:
    kind = draw(st.sampled_from(["constant", "unary", "binary", "binary", "loop", "branch"]))
    pick = st.sampled_from(known)
    if kind == "constant":
        number = draw(st.sampled_from([0.0, 1.0, 2.5]))
        return build("constant", attributes={"value": np.full(3, number, np.float32)})
    if kind == "unary":
        return build(draw(st.sampled_from(UNARY)), draw(pick))
    if kind == "binary" or depth == 0:
        return build(draw(st.sampled_from(BINARY)), draw(pick), draw(pick))
    body = draw(functions(depth - 1))
    if kind == "branch":
        index = build("constant", attributes={"value": np.array(draw(st.integers(0, 1)), np.int32)})
        return _group([index, *_branch(draw, index.result, body, pick)], known)
    return _loop(draw, body, pick)


def _branch(draw: st.DrawFn, index: Value, body: Function, pick: Any) -> list[Node]:
    other = function(body.inputs, (), *(body.inputs[0] for _ in body.outputs))
    return [build("cond", index, draw(pick), draw(pick), regions=[body, other])]


def _group(nodes: list[Node], known: tuple[Value, ...]) -> Node:
    """The nodes in one group, so that a branch and its index are drawn as one node."""
    read = tuple(v for v in known if any(v in node.operands for node in nodes))
    fresh = {v: Value(v.type, v.name) for v in read}
    moved = [n.replace(operands=tuple(fresh.get(v, v) for v in n.operands)) for n in nodes]
    body = function(tuple(fresh.values()), moved, *moved[-1].results)
    return build("group", *read, attributes={"label": "branch"}, regions=[body])


def _loop(draw: st.DrawFn, body: Function, pick: Any) -> Node:
    """A scan of three steps: `a` is the carry, `b` is constant; further outputs are stacked."""
    carry, constant = body.inputs
    step = body.replace(inputs=(constant, carry), roles=())
    attributes = {"consts": 1, "carry": 1, "length": 3, "reverse": draw(st.booleans())}
    loop = build("scan", draw(pick), draw(pick), attributes=attributes, regions=[step])
    return loop if len(loop.results) == 1 else _first_row(loop)


def _first_row(loop: Node) -> Node:
    """The loop in a group that returns its carry and the first row of each stacked result."""
    fresh = tuple(Value(v.type, v.name) for v in loop.operands)
    inner = loop.replace(operands=fresh)
    rows = [_row(stacked) for stacked in inner.results[1:]]
    body = function(
        fresh,
        (inner, *(n for pair in rows for n in pair)),
        inner.results[0],
        *(r[1].result for r in rows),
    )
    return build("group", *loop.operands, attributes={"label": "loop"}, regions=[body])


def _row(stacked: Value) -> tuple[Node, Node]:
    cut = {"start_indices": (0, 0), "limit_indices": (1, 3), "strides": None}
    first = build("lax.slice", stacked, attributes=cut)
    return first, build("reshape", first.result, attributes={"shape": (3,)})
