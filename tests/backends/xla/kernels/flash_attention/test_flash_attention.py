"""flash_attention against its reference, and the reference against float64 numpy."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.backends.xla.kernels.attention_cases import Case, attend
from tests.backends.xla.kernels.base import DTYPES, assert_near, run, shapes_of
from tkcc.backends.xla.kernels.attention import Sizes
from tkcc.backends.xla.kernels.flash_attention import (
    Config,
    flash_attention,
    reference,
    refuses,
    schedules,
    vmem_bytes,
)
from tkcc.backends.xla.kernels.flash_attention.config import tiles_of
from tkcc.backends.xla.kernels.flash_attention.pallas import key_index

SMALL = Config(32, 128)

# (case, config, causal): groups of query heads, a part of a longer cache, odd edges, both layouts.
CASES = [
    (Case(2, 300, 300, 4, 2, 64, lengths=True), Config(64, 128), True),
    (Case(1, 100, 300, 8, 2, 64, window=50), SMALL, True),
    (Case(2, 40, 512, 4, 4, 128, layout="bhsd", lengths=True), SMALL, False),
    (Case(2, 37, 37, 3, 1, 80, window=9), SMALL, False),
    (Case(1, 64, 384, 2, 2, 32, layout="bhsd", window=200, lengths=True), Config(16, 128), True),
    (Case(2, 1, 200, 4, 2, 32), Config(), True),
]


def attended(case: Case, arrays: list[Any], config: Config, causal: bool = True) -> jax.Array:
    keywords = {**case.keywords, "causal": causal}
    call = functools.partial(flash_attention, **keywords, config=config, interpret=True)
    return run(call, *arrays)


def plain(case: Case, arrays: list[Any], causal: bool = True) -> jax.Array:
    return run(functools.partial(reference, **case.keywords, causal=causal), *arrays)


@pytest.mark.parametrize(("case", "causal"), [(case, causal) for case, _, causal in CASES])
def test_reference_is_the_formula_in_float64(case: Case, causal: bool) -> None:
    arrays = case.operands(jnp.float32)
    got = plain(case, arrays, causal)
    assert_near(got, attend(case, arrays, causal), jnp.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "config", "causal"), CASES)
def test_kernel_gives_what_the_reference_gives(
    case: Case, config: Config, causal: bool, dtype: Any
) -> None:
    arrays = case.operands(dtype)
    got = attended(case, arrays, config, causal)
    assert got.dtype == dtype
    assert_near(got, plain(case, arrays, causal), dtype)


def test_key_blocks_that_no_query_of_a_block_sees_are_never_used() -> None:
    case = Case(1, 128, 640, 2, 1, 32, window=1)
    q, k, v, _, _ = case.operands(jnp.float32)
    positions = jnp.arange(256, 384, dtype=jnp.int32)[None]  # sees the third block of keys alone
    outside = (jnp.arange(640) < 256) | (jnp.arange(640) >= 384)
    k, v = (jnp.where(outside[None, :, None, None], jnp.nan, cache) for cache in (k, v))
    arrays = [q, k, v, positions, None]
    assert_near(attended(case, arrays, SMALL), attend(case, arrays), jnp.float32)


def test_only_visible_blocks_are_fetched_and_each_of_them_is() -> None:
    sizes = Sizes(batch=1, queries=96, heads=4, key_heads=2, keys=640, width=32)
    tiles = tiles_of(sizes, SMALL)
    ranges = {0: (0, 640), 1: (200, 300), 2: (511, 513)}
    bounds = jnp.asarray([[*ends, 0, 0] for ends in ranges.values()], jnp.int32).reshape(-1)
    for t, (begin, end) in ranges.items():
        steps = [key_index(tiles)(0, 1, t, step, bounds) for step in range(tiles.key_blocks)]
        blocks = [int(index[2]) for index in steps]
        assert sorted(set(blocks)) == list(range(begin // 128, (end - 1) // 128 + 1))
        assert blocks == sorted(blocks)  # the last one is repeated, which moves nothing


@pytest.mark.parametrize("length", [127, 128, 129])
def test_lengths_around_the_edge_of_a_block_are_exact(length: int) -> None:
    case = Case(1, 16, 256, 2, 1, 32)
    q, k, v, positions, _ = case.operands(jnp.float32)
    arrays = [q, k, v, positions, jnp.array([length], jnp.int32)]
    got = attended(case, arrays, SMALL, causal=False)
    assert_near(got, attend(case, arrays, causal=False), jnp.float32)


@pytest.mark.parametrize("window", [127, 128, 129])
def test_windows_around_the_edge_of_a_block_are_exact(window: int) -> None:
    case = Case(1, 1, 256, 2, 1, 32, window=window)
    q, k, v, _, _ = case.operands(jnp.float32)
    arrays = [q, k, v, jnp.array([[255]], jnp.int32), None]
    assert_near(attended(case, arrays, SMALL), attend(case, arrays), jnp.float32)


def test_positions_in_any_order_are_held() -> None:
    case = Case(1, 70, 300, 2, 1, 32, window=60)
    q, k, v, _, _ = case.operands(jnp.float32)
    shuffled = np.random.default_rng(0).integers(0, 300, size=(1, 70))
    arrays = [q, k, v, jnp.asarray(shuffled, jnp.int32), None]
    assert_near(attended(case, arrays, Config(16, 128)), attend(case, arrays), jnp.float32)


def test_queries_that_see_no_key_give_zeros_beside_others_that_do() -> None:
    case = Case(1, 32, 256, 2, 1, 32)
    q, k, v, _, _ = case.operands(jnp.float32)
    positions = jnp.where(jnp.arange(32) % 2 == 0, -1, jnp.arange(32) * 8).astype(jnp.int32)[None]
    arrays = [q, k, v, positions, None]
    got = attended(case, arrays, SMALL)
    np.testing.assert_array_equal(got[:, ::2], 0.0)
    assert_near(got, attend(case, arrays), jnp.float32)


def test_kernel_is_right_where_the_caller_uses_64_bit_types() -> None:
    case = Case(1, 50, 300, 4, 2, 32, window=70)
    arrays = case.operands(jnp.float32)
    want = plain(case, arrays)
    with jax.enable_x64(True):
        got = attended(case, arrays, SMALL)
    assert_near(got, want, jnp.float32)


def test_mixed_dtypes_are_refused_with_the_reason() -> None:
    q, k, v, positions, _ = Case(1, 8, 64, 4, 2, 32).operands(jnp.float32)
    narrow = jnp.asarray(k, jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="q is float32, k is bfloat16"):
        flash_attention(q, narrow, v, positions, scale=1.0, config=SMALL, interpret=True)


def test_too_many_query_blocks_for_scalar_memory_are_refused() -> None:
    q = jax.ShapeDtypeStruct((256, 32768, 1, 64), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((256, 32768, 1, 64), jnp.bfloat16)
    reason = refuses(q, k, k, config=Config(block_t=128), platform="tpu-v6e")
    assert reason is not None
    assert "256 x 256 query blocks need 1048576 bytes of scalar memory" in reason
    found = schedules(q, k, k, platform="tpu-v6e")
    assert found
    assert all(config.block_t >= 256 for config in found)


def test_vmem_grows_with_every_block() -> None:
    shapes = shapes_of(*Case(1, 512, 1024, 4, 2, 64).operands(jnp.bfloat16)[:3])
    least = vmem_bytes(*shapes, config=Config(128, 128))
    assert vmem_bytes(*shapes, config=Config(256, 128)) > least
    assert vmem_bytes(*shapes, config=Config(128, 256)) > least
