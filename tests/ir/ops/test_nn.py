"""Norms, activations, gated units and rotary embeddings against float64 numpy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.ops import references
from tests.ir.ops.run import DTYPES, normal, run
from tests.tolerances import assert_close
from tkcc.ir.ops.nn import ACTIVATIONS

pytestmark = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm(dtype: str, plus_one: bool, eps: float) -> None:
    x, w = normal((2, 3, 64), dtype), normal((64,), dtype, 1)
    want = references.rms_norm(x, w, eps, plus_one)
    assert_close(run("rms_norm", x, w, eps=eps, plus_one=plus_one), want, dtype)


def test_rms_norm_of_zeros_is_zero_and_of_large_numbers_is_finite(dtype: str) -> None:
    w = np.ones(8, np.float32)
    zeros, large = np.zeros((1, 8)), np.full((1, 8), 3e15)
    x = jnp.asarray(np.concatenate([zeros, large])).astype(normal((1,), dtype).dtype)
    assert_close(run("rms_norm", x, w), np.repeat([[0.0], [1.0]], 8, axis=1), dtype)


def test_rms_normalize_is_rms_norm_without_weight(dtype: str) -> None:
    x = normal((4, 32), dtype)
    want = references.rms_norm(x, np.ones(32), 1e-5)
    assert_close(run("rms_normalize", x, eps=1e-5), want, dtype)


def test_residual_rms_norm_norms_the_rounded_sum(dtype: str) -> None:
    x, r, w = normal((4, 32), dtype), normal((4, 32), dtype, 1), normal((32,), dtype, 2)
    total, normed = run("residual_rms_norm", x, r, w)
    np.testing.assert_array_equal(total, x + r)
    assert_close(normed, references.rms_norm(np.asarray(total), w, 1e-6), dtype)


@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_norm(dtype: str, with_bias: bool) -> None:
    x, w = normal((2, 3, 64), dtype) + 3, normal((64,), dtype, 1)
    bias = normal((64,), dtype, 2) if with_bias else None
    want = references.layer_norm(x, w, bias, 1e-5)
    assert_close(run("layer_norm", x, w, optional={"bias": bias}), want, dtype)


def test_softmax(dtype: str) -> None:
    x = normal((3, 17), dtype) * 5
    assert_close(run("softmax", x), references.softmax(x), dtype)


@pytest.mark.parametrize("kind", list(ACTIVATIONS))
def test_activations_and_gated_units(dtype: str, kind: str) -> None:
    x, up = normal((3, 32), dtype) * 3, normal((3, 32), dtype, 1)
    want = references.activation(kind, x)
    assert_close(run("activation", x, kind=kind), want, dtype)
    assert_close(run("swiglu", x, up, activation=kind), want * references.wide(up), dtype)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", [8, 4])
@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_rope(dtype: str, interleaved: bool, rotary: int, scale: float) -> None:
    x = normal((2, 5, 3, 8), dtype)
    positions = np.array([[0, 1, 2, 3, 4], [7, 90, 3, 1000, 12]], np.int32)
    inv_freq = (10000.0 ** -(np.arange(0, rotary, 2) / rotary)).astype(np.float32)
    keywords: dict[str, Any] = {"interleaved": interleaved, "scale": scale}
    # An angle in float32 is off by its rounding: 1000 * 2 ** -24.
    want = references.rope(x, positions, inv_freq, **keywords)
    got = run("rope", x, positions, inv_freq, **keywords)
    if dtype == "f32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4)
    else:
        assert_close(got, want, dtype)
    np.testing.assert_array_equal(got[..., rotary:], x[..., rotary:])


def test_rope_at_position_zero_changes_nothing(dtype: str) -> None:
    x = normal((1, 2, 1, 4), dtype)
    zeros = np.zeros((1, 2), np.int32)
    np.testing.assert_array_equal(run("rope", x, zeros, np.ones(2, np.float32)), x)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_depends_on_the_distance_of_positions_only(dtype: str, interleaved: bool) -> None:
    q, k = normal((1, 1, 1, 8), dtype), normal((1, 1, 1, 8), dtype, 1)
    inv_freq = np.array([1.0, 0.3, 0.1, 0.01], np.float32)

    def score(a: int, b: int) -> float:
        turned = [
            run("rope", x, np.array([[p]], np.int32), inv_freq, interleaved=interleaved)
            for x, p in ((q, a), (k, b))
        ]
        return float(np.sum(references.wide(turned[0]) * references.wide(turned[1])))

    assert_close(score(3, 1), score(13, 11), dtype)
