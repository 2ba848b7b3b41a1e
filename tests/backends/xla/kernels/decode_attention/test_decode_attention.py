"""decode_attention against its reference, and the reference against float64 numpy."""

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
from tkcc.backends.xla.kernels.decode_attention import (
    Config,
    decode_attention,
    reference,
    refuses,
    schedules,
    vmem_bytes,
)
from tkcc.backends.xla.kernels.decode_attention.config import tiles_of
from tkcc.backends.xla.kernels.decode_attention.pallas import cache_index

MERGED = Config(128, merge_heads=True)
APART = Config(128)

# Groups of query heads, odd cache lengths and widths, both layouts, windows, lengths.
CASES = [
    (Case(3, 1, 300, 8, 2, 64, lengths=True), MERGED),
    (Case(3, 1, 300, 8, 2, 64, window=100), APART),
    (Case(2, 1, 512, 8, 8, 32), MERGED),
    (Case(2, 1, 384, 8, 4, 40, window=130, lengths=True), MERGED),
    (Case(2, 1, 512, 4, 4, 128, layout="bhsd", lengths=True), APART),
    (Case(2, 1, 257, 5, 1, 80, layout="bhsd", window=300), APART),
    (Case(2, 1, 40, 6, 3, 32, window=7), Config()),
    (Case(1, 1, 1, 2, 1, 16), APART),
]


def attended(case: Case, arrays: list[Any], config: Config) -> jax.Array:
    call = functools.partial(decode_attention, **case.keywords, config=config, interpret=True)
    return run(call, *arrays)


def plain(case: Case, arrays: list[Any]) -> jax.Array:
    return run(functools.partial(reference, **case.keywords), *arrays)


