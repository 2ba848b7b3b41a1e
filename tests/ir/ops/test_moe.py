"""Routing and routed experts against one token at a time in float64 numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ir.ops import references
from tests.ir.ops.run import DTYPES, normal, run
from tests.tolerances import assert_close
from tkcc.ir.errors import IRError

BIAS = normal((8,), seed=3)
ROUTES: list[dict[str, Any]] = [
    {"k": 1},
    {"k": 8},
    {"k": 2, "normalize": False},
    {"k": 2, "scale": 2.5},
    {"k": 3, "scoring": "sigmoid"},
    {"k": 3, "scoring": "sigmoid", "normalize": False},
    {"k": 3, "scoring": "softmax_topk"},
    {"k": 2, "groups": 4, "top_groups": 2},
    {"k": 4, "groups": 8, "top_groups": 5},
    {"k": 2, "scoring": "sigmoid", "groups": 2, "scale": 0.5},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [None, BIAS], ids=["", "bias"])
@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_moe_route(dtype: str, bias: Any, route: dict[str, Any]) -> None:
    logits = normal((6, 8), dtype)
    weights, ids = run("moe_route", logits, optional={"bias": bias}, **route)
    want_weights, want_ids = references.moe_route(logits, bias=bias, **route)
    np.testing.assert_array_equal(ids, want_ids)
    assert (weights.dtype, ids.dtype) == (np.float32, np.int32)
    assert_close(weights, want_weights, "f32")


def test_equal_logits_choose_the_first_experts() -> None:
    _, ids = run("moe_route", np.zeros((2, 8), np.float32), k=3)
    np.testing.assert_array_equal(ids, [[0, 1, 2]] * 2)


def test_the_bias_chooses_but_does_not_weigh() -> None:
    logits, bias = np.zeros((1, 4), np.float32), np.array([0, 0, 9, 0], np.float32)
    weights, ids = run("moe_route", logits, optional={"bias": bias}, k=1, normalize=False)
    assert (int(ids[0, 0]), float(weights[0, 0])) == (2, 0.25)


def experts(dtype: str) -> list[Any]:
    shapes = ((4, 16, 8), (4, 16, 8), (4, 8, 16))
    return [normal(shape, dtype, 5 + i) / 4 for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_moe_experts(dtype: str, kind: str) -> None:
    x = normal((6, 16), dtype)
    weights, ids = references.moe_route(normal((6, 4), seed=2), 2)
    gate, up, down = (w.astype(x.dtype) for w in experts(dtype))
    got = run("moe_experts", x, weights.astype(np.float32), ids, gate, up, down, activation=kind)
    assert_close(got, references.moe_experts(x, weights, ids, gate, up, down, kind=kind), dtype)


@pytest.mark.parametrize("given", [("gate_bias", "up_bias", "down_bias"), ("up_bias",), ()])
def test_moe_experts_with_biases_and_the_clamped_unit(given: tuple[str, ...]) -> None:
    x = normal((6, 16)) * 8  # so that gates and ups pass the limit of 7
    weights, ids = references.moe_route(normal((6, 4), seed=2), 2)
    matrices = [w.astype(np.float32) for w in experts("f32")]
    shapes = {"gate_bias": (4, 8), "up_bias": (4, 8), "down_bias": (4, 16)}
    biases = {key: normal(shapes[key], seed=8 + i) for i, key in enumerate(given)}
    assert (np.einsum("nd,edf->nef", x, matrices[0]) > 7).any()
    operands = (x, weights.astype(np.float32), ids, *matrices)
    got = run("moe_experts", *operands, optional=biases, activation="clamped_swiglu")
    want = references.moe_experts(x, weights, ids, *matrices, kind="clamped_swiglu", **biases)
    assert_close(got, want, "f32")


def test_a_bias_of_another_shape_is_refused_by_name() -> None:
    x = normal((6, 16))
    weights, ids = references.moe_route(normal((6, 4), seed=2), 2)
    operands = (x, weights.astype(np.float32), ids, *experts("f32"))
    with pytest.raises(IRError, match=r"down_bias is f32\[4,8\], not \[4, 16\]"):
        run("moe_experts", *operands, optional={"down_bias": normal((4, 8))})


def test_an_expert_chosen_twice_counts_twice_and_ids_outside_add_nothing() -> None:
    x, gates = normal((3, 16)), [w.astype(np.float32) for w in experts("f32")]
    weights = np.array([[0.25, 0.5]] * 3, np.float32)
    ids = np.array([[1, 1], [2, 9], [-1, 2]], np.int32)
    got = run("moe_experts", x, weights, ids, *gates)
    share = np.array([[0.75], [0.25], [0.5]], np.float32)
    alone = np.array([[1], [2], [2]], np.int32)
    assert_close(got, references.moe_experts(x, share, alone, *gates), "f32")
