"""FLOPs and bytes: exact for matrix products, counted once per step and per byte moved."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.samples import function, one_node, value
from tkcc.frontends.lowering import lower
from tkcc.ir.cost import Cost, function_cost, node_cost
from tkcc.ir.graph import Node
from tkcc.ir.op import build


def _attention(layout: str = "bshd") -> Node:
    """b=2, t=3, h=4, d=8; s=5, g=2, e=6."""
    k, v = ("[2,5,2,8]", "[2,5,2,6]") if layout == "bshd" else ("[2,2,5,8]", "[2,2,5,6]")
    operands = value("f32[2,3,4,8]"), value(f"f32{k}"), value(f"f32{v}")
    return build("attention", *operands, attributes={"scale": 1.0, "layout": layout})


def _op(op: str, *types: str, **attributes: Any) -> Node:
    return build(op, *map(value, types), attributes=attributes)


ATTENTION = 2 * 3 * 4 * 5 * (2 * 8 + 2 * 6 + 5)
FLOPS = [
    (_op("linear", "bf16[2,3,8]", "bf16[8,5]"), 2 * 2 * 3 * 8 * 5),
    (_op("linear", "bf16[2,8]", "bf16[5,8]", transposed=True), 2 * 2 * 8 * 5),
    (_op("quantized_linear", "bf16[2,8]", "i8[8,5]", "f32[1,5]"), 2 * 2 * 8 * 5),
    (_attention(), ATTENTION),
    (_attention("bhsd"), ATTENTION),
    (_op("embedding", "f32[9,4]", "i32[3]"), 0),
    (_op("lax.add", "f32[3,4]", "f32[3,4]"), 12),
    (_op("concat", "f32[3]", "f32[4]"), 0),
    (
        _op(
            "moe_experts",
            "f32[5,4]",
            "f32[5,2]",
            "i32[5,2]",
            "f32[8,4,6]",
            "f32[8,4,6]",
            "f32[8,6,4]",
        ),
        5 * 2 * 3 * 2 * 4 * 6,
    ),
]


@pytest.mark.parametrize(("node", "flops"), FLOPS, ids=lambda part: getattr(part, "op", ""))
def test_flops_of_named_ops(node: Node, flops: int) -> None:
    assert node_cost(node).flops == flops


def _flops(f: Any, *shapes: tuple[int, ...]) -> int:
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return function_cost(lower(f, *args, recognise=False).function()).flops


@pytest.mark.parametrize(
    ("f", "shapes", "flops"),
    [
        (lambda a, b: a @ b, [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
        (lambda a, b: jnp.einsum("bik,bkj->bij", a, b), [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        (lambda a, b: jnp.einsum("ijk,jkl->il", a, b), [(3, 4, 5), (4, 5, 6)], 2 * 3 * 20 * 6),
        (
            lambda a, k: jax.lax.conv(a, k, (1, 1), "VALID"),
            [(2, 3, 8, 8), (5, 3, 3, 3)],
            2 * (2 * 5 * 6 * 6) * 3 * 9,
        ),
        (lambda a: a.sum(), [(3, 4)], 12),
        (lambda a: a.reshape(12).T, [(3, 4)], 0),
        (lambda a: jnp.sort(a), [(3, 8)], 24 * 3),
        (lambda a: jnp.fft.fft(a).real, [(3, 8)], 5 * 24 * 3),
        (lambda a: jnp.cumsum(a), [(7,)], 7),
    ],
)
def test_flops_of_lax_ops(f: Any, shapes: list[tuple[int, ...]], flops: int) -> None:
    assert _flops(f, *shapes) == flops


@pytest.mark.parametrize(
    "f", [jnp.linalg.cholesky, jnp.linalg.inv, lambda a: jnp.linalg.svd(a)[1], jnp.linalg.eigvalsh]
)
def test_factorisations_cost_at_least_the_cube(f: Any) -> None:
    assert _flops(f, (6, 6)) >= 6**3


def _loop(length: int, reverse: bool = False) -> Node:
    w, x = value("f32[4,4]"), value("f32[4]")
    inner = build("linear", x, w)
    body = function((w, x), (inner,), inner.result)
    attributes = {"consts": 1, "carry": 1, "length": length, "reverse": reverse}
    return build("scan", value("f32[4,4]"), value("f32[4]"), attributes=attributes, regions=[body])


def test_a_scan_costs_every_step() -> None:
    once = node_cost(_loop(1))
    assert once == Cost(32, 4 * (16 + 4 + 4))
    assert node_cost(_loop(7)) == once.times(7)


def test_a_cond_costs_its_dearest_branch_and_a_while_one_iteration() -> None:
    x, y = value("f32[4]"), value("f32[4]")
    cheap = function((x,), (), x)
    neg, abs_ = build("lax.neg", y), build("lax.abs", y)
    dear = function((y,), (neg, abs_), abs_.result)
    node = build("cond", value("i32[]"), value("f32[4]"), regions=[cheap, dear])
    assert node_cost(node) == Cost(8, 2 * 32)

    c, b = value("f32[]"), value("f32[]")
    zero = build("constant", attributes={"value": np.zeros((), np.float32)})
    less = build("lax.lt", c, zero.result)
    step = build("lax.add", b, b)
    condition = function((c,), (zero, less), less.result)
    body = function((b,), (step,), step.result)
    loop = build("while", value("f32[]"), regions=[condition, body])
    assert node_cost(loop).flops == 2


def test_a_group_reads_and_writes_only_its_border() -> None:
    x = value("f32[8]")
    first = build("lax.neg", x)
    second = build("lax.abs", first.result)
    body = function((x,), (first, second), second.result)
    node = build("group", value("f32[8]"), attributes={"label": "g"}, regions=[body])
    assert node_cost(node) == Cost(16, 2 * 32)


@pytest.mark.parametrize(
    ("node", "nbytes"),
    [
        (_op("lax.add", "f32[4]", "f32[4]"), 48),
        (_op("embedding", "bf16[1000,8]", "i32[3]"), 2 * 3 * 8 * 2 + 12),
        (_op("update_cache", "bf16[1,99,2,4]", "bf16[1,1,2,4]", "i32[1]"), 2 * 8 * 2),
        (_op("quantize", "f32[8,2]", dtype=np.dtype("int8")), 64 + 16 + 8),
        (_op("constant", value=np.zeros(9)), 0),
    ],
    ids=lambda part: getattr(part, "op", ""),
)
def test_bytes_count_what_is_read_and_written(node: Node, nbytes: int) -> None:
    assert node_cost(node).bytes == nbytes


def test_an_operand_read_twice_is_counted_once() -> None:
    x = value("f32[4]")
    assert node_cost(build("lax.add", x, x)).bytes == 32


def test_a_function_costs_the_sum_of_its_nodes() -> None:
    nodes = [_op("lax.neg", "f32[4]"), _op("lax.abs", "f32[4]")]
    f = function([n.operands[0] for n in nodes], nodes, *(n.result for n in nodes))
    assert function_cost(f) == Cost(8, 64)
    assert function_cost(one_node(nodes[0])) + Cost(1, 2) == Cost(5, 34)