@pytest.mark.parametrize("case", [case for case, _ in CASES[:7]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_is_the_formula_in_float64(dtype: Any, case: Case) -> None:
    arrays = case.operands(dtype)
    got = plain(case, arrays)
    assert got.dtype == dtype
    assert_near(got, attend(case, arrays), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("case", "config"), CASES)
def test_kernel_gives_what_the_reference_gives(case: Case, config: Config, dtype: Any) -> None:
    arrays = case.operands(dtype)
    got = attended(case, arrays, config)
    assert got.dtype == dtype
    assert_near(got, plain(case, arrays), dtype)


@pytest.mark.parametrize("config", [MERGED, APART])
def test_blocks_that_are_entirely_invisible_are_never_used(config: Config) -> None:
    case = Case(1, 1, 640, 4, 2, 32, window=128)
    q, k, v, _, _ = case.operands(jnp.float32)
    positions = jnp.array([[383]], jnp.int32)  # sees keys 256 to 383: exactly the third block
    outside = (jnp.arange(640) < 256) | (jnp.arange(640) >= 384)
    k, v = (jnp.where(outside[None, :, None, None], jnp.nan, cache) for cache in (k, v))
    want = attend(case, [q, k, v, positions, None])
    assert_near(attended(case, [q, k, v, positions, None], config), want, jnp.float32)


@pytest.mark.parametrize("merged", [True, False])
def test_only_visible_blocks_are_fetched_and_each_of_them_is(merged: bool) -> None:
    sizes = Sizes(batch=4, queries=1, heads=4, key_heads=2, keys=640, width=32)
    tiles = tiles_of(sizes, Config(128, merged))
    ranges = {0: (0, 640), 1: (0, 1), 2: (200, 300), 3: (511, 513)}
    first, stop = (jnp.asarray(ends, jnp.int32) for ends in zip(*ranges.values(), strict=True))
    for b, (begin, end) in ranges.items():
        steps = [cache_index(tiles)(b, step, first, stop) for step in range(tiles.key_blocks)]
        blocks = [int(index[1 if merged else 2]) for index in steps]
        assert sorted(set(blocks)) == list(range(begin // 128, (end - 1) // 128 + 1))
        assert blocks == sorted(blocks)  # the last one is repeated, which moves nothing


@pytest.mark.parametrize("config", [MERGED, APART])
def test_a_query_that_sees_no_key_gives_zeros(config: Config) -> None:
    case = Case(3, 1, 200, 4, 2, 32, lengths=True)
    q, k, v, _, _ = case.operands(jnp.float32)
    positions = jnp.array([[-1], [5], [150]], jnp.int32)
    lengths = jnp.array([200, 200, 0], jnp.int32)
    got = attended(case, [q, k, v, positions, lengths], config)
    np.testing.assert_array_equal(got[0], 0.0)
    np.testing.assert_array_equal(got[2], 0.0)
    assert float(jnp.abs(got[1]).max()) > 0.0


def test_a_query_far_past_its_window_gives_zeros() -> None:
    case = Case(1, 1, 200, 4, 2, 32, window=16)
    q, k, v, _, _ = case.operands(jnp.float32)
    got = attended(case, [q, k, v, jnp.array([[10_000]], jnp.int32), None], APART)
    np.testing.assert_array_equal(got, 0.0)


def test_large_scores_do_not_overflow() -> None:
    case = Case(1, 1, 300, 4, 2, 32)
    q, k, v, positions, _ = case.operands(jnp.float32)
    arrays = [q * 1e4, k, v, positions, None]
    assert_near(attended(case, arrays, MERGED), plain(case, arrays), jnp.float32)


def test_kernel_is_right_where_the_caller_uses_64_bit_types() -> None:
    case = Case(2, 1, 300, 8, 2, 32, window=70, lengths=True)
    arrays = case.operands(jnp.float32)
    want = plain(case, arrays)
    with jax.enable_x64(True):
        got = attended(case, arrays, MERGED)
    assert_near(got, want, jnp.float32)


def test_more_than_one_query_is_an_error() -> None:
    q, k, v, positions, _ = Case(2, 3, 64, 4, 2, 32).operands(jnp.float32)
    with pytest.raises(ValueError, match="q has 3 queries per sequence, but must have 1"):
        decode_attention(q, k, v, positions, scale=1.0, config=APART, interpret=True)


def test_malformed_visibility_is_an_error() -> None:
    q, k, v, positions, _ = Case(2, 1, 64, 4, 2, 32).operands(jnp.float32)
    call = functools.partial(decode_attention, q, k, v, scale=1.0, config=APART, interpret=True)
    with pytest.raises(ValueError, match=r"positions has shape \(2,\), but must be \[B=2, T=1\]"):
        call(positions[:, 0])
    with pytest.raises(ValueError, match="positions is float32, but must be int32"):
        call(positions.astype(jnp.float32))
    with pytest.raises(ValueError, match=r"lengths has shape \(3,\)"):
        call(positions, jnp.zeros(3, jnp.int32))
    with pytest.raises(ValueError, match="window is 0, but must be 1 or more"):
        call(positions, window=0)


def test_shapes_that_do_not_belong_together_are_named() -> None:
    q, k, v, _, _ = Case(2, 1, 64, 4, 2, 32).operands(jnp.float32)
    with pytest.raises(ValueError, match="q has 3 heads, which is no multiple of the 2 heads"):
        refuses(q[:, :, :3], k, v, config=APART, platform="cpu")
    with pytest.raises(ValueError, match=r"v has shape \(2, 32, 2, 32\), but must be \[B=2, S=64"):
        refuses(q, k, v[:, :32], config=APART, platform="cpu")
    unknown: Any = "sbhd"
    with pytest.raises(ValueError, match="layout 'sbhd' is none of bshd, bhsd"):
        refuses(q, k, v, layout=unknown, config=APART, platform="cpu")


def test_merging_is_refused_where_key_heads_fill_no_tile() -> None:
    three = shapes_of(*Case(2, 1, 64, 6, 3, 32).operands(jnp.float32)[:3])
    reason = refuses(*three, config=MERGED, platform="tpu-v5e")
    assert reason is not None
    assert reason.endswith("but there are 3")
    apart = shapes_of(*Case(2, 1, 64, 6, 2, 32, layout="bhsd").operands(jnp.float32)[:3])
    reason = refuses(*apart, layout="bhsd", config=MERGED, platform="tpu-v5e")
    assert reason is not None
    assert 'in "bhsd" the keys of a head lie together already' in reason


def test_the_first_schedule_merges_wherever_that_is_held() -> None:
    shapes = ((4, 1, 32, 128), (4, 8192, 8, 128), (4, 8192, 8, 128))
    eight = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    five = shapes_of(*Case(2, 1, 2048, 5, 5, 64).operands(jnp.bfloat16)[:3])
    for platform in ("tpu-v4", "tpu-v6e", "cpu"):
        assert schedules(*eight, platform=platform)[0].merge_heads
    assert not any(config.merge_heads for config in schedules(*five, platform="tpu-v6e"))


def test_vmem_grows_with_the_block_and_stops_at_the_cache() -> None:
    shapes = shapes_of(*Case(2, 1, 1024, 8, 8, 64).operands(jnp.bfloat16)[:3])
    sizes = [vmem_bytes(*shapes, config=Config(block_s)) for block_s in (128, 512, 1024, 4096)]
    assert sizes[0] < sizes[1] < sizes[2] == sizes[3]
