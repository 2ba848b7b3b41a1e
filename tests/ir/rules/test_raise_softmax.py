"""Plain softmax becomes the named op."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.ir.rules.raising import check, named, ops, plain, struct

STYLES = {
    "jax": lambda x: jax.nn.softmax(x),
    "own": lambda x: (
        jnp.exp(x - x.max(-1, keepdims=True))
        / jnp.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
    "without_maximum": lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=-1)[..., None],
    "reciprocal": lambda x: jnp.exp(x) * (1 / jnp.sum(jnp.exp(x), axis=-1, keepdims=True)),
    "constant_shift": lambda x: jnp.exp(x - 3.0) / jnp.exp(x - 3.0).sum(-1, keepdims=True),
    "by_float32": lambda x: jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("f", STYLES.values(), ids=STYLES.keys())
def test_spellings_of_softmax(f, dtype):
    after = check(plain(f, struct(dtype, 3, 4, 6)))
    assert ops(after) == {"softmax": 1}


def test_a_shift_that_varies_along_the_axis_belongs_to_the_operand():
    def f(x: Any) -> Any:
        e = jnp.exp(x - jnp.arange(6.0))
        return e / e.sum(-1, keepdims=True)

    after = check(plain(f, struct("f32", 3, 4, 6)))
    assert named(after) == {"softmax": 1}
    assert ops(after)["lax.sub"] == 1


NEAR_MISSES = {
    "other_axis": lambda x: jax.nn.softmax(x, axis=1),
    "both_axes": lambda x: jax.nn.softmax(x, axis=(1, 2)),
    "sum_over_another_axis": lambda x: jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True),
    "eps_in_the_denominator": lambda x: jnp.exp(x) / (jnp.exp(x).sum(-1, keepdims=True) + 1e-3),
    "other_sum": lambda x: jnp.exp(x) / jnp.exp(2 * x).sum(-1, keepdims=True),
    "maximum_below": lambda x: jnp.exp(x) / jnp.exp(x).max(-1, keepdims=True),
    "unequal_shifts": lambda x: jnp.exp(x) / jnp.exp(x - 1).sum(-1, keepdims=True),
}


@pytest.mark.parametrize("f", NEAR_MISSES.values(), ids=NEAR_MISSES.keys())
def test_near_misses(f):
    assert named(check(plain(f, struct("f32", 3, 6, 6)))) == {}


def test_exponentials_that_others_read_stay():
    def f(x: Any) -> Any:
        e = jnp.exp(x)
        return e / e.sum(-1, keepdims=True), e

    after = check(plain(f, struct("f32", 3, 6)))
    assert ops(after) == {"softmax": 1, "lax.exp": 1}
