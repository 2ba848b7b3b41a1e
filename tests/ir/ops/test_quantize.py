"""Quantisation: error bounds by dtype, exact cases, and products with quantised weights."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.ops import references
from tests.ir.ops.run import DTYPES, normal, run
from tests.tolerances import assert_close
from tkcc.ir.ops.quantize import QUANTIZED, largest
from tkcc.ir.types import dtype_name, jax_dtype

# The largest error of one element: half a step of integers (relative to the slice's largest
# magnitude), half a unit in the last place of floats (relative to the element, then the smallest
# step near zero relative to the largest magnitude).
STEPS = {"i8": (0.0, 0.5 / 127), "i4": (0.0, 0.5 / 7)}
STEPS |= {"f8e4m3fn": (2.0**-4, 2.0**-10 / 448), "f8e5m2": (2.0**-3, 2.0**-17 / 57344)}


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", QUANTIZED)
def test_dequantised_values_are_within_half_a_step(source: str, axis: int, name: str) -> None:
    x = normal((32, 16), source) * 10
    q, scale = run("quantize", x, dtype=jax_dtype(name), axis=axis)
    assert (dtype_name(q.dtype), scale.dtype) == (name, jnp.float32)
    assert scale.shape == tuple(1 if i == axis % 2 else n for i, n in enumerate(x.shape))
    back = references.wide(run("dequantize", q, scale, dtype=np.dtype("float32")))
    exact, top = references.wide(x), np.abs(references.wide(x)).max(axis, keepdims=True)
    relative, absolute = STEPS[name]
    slack = 1 + 1e-5  # of float32 arithmetic
    bound = np.maximum(relative * np.abs(exact), absolute * top) * slack
    assert (np.abs(back - exact) <= bound).all()


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_largest_magnitude_of_a_slice_is_kept(name: str) -> None:
    x = normal((8, 4))
    q, scale = run("quantize", x, dtype=jax_dtype(name))
    top = np.abs(np.asarray(q).astype(np.float32)).max(axis=0)
    np.testing.assert_array_equal(top, np.full(4, largest(name)))
    np.testing.assert_allclose(top * scale[0], np.abs(x).max(axis=0), rtol=1e-6)


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_slice_of_zeros_has_scale_one(name: str) -> None:
    q, scale = run("quantize", np.zeros((4, 2), np.float32), dtype=jax_dtype(name))
    assert not np.asarray(q).astype(np.float32).any()
    np.testing.assert_array_equal(scale, np.ones((1, 2)))


def test_integers_round_to_nearest_even() -> None:
    x = np.array([[127.0], [0.5], [1.5], [-2.5], [-127.0]], np.float32)
    q, _ = run("quantize", x, dtype=np.dtype("int8"))
    np.testing.assert_array_equal(q[:, 0], [127, 0, 2, -2, -127])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_quantized_linear_is_linear_of_the_dequantised_weight(
    dtype: str, name: str, transposed: bool, with_bias: bool
) -> None:
    x, w = normal((3, 32), dtype), normal((8, 32) if transposed else (32, 8), seed=1)
    q, scale = run("quantize", w, dtype=jax_dtype(name), axis=1 if transposed else 0)
    bias = normal((8,), dtype, 2) if with_bias else None
    got = run("quantized_linear", x, q, scale, optional={"bias": bias}, transposed=transposed)
    weight = references.wide(q) * references.wide(scale)
    assert got.dtype == x.dtype
    assert_close(got, references.linear(x, weight, bias, transposed), dtype)


def test_dequantize_broadcasts_and_rounds_once() -> None:
    q, scale = np.array([[1, -3], [100, 7]], np.int8), np.array([[0.1, 0.3]], np.float32)
    got: Any = run("dequantize", q, scale, dtype=jnp.bfloat16)
    np.testing.assert_array_equal(got, (q.astype(np.float32) * scale).astype(jnp.bfloat16))
