"""The range of visible keys is the definition of visibility, and blocks of queries bound it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tkcc.backends.xla.kernels.attention import Sizes, visible_keys, visible_range
from tkcc.backends.xla.kernels.flash_attention.config import BOUNDS, Config, tiles_of
from tkcc.backends.xla.kernels.flash_attention.pallas import block_bounds

KEYS = 24
QUERIES = 40
SIZES = Sizes(batch=2, queries=QUERIES, heads=1, key_heads=1, keys=KEYS, width=8)

positions = st.lists(st.integers(-2, KEYS + 8), min_size=2 * QUERIES, max_size=2 * QUERIES)
lengths = st.none() | st.tuples(st.integers(0, KEYS), st.integers(0, KEYS))
windows = st.none() | st.integers(1, KEYS + 4)


@settings(max_examples=30)
@given(positions, lengths, windows, st.booleans())
def test_range_holds_exactly_the_visible_keys(
    at: list[int], ends: tuple[int, int] | None, window: int | None, causal: bool
) -> None:
    position = jnp.asarray(at, jnp.int32).reshape(2, QUERIES)
    length = None if ends is None else jnp.asarray(ends, jnp.int32)
    first, stop = visible_range(SIZES, position, length, causal=causal, window=window)
    key = np.arange(KEYS)
    inside = (key >= np.asarray(first)[..., None]) & (key < np.asarray(stop)[..., None])
    visible = visible_keys(SIZES, position, length, causal=causal, window=window)
    np.testing.assert_array_equal(inside, visible)


@settings(max_examples=30)
@given(positions, windows)
def test_bounds_of_a_block_are_of_any_and_of_all_its_queries(
    at: list[int], window: int | None
) -> None:
    position = jnp.asarray(at, jnp.int32).reshape(2, QUERIES)
    first, stop = visible_range(SIZES, position, None, causal=True, window=window)
    tiles = tiles_of(SIZES, Config(block_t=16))
    found = np.asarray(block_bounds(first, stop, tiles)).reshape(2, 3, BOUNDS)
    for batch, block in np.ndindex(2, 3):
        rows = slice(block * 16, min(QUERIES, block * 16 + 16))
        firsts, stops = first[batch, rows], stop[batch, rows]
        want = [firsts.min(), stops.max(), firsts.max(), stops.min()]
        np.testing.assert_array_equal(found[batch, block], want)
