"""Factors of `lax.*` ops, by experiment: parts join or reduce to the whole; the rest is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.ir.samples import random_array, type_from
from tests.quick import quick_jit
from tests.tolerances import assert_same_program
from tkcc.frontends.lowering import lower
from tkcc.ir.factors import Factors
from tkcc.ir.graph import Node
from tkcc.ir.op import lookup

PARTS = 2


def _last(op: Any) -> Callable[..., Any]:
    return functools.partial(op, axes=(1,))


def _two_reductions(a: Any, b: Any) -> Any:
    """The sums of a and of b, in one reduce."""
    zero = jnp.float32(0)
    add = lambda x, y: (x[0] + y[0], x[1] + y[1])  # noqa: E731
    return lax.reduce((a, b), (zero, zero), add, (1,))


def _dynamic(a: Any, i: Any) -> Any:
    return lax.dynamic_slice(a, (0, i), (a.shape[0], 2), allow_negative_indices=False)


# name -> (function of one primitive, whose attributes follow from its operands; operand types)
CASES: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "neg": (lax.neg, ["f32[4,6]"]),
    "add": (lax.add, ["f32[4,6]", "f32[4,6]"]),
    "clamp": (lax.clamp, ["f32[]", "f32[4,6]", "f32[]"]),
    "select_n": (lax.select_n, ["bool[4]", "f32[4]", "f32[4]"]),
    "select_n of a scalar": (lax.select_n, ["bool[]", "f32[4]", "f32[4]"]),
    "convert": (lambda a: lax.convert_element_type(a, jnp.int32), ["f32[4,6]"]),
    "bitcast": (lambda a: lax.bitcast_convert_type(a, jnp.uint32), ["f32[4]"]),
    "matmul": (lambda a, b: a @ b, ["f32[4,6]", "f32[6,8]"]),
    "batched": (lambda a, b: jnp.einsum("bik,bkj->bij", a, b), ["f32[2,4,6]", "f32[2,6,8]"]),
    "two contractions": (
        lambda a, b: lax.dot_general(a, b, (((1, 2), (0, 1)), ((), ()))),
        ["f32[2,4,6]", "f32[4,6,2]"],
    ),
    "broadcast": (
        lambda a: lax.broadcast_in_dim(a, (3, a.shape[0], 4, a.shape[2]), (1, 2, 3)),
        ["f32[2,1,6]"],
    ),
    "transpose": (lambda a: lax.transpose(a, (2, 0, 1)), ["f32[2,4,6]"]),
    "squeeze": (lambda a: lax.squeeze(a, (1,)), ["f32[4,1,6]"]),
    "slice": (lambda a: lax.slice(a, (0, 1), (a.shape[0], 3)), ["f32[4,6]"]),
    "dynamic_slice": (_dynamic, ["f32[4,6]", "i32[]"]),
    "reshape": (lambda a: lax.reshape(a, (a.shape[0], 2, 3)), ["f32[4,6]"]),
    "flatten": (lambda a: lax.reshape(a, (a.size,)), ["f32[4,6]"]),
    "concatenate": (lambda a, b: lax.concatenate([a, b], 1), ["f32[4,6]", "f32[4,2]"]),
    "split": (lambda a: lax.split(a, (2, 4), axis=1), ["f32[4,6]"]),
    "sort": (lambda a: lax.sort(a, dimension=1), ["f32[4,6]"]),
    "sort of two": (lambda a, b: lax.sort((a, b), dimension=0), ["f32[4,6]", "i32[4,6]"]),
    "cumsum": (lambda a: lax.cumsum(a, 1), ["f32[4,6]"]),
    "cummax": (lambda a: lax.cummax(a, 0, reverse=True), ["f32[4,6]"]),
    "reduce_sum": (_last(lax.reduce_sum), ["f32[4,6]"]),
    "reduce_max": (_last(lax.reduce_max), ["f32[4,6]"]),
    "reduce_min": (_last(lax.reduce_min), ["f32[4,6]"]),
    "reduce_prod": (_last(lax.reduce_prod), ["f32[4,6]"]),
    "reduce_and": (_last(lax.reduce_and), ["bool[4,6]"]),
    "reduce_or": (_last(lax.reduce_or), ["bool[4,6]"]),
    "reduce_xor": (_last(lax.reduce_xor), ["bool[4,6]"]),
    "argmax": (lambda a: lax.argmax(a, 1, jnp.int32), ["f32[4,6]"]),
    "reduce of two": (_two_reductions, ["f32[4,6]", "f32[4,6]"]),
    "barrier": (lambda a, b: lax.optimization_barrier((a, b)), ["f32[4,6]", "f32[4,6]"]),
}
# How partial results of a reduced index are joined; all others add up.
JOINS: dict[str, Callable[..., Any]] = {
    "reduce_max": np.maximum,
    "reduce_min": np.minimum,
    "reduce_prod": np.multiply,
    "reduce_and": np.logical_and,
    "reduce_or": np.logical_or,
    "reduce_xor": np.logical_xor,
}


def only_node(f: Callable[..., Any], arrays: Sequence[Any]) -> Node:
    """The one lax node (constants aside) that f is."""
    nodes = [n for n in lower(f, *arrays, recognise=False).function().nodes if n.op != "constant"]
    assert len(nodes) == 1, [n.op for n in nodes]
    return nodes[0]


def _inputs(case: str) -> list[Any]:
    return [random_array(type_from(text), i) for i, text in enumerate(CASES[case][1])]


def _factors(case: str) -> Factors:
    node = only_node(CASES[case][0], _inputs(case))
    factors = lookup(node.op).factors(node)
    assert factors is not None
    assert [len(term) for term in factors.operands] == [v.type.rank for v in node.operands]
    assert [len(term) for term in factors.results] == [v.type.rank for v in node.results]
    return factors


def _pairs(kind: str) -> list[tuple[str, str]]:
    """Every index that an operand has and that may be split."""
    return [
        (case, index)
        for case in CASES
        for index in getattr(_factors(case), kind)
        if any(index in term for term in _factors(case).operands)
    ]


def _run(f: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
    return jax.tree.leaves(quick_jit(f)(*arrays))


def _parts(case: str, index: str) -> list[list[Any]]:
    cut = [
        np.split(array, PARTS, axis=term.index(index)) if index in term else [array] * PARTS
        for array, term in zip(_inputs(case), _factors(case).operands, strict=False)
    ]
    return [_run(CASES[case][0], piece) for piece in zip(*cut, strict=True)]


@pytest.mark.parametrize(("case", "index"), _pairs("parallel"))
def test_parts_along_a_parallel_index_join_to_the_whole(case: str, index: str) -> None:
    parts, whole = _parts(case, index), _run(CASES[case][0], _inputs(case))
    for place, (want, term) in enumerate(zip(whole, _factors(case).results, strict=True)):
        joined = np.concatenate([part[place] for part in parts], axis=term.index(index))
        assert_same_program(joined, want)


@pytest.mark.parametrize(("case", "index"), _pairs("reduced"))
def test_parts_along_a_reduced_index_reduce_to_the_whole(case: str, index: str) -> None:
    parts, whole = _parts(case, index), _run(CASES[case][0], _inputs(case))
    join = JOINS.get(case, np.add)
    for place, want in enumerate(whole):
        joined = functools.reduce(join, [part[place] for part in parts])
        np.testing.assert_allclose(joined, want, rtol=1e-5, atol=1e-6)


def test_reductions_that_need_all_elements_at_once_are_not_split() -> None:
    assert _factors("argmax").reduced == ()
    assert _factors("reduce of two").reduced == ()


WHOLE: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "fft": (lambda a: lax.fft(a, "FFT", (4,)), ["c64[4,4]"]),
    "lu": (lax.linalg.lu, ["f32[4,4]"]),
    "triangular_solve": (lax.linalg.triangular_solve, ["f32[4,4]", "f32[4,4]"]),
    "rev": (lambda a: lax.rev(a, (0,)), ["f32[4]"]),
    "iota": (lambda: lax.iota(jnp.int32, 4), []),
    "reduce_window": (
        lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (3,), (1,), "SAME"),
        ["f32[4]"],
    ),
    "conv": (lambda a, b: lax.conv(a, b, (1, 1), "SAME"), ["f32[2,2,4,4]", "f32[2,2,4,4]"]),
    "top_k": (lambda a: lax.top_k(a, 4), ["f32[4]"]),
    "pad": (lambda a: lax.pad(a, jnp.float32(0), [(1, -1, 0)]), ["f32[4]"]),
    "scatter": (
        lambda a, i, u: lax.scatter_add(
            a, i, u, lax.ScatterDimensionNumbers((), (0,), (0,)), indices_are_sorted=False
        ),
        ["f32[4]", "i32[4,1]", "f32[4]"],
    ),
    "mixed shapes": (lambda a: lax.bitcast_convert_type(a, jnp.uint8), ["f32[4]"]),
}


@pytest.mark.parametrize("case", WHOLE)
def test_other_ops_are_not_split(case: str) -> None:
    f, types = WHOLE[case]
    node = only_node(f, [random_array(type_from(text)) for text in types])
    assert lookup(node.op).factors(node) is None
