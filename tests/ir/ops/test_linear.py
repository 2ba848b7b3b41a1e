"""Matrix products and embeddings against float64 numpy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.ops import references
from tests.ir.ops.run import DTYPES, normal, run
from tests.tolerances import assert_close
from tkcc.ir.types import dtype_name


@pytest.mark.parametrize("dtype", [*DTYPES, "f16"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_linear(dtype: str, transposed: bool, with_bias: bool, lead: tuple[int, ...]) -> None:
    x = normal((*lead, 64), dtype)
    w = normal((8, 64) if transposed else (64, 8), dtype, 1) / 8
    bias = normal((8,), dtype, 2) if with_bias else None
    got = run("linear", x, w.astype(x.dtype), optional={"bias": bias}, transposed=transposed)
    assert dtype_name(got.dtype) == dtype
    assert_close(got, references.linear(x, w.astype(x.dtype), bias, transposed), dtype)


def test_products_are_accumulated_in_float32() -> None:
    x, w = np.ones((1, 4096), jnp.bfloat16), np.ones((4096, 1), jnp.bfloat16)
    assert float(run("linear", x, w)[0, 0]) == 4096  # bfloat16 sums stop at 256


@pytest.mark.parametrize(
    ("x", "w", "out"),
    [("bf16", "f32", "f32"), ("f32", "bf16", "f32"), ("f16", "bf16", "f32"), ("i8", "f32", "f32")],
)
def test_mixed_dtypes_are_widened_as_in_jax(x: str, w: str, out: str) -> None:
    left, right = normal((2, 8), x), normal((8, 4), w, 1)
    got = run("linear", left, right)
    assert dtype_name(got.dtype) == out
    assert_close(got, references.linear(left, right), "f32")


def test_integer_products_are_exact() -> None:
    x, w = (np.arange(6, dtype=np.int32).reshape(s) for s in ((2, 3), (3, 2)))
    np.testing.assert_array_equal(run("linear", x, w), x @ w)


@pytest.mark.parametrize("ids", [np.int32, np.uint8, np.int8], ids=lambda t: t.__name__)
def test_embedding_picks_rows(ids: Any) -> None:
    table, at = normal((9, 4)), np.array([[0, 8], [3, 3]], ids)
    np.testing.assert_array_equal(run("embedding", table, at), table[at])


def test_embedding_clamps_ids_on_both_sides() -> None:
    table = normal((9, 4))
    got = run("embedding", table, np.array([-1, -100, 9, 2**31 - 1], np.int32))
    np.testing.assert_array_equal(got, table[[0, 0, 8, 8]])
