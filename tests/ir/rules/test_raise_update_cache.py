"""Writes of keys or values into a cache become update_cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.rules.raising import attributes, check, named, node, ops, plain, struct

B, S, H, D = 3, 10, 2, 4
BSHD, BHSD = (B, S, H, D), (B, H, S, D)


def slice_update(*before: int) -> Any:
    def f(cache: Any, new: Any, at: Any) -> Any:
        starts = [0, 0, 0, 0]
        starts[before[0]] = at
        return jax.lax.dynamic_update_slice(cache, new, starts)

    return f


def rows() -> Any:
    return jnp.arange(B)


# name -> (function, cache shape, shape of what is written, shape of positions)
WRITES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "slice": (slice_update(1), BSHD, (B, 3, H, D), ()),
    "slice of heads first": (slice_update(2), BHSD, (B, H, 3, D), ()),
    "in dim": (
        lambda c, n, at: jax.lax.dynamic_update_slice_in_dim(c, n, at, axis=1),
        BSHD,
        (B, 3, H, D),
        (),
    ),
    "index in dim": (
        lambda c, n, at: jax.lax.dynamic_update_index_in_dim(c, n, at, axis=1),
        BSHD,
        (B, 1, H, D),
        (),
    ),
    "vmap": (
        lambda c, n, at: jax.vmap(lambda c, n, at: jax.lax.dynamic_update_slice(c, n, (at, 0, 0)))(
            c, n, at
        ),
        BSHD,
        (B, 2, H, D),
        (B,),
    ),
    "vmap of heads first": (
        lambda c, n, at: jax.vmap(lambda c, n, at: jax.lax.dynamic_update_slice(c, n, (0, at, 0)))(
            c, n, at
        ),
        BHSD,
        (B, H, 2, D),
        (B,),
    ),
    "at rows": (lambda c, n, at: c.at[rows(), at].set(n[:, 0]), BSHD, (B, 1, H, D), (B,)),
    "at rows of heads first": (
        lambda c, n, at: c.at[rows(), :, at].set(n[:, :, 0]),
        BHSD,
        (B, H, 1, D),
        (B,),
    ),
    "at one position": (lambda c, n, at: c.at[:, at].set(n[:, 0]), BSHD, (B, 1, H, D), ()),
    "at consecutive positions": (
        lambda c, n, at: c.at[rows()[:, None], at[:, None] + jnp.arange(2)].set(n),
        BSHD,
        (B, 2, H, D),
        (B,),
    ),
    "where": (
        lambda c, n, at: jnp.where((jnp.arange(S) == at[:, None])[:, :, None, None], n, c),
        BSHD,
        (B, 1, H, D),
        (B,),
    ),
    "where of heads first": (
        lambda c, n, at: jnp.where((at == jnp.arange(S))[:, None], n, c),
        BHSD,
        (B, H, 1, D),
        (),
    ),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", WRITES)
def test_writes(name, dtype):
    f, cache, new, at = WRITES[name]
    args = struct(dtype, *cache), struct(dtype, *new), struct("i32", *at)
    positions = np.array([0, 4, 8])[: at[0] if at else 1].reshape(at) if at else np.int32(5)
    after = check(plain(lambda cache, new, at: f(cache, new, at), *args), {"at": positions})
    assert named(after) == {"update_cache": 1}
    assert set(ops(after)) <= {"update_cache", "lax.squeeze"}
    assert attributes(after, "update_cache")["layout"] == ("bshd" if cache == BSHD else "bhsd")
    assert node(after, "update_cache").operands[0] is after.function().inputs[0]


def test_a_write_at_a_fixed_place():
    for f in (
        lambda c, n: jax.lax.dynamic_update_slice(c, n, (0, 2, 0, 0)),
        lambda c, n: c.at[:, 2:5].set(n),
        lambda c, n: c.at[:, :3].set(n),
    ):
        after = check(plain(f, struct("f32", *BSHD), struct("f32", B, 3, H, D)))
        assert named(after) == {"update_cache": 1}


def test_a_write_past_the_end_is_moved_back_as_before():
    f, cache, new, at = WRITES["slice"]
    args = struct("f32", *cache), struct("f32", *new), struct("i32", *at)
    for position in (9, 100):
        check(plain(lambda cache, new, at: f(cache, new, at), *args), {"at": np.int32(position)})


NEAR_MISSES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "one row": (
        lambda c, n, at: jax.lax.dynamic_update_slice(c, n, (at, 0, 0, 0)),
        BSHD,
        (1, S, H, D),
        (),
    ),
    "channels": (slice_update(3), BSHD, (B, S, H, 2), ()),
    "two places": (
        lambda c, n, at: jax.lax.dynamic_update_slice(c, n, (0, at, at, 0)),
        BSHD,
        (B, 2, 1, D),
        (),
    ),
    "rank 3": (
        lambda c, n, at: jax.lax.dynamic_update_slice(c, n, (0, at, 0)),
        (B, S, D),
        (B, 2, D),
        (),
    ),
    "any positions": (
        lambda c, n, at: c.at[rows()[:, None], at].set(n),
        BSHD,
        (B, 2, H, D),
        (B, 2),
    ),
    "added": (lambda c, n, at: c.at[rows(), at].add(n[:, 0]), BSHD, (B, 1, H, D), (B,)),
    "rows in another order": (
        lambda c, n, at: c.at[rows()[::-1], at].set(n[:, 0]),
        BSHD,
        (B, 1, H, D),
        (B,),
    ),
    "every second position": (
        lambda c, n, at: c.at[rows()[:, None], at[:, None] + 2 * jnp.arange(2)].set(n),
        BSHD,
        (B, 2, H, D),
        (B,),
    ),
    "where before": (
        lambda c, n, at: jnp.where((jnp.arange(S) <= at[:, None])[:, :, None, None], n, c),
        BSHD,
        (B, 1, H, D),
        (B,),
    ),
    "the other way round": (
        lambda c, n, at: jnp.where((jnp.arange(S) == at[:, None])[:, :, None, None], c, n),
        BSHD,
        (B, 1, H, D),
        (B,),
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name):
    f, cache, new, at = NEAR_MISSES[name]
    args = struct("f32", *cache), struct("f32", *new), struct("i32", *at)
    positions = np.arange(int(np.prod(at))).reshape(at)
    after = check(plain(lambda cache, new, at: f(cache, new, at), *args), {"at": positions})
    assert named(after) == {}
