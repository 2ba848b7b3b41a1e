"""Choosing tokens: greedy ties, and draws that follow the distribution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.ops import references
from tests.ir.ops.run import DTYPES, normal, run


@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_takes_the_first_largest_logit(dtype: str) -> None:
    logits = normal((5, 33), dtype)
    logits[2, [7, 20]] = 50
    got = run("sample", logits)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, np.argmax(references.wide(logits), axis=-1))
    assert got[2] == 7


def draw(logits: Any, temperature: Any, seed: int = 0) -> Any:
    optional = {"temperature": temperature, "key": jax.random.key(seed)}
    return run("sample", logits, optional=optional, method="categorical")


def test_draws_follow_the_softmax_at_the_temperature() -> None:
    rows = 20000
    logits = np.repeat([[0.0, 1.0, 2.0]], rows, axis=0).astype(np.float32)
    got = draw(logits, np.full(rows, 2.0, np.float32))
    share = np.bincount(got, minlength=3) / rows
    want = references.softmax(logits[0] / 2)
    # Four standard deviations of a share.
    assert (np.abs(share - want) < 4 * np.sqrt(want * (1 - want) / rows)).all()


def test_the_temperature_is_per_row_and_a_low_one_is_greedy() -> None:
    logits = normal((64, 9))
    cold = draw(logits, np.full(64, 1e-3, np.float32))
    np.testing.assert_array_equal(cold, np.argmax(logits, axis=-1))
    mixed = np.where(np.arange(64) < 32, 1e-3, 1e3).astype(np.float32)
    got = draw(logits, mixed)
    np.testing.assert_array_equal(got[:32], cold[:32])
    assert (np.asarray(got[32:]) != np.asarray(cold[32:])).any()


def test_draws_depend_on_the_key_alone() -> None:
    logits, warm = normal((64, 9)), np.ones(64, np.float32)
    np.testing.assert_array_equal(draw(logits, warm), draw(logits, warm))
    assert (np.asarray(draw(logits, warm)) != np.asarray(draw(logits, warm, seed=1))).any()


def test_a_logit_of_minus_infinity_is_never_drawn() -> None:
    logits = jnp.where(jnp.arange(4) == 2, 0.0, -jnp.inf) * jnp.ones((8, 1))
    np.testing.assert_array_equal(draw(logits, np.ones(8, np.float32)), np.full(8, 2))
