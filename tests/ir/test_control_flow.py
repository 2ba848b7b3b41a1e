"""scan, while, cond and group: the semantics of lax, and regions that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.ir.samples import assert_function_round_trips, function, one_node, value
from tests.tolerances import assert_identical
from tkcc.ir.errors import IRError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.op import build

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
START = np.array([1.0, -2.0, 0.5], np.float32)


def _body() -> Function:
    """(constant, carry, row) -> (carry * constant + row, carry + row)"""
    constant, carry, row = value("f32[3]"), value("f32[3]"), value("f32[3]")
    scaled = build("lax.mul", carry, constant)
    new = build("lax.add", scaled.result, row)
    out = build("lax.add", carry, row)
    return function((constant, carry, row), (scaled, new, out), new.result, out.result)


def _scan(**attributes: Any) -> Node:
    given = {"consts": 1, "carry": 1, "length": 4, **attributes}
    operands = value("f32[3]"), value("f32[3]"), value("f32[4,3]")
    return build("scan", *operands, attributes=given, regions=[_body()])


def _run(node: Node, *inputs: Any) -> Sequence[Any]:
    assert_function_round_trips(one_node(node))
    return evaluate(one_node(node), [jnp.asarray(x) for x in inputs])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 2, 3, 4, 9])
def test_scan_is_lax_scan(reverse: bool, unroll: int) -> None:
    def step(carry: Any, row: Any) -> Any:
        return carry * 0.5 + row, carry + row

    half = np.full(3, 0.5, np.float32)
    got = _run(_scan(reverse=reverse, unroll=unroll), half, START, ROWS)
    want = lax.scan(step, START, ROWS, reverse=reverse, unroll=unroll)
    for a, b in zip(got, want, strict=True):
        assert_identical(a, b)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_steps_in_order_over_plain_numpy(reverse: bool) -> None:
    carry, outs = START.astype(np.float64), {}
    for i in reversed(range(4)) if reverse else range(4):
        outs[i] = carry + ROWS[i]
        carry = carry * 2 + ROWS[i]
    final, stacked = _run(_scan(reverse=reverse), np.full(3, 2, np.float32), START, ROWS)
    np.testing.assert_allclose(final, carry)
    np.testing.assert_allclose(stacked, [outs[i] for i in range(4)])


def test_a_scan_of_no_steps_returns_its_carry() -> None:
    operands = value("f32[3]"), value("f32[3]"), value("f32[0,3]")
    given = {"consts": 1, "carry": 1, "length": 0}
    node = build("scan", *operands, attributes=given, regions=[_body()])
    carry, stacked = _run(node, START, START, np.zeros((0, 3), np.float32))
    assert_identical(carry, jnp.asarray(START))
    assert stacked.shape == (0, 3)


def test_a_scan_needs_no_stacked_operands() -> None:
    x, y = value("i32[]"), value("i32[]")
    step = build("lax.add", y, y)
    attributes = {"carry": 1, "length": 5}
    body = function((y,), (step,), step.result, y)
    carry, seen = _run(build("scan", x, attributes=attributes, regions=[body]), np.int32(1))
    assert int(carry) == 32
    assert seen.tolist() == [1, 2, 4, 8, 16]


def _below() -> Function:
    limit, count, total = value("i32[]"), value("i32[]"), value("f32[]")
    less = build("lax.lt", count, limit)
    return function((limit, count, total), (less,), less.result)


def _less() -> Function:
    a, b = value("i32[]"), value("i32[]")
    less = build("lax.lt", a, b)
    return function((a, b), (less,), less.result)


def _add_step() -> Function:
    step, count, total = value("f32[]"), value("i32[]"), value("f32[]")
    one = build("constant", attributes={"value": np.array(1, np.int32)})
    counted, added = build("lax.add", count, one.result), build("lax.add", total, step)
    return function((step, count, total), (one, counted, added), counted.result, added.result)


def _while(condition: Function, body: Function, **attributes: Any) -> Node:
    operands = value("i32[]"), value("f32[]"), value("i32[]"), value("f32[]")
    given = {"condition_consts": 1, "body_consts": 1, **attributes}
    return build("while", *operands, attributes=given, regions=[condition, body])


@pytest.mark.parametrize(("limit", "count", "total"), [(4, 4, 10.0), (0, 0, 0.0), (-1, 0, 0.0)])
def test_while_runs_until_the_condition_is_false(limit: int, count: int, total: float) -> None:
    node = _while(_below(), _add_step())
    got = _run(node, np.int32(limit), np.float32(2.5), np.int32(0), np.float32(0))
    assert [int(got[0]), float(got[1])] == [count, total]


def _constant_branch(number: float) -> Function:
    x = value("f32[3]")
    made = build("constant", attributes={"value": np.full(3, number, np.float32)})
    total = build("lax.add", x, made.result)
    return function((x,), (made, total), total.result)


def _cond(count: int, index_type: str = "i32[]") -> Node:
    branches = [_constant_branch(10.0 * (i + 1)) for i in range(count)]
    return build("cond", value(index_type), value("f32[3]"), regions=branches)


@pytest.mark.parametrize("index", [-5, 0, 1, 2, 7])
def test_cond_clamps_its_index(index: int) -> None:
    (got,) = _run(_cond(3), np.int32(index), START)
    np.testing.assert_array_equal(got, START + 10 * (np.clip(index, 0, 2) + 1))


@pytest.mark.parametrize("index", [False, True])
def test_cond_takes_a_boolean_of_two_branches(index: bool) -> None:
    (got,) = _run(_cond(2, "bool[]"), np.bool_(index), START)
    np.testing.assert_array_equal(got, START + (20 if index else 10))


def test_cond_may_have_one_branch() -> None:
    (got,) = _run(_cond(1), np.int32(3), START)
    np.testing.assert_array_equal(got, START + 10)


def test_group_means_its_body() -> None:
    operands = value("f32[3]"), value("f32[3]"), value("f32[3]")
    node = build("group", *operands, attributes={"label": "mlp"}, regions=[_body()])
    new, out = _run(node, START, START, ROWS[1])
    np.testing.assert_array_equal(new, START * START + ROWS[1])
    np.testing.assert_array_equal(out, START + ROWS[1])


def _identity(*types: str) -> Function:
    inputs = [value(t) for t in types]
    return function(inputs, (), *inputs)


def _ill_scan(body: Function, *types: str, **attributes: Any) -> Any:
    given = {"length": 4, **attributes}
    return lambda: build("scan", *map(value, types), attributes=given, regions=[body])


def _ill(op: str, types: Sequence[str], regions: Sequence[Function], **attributes: Any) -> Any:
    return lambda: build(op, *map(value, types), regions=regions, attributes=attributes)


WHILE_TYPES = ("i32[]", "f32[]", "i32[]", "f32[]")
COUNTS = {"condition_consts": 1, "body_consts": 1}
ILL_TYPED = [
    (_ill_scan(_identity("f32[3]"), "f32[4,2]"), "the body's inputs should be (f32[2])"),
    (_ill_scan(_identity("f32[3]"), "f32[5,3]"), "a stacked operand is f32[5,3], but length is 4"),
    (_ill_scan(_identity("f32[]"), "f32[]"), "a stacked operand is f32[], but length is 4"),
    (_ill_scan(_identity("f32[3]"), "f32[3]", carry=2), "has 1 operands for consts=0 and carry=2"),
    (_ill_scan(_identity("f32[3]"), "f32[4,3]", consts=-1), "consts=-1"),
    (_ill_scan(_identity("f32[3]"), "f32[4,3]", unroll=0), "unroll is 0"),
    (_ill_scan(_identity("f32[3]"), "f32[4,3]", length=-4), "length is -4"),
    (_ill_scan(_identity("f32[3]"), "f32[4,3]", length="4"), "do not fit"),
    (
        _ill_scan(function((value("f32[]"),), ()), "f32[]", carry=1),
        "the body's first outputs (the carry) should be (f32[]), but is ()",
    ),
    (_ill("scan", (), (), length=1), "takes 1 regions (body), got 0"),
    (_ill("scan", (), ()), "attribute ['length'] is missing"),
    (_ill("while", WHILE_TYPES, (_below(),), **COUNTS), "takes 2 regions"),
    (
        _ill("while", WHILE_TYPES, (_add_step(), _add_step()), **COUNTS),
        "the condition's inputs should be (i32[], i32[], f32[])",
    ),
    (
        _ill("while", ("f32[]",), (_identity("f32[]"), _identity("f32[]"))),
        "the condition's output should be (bool[]), but is (f32[])",
    ),
    (
        _ill("while", WHILE_TYPES, (_below(), _below()), **COUNTS),
        "the body's inputs should be (f32[], i32[], f32[])",
    ),
    (
        _ill("while", ("i32[]", "i32[]"), (_less(), _less())),
        "the body's outputs (the carry) should be (i32[], i32[]), but is (bool[])",
    ),
    (_ill("while", ("f32[]",), (_below(), _add_step()), body_consts=2), "body_consts=2"),
    (_ill("cond", ("i32[]",), ()), "has no branch"),
    (_ill("cond", ("f32[]",), (_identity(),)), "the index is f32[], not i32[]"),
    (_ill("cond", ("i32[2]",), (_identity(),)), "the index is i32[2]"),
    (_ill("cond", (), (_identity(),)), "takes at least 1 operands"),
    (
        _ill("cond", ("i32[]", "f32[]"), (_identity("f32[]"), _identity("f32[2]"))),
        "branch 1's inputs should be (f32[]), but is (f32[2])",
    ),
    (
        _ill("cond", ("i32[]", "f32[]"), (_identity("f32[]"), function((value("f32[]"),), ()))),
        "branch 1's outputs should be (f32[]), but is ()",
    ),
    (
        _ill("group", ("f32[2]",), (_identity("f32[3]"),), label="a"),
        "the body's inputs should be (f32[2]), but is (f32[3])",
    ),
    (_ill("group", ("f32[2]",), (_identity("f32[2]"),)), "attribute ['label'] is missing"),
]


@pytest.mark.parametrize(("make", "message"), ILL_TYPED, ids=lambda part: str(part)[:40])
def test_regions_that_do_not_fit_are_refused(make: Any, message: str) -> None:
    with pytest.raises(IRError) as error:
        make()
    assert message in error.value.what
    assert error.value.remedy


def test_regions_nest() -> None:
    inner = _cond(2, "bool[]")
    index, x = value("bool[]"), value("f32[3]")
    moved = inner.replace(operands=(index, x))
    body = function((index, x), (moved,), moved.result)
    given = {"consts": 1, "carry": 1, "length": 3}
    node = build("scan", Value(index.type), Value(x.type), attributes=given, regions=[body])
    (got,) = _run(node, np.bool_(True), START)
    np.testing.assert_array_equal(got, START + 60)
