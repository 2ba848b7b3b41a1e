"""Split factors: their notation, and how groups get theirs."""

from __future__ import annotations

import pytest

from tests.ir.samples import function, value
from tkcc.ir.errors import IRError
from tkcc.ir.factors import Factors, batched, elementwise
from tkcc.ir.graph import Node
from tkcc.ir.op import build, lookup


@pytest.mark.parametrize(
    ("text", "parallel", "reduced"),
    [
        ("m k, k n -> m n", ("m", "n"), ("k",)),
        ("b s! d -> b", ("b",), ("d",)),
        ("a! -> a!", (), ()),
        (", i -> i, i j!", ("i",), ()),
        ("->", (), ()),
    ],
)
def test_factors_are_written_like_einsum(
    text: str, parallel: tuple[str, ...], reduced: tuple[str, ...]
) -> None:
    factors = Factors.parse(text)
    assert factors.parallel == parallel
    assert factors.reduced == reduced
    assert Factors.parse(str(factors)) == factors


def test_factors_need_an_arrow() -> None:
    with pytest.raises(IRError, match="no '->'"):
        Factors.parse("m k")


def test_elementwise_lets_scalars_go_along() -> None:
    assert str(elementwise([2, 0], 1)) == "d0 d1,  -> d0 d1"
    assert batched(2) == ("b0", "b1")


def _group(swapped: bool, twice: bool = False) -> Node:
    """linear in a group whose inputs may stand in another order."""
    x, w = value("f32[2,4]"), value("f32[4,3]")
    if twice:
        x = w = value("f32[4,4]")
    inner = build("linear", x, w)
    inputs = tuple(dict.fromkeys((w, x) if swapped else (x, w)))
    body = function(inputs, (inner,), inner.result)
    operands = [value(str(v.type)) for v in inputs]
    return build("group", *operands, attributes={"label": "g"}, regions=[body])


def test_a_group_of_one_node_splits_as_the_node() -> None:
    group = lookup("group")
    assert str(group.factors(_group(False))) == "b0 k, k n -> b0 n"
    assert str(group.factors(_group(True))) == "k n, b0 k -> b0 n"


def test_a_group_that_reads_an_input_twice_or_holds_more_is_not_split() -> None:
    group = lookup("group")
    assert group.factors(_group(False, twice=True)) is None
    x = value("f32[2]")
    first = build("lax.neg", x)
    second = build("lax.neg", first.result)
    body = function((x,), (first, second), second.result)
    node = build("group", value("f32[2]"), attributes={"label": "g"}, regions=[body])
    assert group.factors(node) is None
