"""Block arithmetic that the kernels share."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tkcc.backends.xla.kernels.schedule import Traffic, cheapest_first
from tkcc.backends.xla.kernels.tiling import clip, keep_below, padded_bytes, product


@pytest.mark.parametrize(
    ("block", "size", "clipped"), [(512, 4096, 512), (512, 100, 128), (512, 512, 512), (16, 1, 16)]
)
def test_a_block_is_cut_to_the_tiles_that_cover_its_dimension(
    block: int, size: int, clipped: int
) -> None:
    assert clip(block, size, 16 if block == 16 else 128) == clipped


@pytest.mark.parametrize(
    ("shape", "dtype", "count"),
    [
        ((8, 128), jnp.float32, 4096),
        ((9, 129), jnp.float32, 16 * 256 * 4),
        ((3, 16, 128), jnp.bfloat16, 3 * 4096),
        ((5, 128), jnp.bfloat16, 4096),
        ((100, 2, 64), jnp.bfloat16, 100 * 2 * 128 * 2),
        ((1, 128), jnp.float32, 2 * 128 * 4),
    ],
)
def test_arrays_take_whole_tiles_of_vmem(shape: tuple[int, ...], dtype: type, count: int) -> None:
    assert padded_bytes(shape, dtype) == count


def test_what_lies_past_the_end_is_replaced_even_if_it_is_nan() -> None:
    block = jnp.array([[1.0, jnp.nan], [2.0, jnp.nan]])
    np.testing.assert_array_equal(keep_below(block, 1, -1), [[1.0, 0.0], [2.0, 0.0]])
    np.testing.assert_array_equal(keep_below(block[:, :1], 1, 0), [[1.0], [0.0]])


@pytest.mark.parametrize("right_axis", [-1, -2])
def test_product_pairs_leading_axes_and_accumulates_in_float32(right_axis: int) -> None:
    left = jnp.full((2, 3, 512), 1.0, jnp.bfloat16)
    right = jnp.full((2, 512, 4) if right_axis == -2 else (2, 4, 512), 1.0, jnp.bfloat16)
    found = product(left, right + jnp.bfloat16(2**-7), right_axis)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, np.full((2, 3, 4), 512 * (1 + 2**-7), np.float32))


def test_schedules_with_less_traffic_and_fewer_steps_come_first() -> None:
    traffic = {
        "many steps": Traffic(moved=10**9, first=10**6, steps=10_000),
        "more moved": Traffic(moved=2 * 10**9, first=10**6, steps=100),
        "best": Traffic(moved=10**9, first=10**6, steps=100),
    }
    assert cheapest_first(traffic, traffic.__getitem__) == ["best", "more moved", "many steps"]
