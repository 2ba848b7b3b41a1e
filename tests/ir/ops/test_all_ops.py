"""What holds for every named op: text, types, costs, and splitting by its factors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.ops.cases import CASES, Case, name
from tests.ir.samples import assert_function_round_trips, one_node
from tests.tolerances import assert_same_program
from tkcc.ir.cost import node_cost
from tkcc.ir.factors import WHOLE, Factors
from tkcc.ir.graph import Node
from tkcc.ir.op import lookup, named_ops
from tkcc.ir.types import TensorType, type_of

PARTS = 2
NAMES = list(map(name, CASES))


def test_every_named_op_has_a_case() -> None:
    assert {case.op for case in CASES} == set(named_ops())


@pytest.mark.parametrize("case", CASES, ids=name)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_text_of_a_node_round_trips(case: Case, dtype: str) -> None:
    assert_function_round_trips(one_node(case.node(dtype=dtype)))


@functools.cache
def _whole(case_number: int, dtype: str = "f32") -> tuple[Any, ...]:
    """The case's results."""
    case = CASES[case_number]
    return case.program(case.node(dtype=dtype))(*case.inputs(dtype))


@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_inferred_types_are_those_of_the_evaluated_arrays(number: int, dtype: str) -> None:
    case = CASES[number]
    found = [_per_device(case, type_of(x)) for x in _whole(number, dtype)]
    assert found == [v.type for v in case.node(dtype=dtype).results]


def _per_device(case: Case, type_: TensorType) -> TensorType:
    return type_.with_shape(type_.shape[1:]) if case.mesh else type_


@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_results_are_finite(number: int) -> None:
    for result in _whole(number):
        numbers = np.asarray(result).astype(np.float64)
        # A part of the keys that a query does not see has the maximum -inf.
        assert np.isfinite(numbers).all() or CASES[number].op == "attention_partial"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_costs_are_not_negative(case: Case) -> None:
    cost = node_cost(case.node())
    assert cost.flops >= 0
    assert cost.bytes >= 0


def _factors(node: Node) -> Factors | None:
    return lookup(node.op).factors(node)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_factors_name_every_dimension_of_every_operand_and_result(case: Case) -> None:
    node = case.node()
    factors = _factors(node)
    if factors is None:
        return
    assert [len(term) for term in factors.operands] == [v.type.rank for v in node.operands]
    assert [len(term) for term in factors.results] == [v.type.rank for v in node.results]


def _splits(kind: str) -> list[Any]:
    """(case number, index) for every index that may be split, `parallel` or `reduced`."""
    pairs = []
    for number, case in enumerate(CASES):
        factors = _factors(case.node())
        for index in getattr(factors, kind) if factors is not None else ():
            if _can_be_cut(case, factors, index):
                pairs.append(pytest.param(number, index, id=f"{name(case)}-{index}"))
    return pairs


def _can_be_cut(case: Case, factors: Any, index: str) -> bool:
    """A dimension of size 1 is left to the case's larger sisters."""
    terms = zip(case.types(), factors.operands, strict=True)
    return not any(
        size == 1 and item == index
        for type_, term in terms
        for size, item in zip(type_.shape, term, strict=True)
    )


def _pieces(case: Case, inputs: Sequence[Any], factors: Factors, index: str) -> list[list[Any]]:
    """The inputs of each part: operands cut along the index, others as they are."""
    parts: list[list[Any]] = [[] for _ in range(PARTS)]
    for array, term in zip(inputs, factors.operands, strict=True):
        cut = _cut(array, term, index, 1 if case.mesh else 0)
        for part, piece in zip(parts, cut, strict=True):
            part.append(piece)
    if index in case.shifted:
        _shift(case, parts, factors, index)
    return parts


def _cut(array: Any, term: tuple[str, ...], index: str, offset: int) -> list[Any]:
    if index not in term:
        return [array] * PARTS
    dimension = term.index(index) + offset
    assert array.shape[dimension] % PARTS == 0, "choose even sizes for the case"
    return np.split(array, PARTS, axis=dimension)


def _shift(case: Case, parts: list[list[Any]], factors: Factors, index: str) -> None:
    """Let the operand that numbers the index count from each part's first one."""
    position = next(i for i, term in enumerate(factors.operands) if index in term)
    size = parts[0][position].shape[factors.operands[position].index(index)]
    for number, part in enumerate(parts):
        part[case.shifted[index]] = part[case.shifted[index]] - number * size


def _parts(number: int, index: str) -> tuple[Factors, list[tuple[Any, ...]]]:
    """The results of each part, computed apart."""
    case = CASES[number]
    factors = _factors(case.node())
    assert factors is not None
    pieces = _pieces(case, case.inputs(), factors, index)
    types = [_per_device(case, type_of(jnp.asarray(array))) for array in pieces[0]]
    program = case.program(case.node(types))
    return factors, [program(*piece) for piece in pieces]


@pytest.mark.parametrize(("number", "index"), _splits("parallel"))
def test_parts_along_a_parallel_index_join_to_the_whole(number: int, index: str) -> None:
    factors, parts = _parts(number, index)
    for place, (want, term) in enumerate(zip(_whole(number), factors.results, strict=True)):
        pieces = [part[place] for part in parts]
        if index in term:
            axis = term.index(index) + (1 if CASES[number].mesh else 0)
            assert_same_program(jnp.concatenate(pieces, axis=axis), want)
        else:
            for piece in pieces:
                assert_same_program(piece, want)


@pytest.mark.parametrize(("number", "index"), _splits("reduced"))
def test_parts_along_a_reduced_index_add_up_to_the_whole(number: int, index: str) -> None:
    if CASES[number].not_summed:
        pytest.skip(CASES[number].not_summed)
    _, parts = _parts(number, index)
    for place, want in enumerate(_whole(number)):
        total = sum(np.asarray(part[place], np.float64) for part in parts)
        np.testing.assert_allclose(total, want, rtol=1e-4, atol=1e-5)


def test_reduced_indices_are_those_of_linear_ops_only() -> None:
    found = {case.op for case in CASES for index in getattr(_factors(case.node()), "reduced", ())}
    assert found == {"linear", "quantized_linear", "moe_experts", "group"}


def test_whole_indices_are_neither_parallel_nor_reduced() -> None:
    for case in CASES:
        factors = _factors(case.node())
        if factors is not None:
            assert not any(WHOLE in index for index in (*factors.parallel, *factors.reduced))
