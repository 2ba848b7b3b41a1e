"""Attention in all its forms against one query at a time in float64 numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ir.ops import references
from tests.ir.ops.run import DTYPES, normal, run
from tests.tolerances import assert_close

B, T, S, H, G, D, E = 2, 4, 8, 4, 2, 16, 8
POSITIONS = np.array([[0, 3, 2, 7], [5, 1, 6, 4]], np.int32)
LENGTHS = np.array([3, 8], np.int32)
MASK = np.random.default_rng(9).random((B, 1, T, S)) < 0.6
BIAS = normal((H, T, S), seed=7)
SINKS = normal((H,), seed=8)

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({}, {}),
    "not causal": ({"causal": False}, {}),
    "window": ({"window": 3}, {}),
    "window, not causal": ({"window": 2, "causal": False}, {}),
    "window of one": ({"window": 1}, {}),
    "softcap": ({"softcap": 1.5}, {}),
    "bhsd": ({"layout": "bhsd"}, {}),
    "positions": ({}, {"positions": POSITIONS}),
    "positions and window": ({"window": 2}, {"positions": POSITIONS}),
    "lengths": ({"causal": False}, {"lengths": LENGTHS}),
    "mask": ({"causal": False}, {"mask": MASK}),
    "mask of all heads": ({}, {"mask": np.repeat(MASK, H, axis=1)}),
    "mask of keys": ({"causal": False}, {"mask": np.arange(S) % 3 > 0}),
    "bias": ({}, {"bias": BIAS}),
    "bias and softcap": ({"softcap": 2.0}, {"bias": BIAS}),
    "sinks": ({}, {"sinks": SINKS}),
    "all": (
        {"window": 6, "softcap": 3.0, "layout": "bhsd"},
        {"positions": POSITIONS, "lengths": LENGTHS, "mask": MASK, "bias": BIAS, "sinks": SINKS},
    ),
}


def qkv(dtype: str, groups: int = G, layout: str = "bshd") -> list[Any]:
    q = normal((B, T, H, D), dtype)
    k, v = normal((B, S, groups, D), dtype, 1), normal((B, S, groups, E), dtype, 2)
    return [q, k, v] if layout == "bshd" else [q, k.swapaxes(1, 2), v.swapaxes(1, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_attention(dtype: str, variant: str) -> None:
    attributes, optional = VARIANTS[variant]
    attributes = {"scale": 0.3, **attributes}
    operands = qkv(dtype, layout=attributes.get("layout", "bshd"))
    want = references.attention(*operands, **attributes, **optional)
    assert_close(run("attention", *operands, optional=optional, **attributes), want, dtype)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_query_heads_share_key_heads_in_order(groups: int) -> None:
    operands = qkv("f32", groups)
    want = references.attention(*operands, scale=0.3)
    assert_close(run("attention", *operands, scale=0.3), want, "f32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_that_sees_no_key_gives_zeros(dtype: str) -> None:
    operands = qkv(dtype)
    nothing = np.zeros((B,), np.int32)
    got = run("attention", *operands, optional={"lengths": nothing}, scale=0.3)
    np.testing.assert_array_equal(got, np.zeros((B, T, H, E)))
    got = run("attention", *operands, optional={"lengths": nothing, "sinks": SINKS}, scale=0.3)
    np.testing.assert_array_equal(got, np.zeros((B, T, H, E)))


def test_large_scores_do_not_overflow() -> None:
    q, k, v = qkv("f32")
    got = run("attention", q * 1e3, k * 1e3, v, scale=1.0)
    assert np.isfinite(got).all()
    got = run("attention", q, k, v, optional={"sinks": np.full(H, 500.0, np.float32)}, scale=1.0)
    np.testing.assert_allclose(got, 0, atol=1e-30)


PARTIAL = [name for name, (_, optional) in VARIANTS.items() if "sinks" not in optional]


@pytest.mark.parametrize("variant", PARTIAL)
@pytest.mark.parametrize("splits", [2, 8])
def test_parts_merge_to_attention(variant: str, splits: int) -> None:
    attributes, optional = VARIANTS[variant]
    attributes = {"scale": 0.3, **attributes}
    operands = qkv("f32", layout=attributes.get("layout", "bshd"))
    parts = run("attention_partial", *operands, optional=optional, splits=splits, **attributes)
    assert [part.dtype for part in parts] == [np.float32] * 3
    got = run("attention_merge", *parts, dtype=np.dtype("float32"))
    assert_close(got, references.attention(*operands, **attributes, **optional), "f32")


@pytest.mark.parametrize("splits", [1, 4])
def test_parts_of_bfloat16_merge_to_attention(splits: int) -> None:
    operands = qkv("bf16")
    parts = run("attention_partial", *operands, splits=splits, scale=0.3)
    got = run("attention_merge", *parts, dtype=operands[0].dtype)
    assert got.dtype == operands[0].dtype
    assert_close(got, references.attention(*operands, scale=0.3), "bf16")


def test_parts_that_see_nothing_merge_to_zeros() -> None:
    operands = qkv("f32")
    nothing = {"lengths": np.zeros(B, np.int32)}
    parts = run("attention_partial", *operands, optional=nothing, splits=2, scale=0.3)
    assert np.isneginf(parts[1]).all()
    merged = run("attention_merge", *parts, dtype=np.dtype("float32"))
    np.testing.assert_array_equal(merged, np.zeros((B, T, H, E)))


STARTS = [[0, 0], [5, 2], [9, 6], [-3, 100]]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_update_cache_writes_inside_the_cache(layout: str, start: list[int], dtype: str) -> None:
    shape = (B, S, G, D) if layout == "bshd" else (B, G, S, D)
    cache, new = normal(shape, dtype), normal((B, 3, G, D), "f32", 1)
    at = np.array(start, np.int32)
    want = references.update_cache(cache, new, at, layout)
    np.testing.assert_array_equal(run("update_cache", cache, new, at, layout=layout), want)


@pytest.mark.parametrize("start", [0, 6, -1, 9])
def test_update_cache_of_one_row(start: int) -> None:
    cache, new = normal((1, S, G, D)), normal((1, 3, G, D), seed=1)
    at = np.array([start], np.int32)
    want = references.update_cache(cache, new, at)
    np.testing.assert_array_equal(run("update_cache", cache, new, at), want)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(("index", "row"), [(0, 0), (2, 2), (7, 2), (-1, 0)])
def test_update_stacked_cache_writes_one_row(layout: str, index: int, row: int) -> None:
    shape = (3, B, S, G, D) if layout == "bshd" else (3, B, G, S, D)
    cache, new = normal(shape), normal((B, 2, G, D), seed=1)
    at = np.array([4, -2], np.int32)
    want = cache.copy()
    want[row] = references.update_cache(cache[row], new, at, layout)
    got = run("update_stacked_cache", cache, new, at, np.int32(index), layout=layout)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_attention(dtype: str) -> None:
    q, k, v = (normal((B, T, H, D if i < 2 else E), dtype, i) for i in range(3))
    decay = np.random.default_rng(3).uniform(0.5, 1, (B, T, H)).astype(q.dtype)
    state = normal((B, H, D, E), seed=4)
    out, new = run("linear_attention", q, k, v, decay, state)
    want_out, want_state = references.linear_attention(q, k, v, decay, state)
    assert_close(out, want_out, dtype)
    assert_close(new, want_state, "f32")
    assert (out.dtype, new.dtype) == (v.dtype, np.float32)


def test_linear_attention_goes_on_from_its_state() -> None:
    q, k, v = (normal((B, T, H, D if i < 2 else E), seed=i) for i in range(3))
    decay = np.full((B, T, H), 0.9, np.float32)
    state = normal((B, H, D, E), seed=4)
    whole, last = run("linear_attention", q, k, v, decay, state)
    first, middle = run("linear_attention", *(x[:, :1] for x in (q, k, v, decay)), state)
    rest, end = run("linear_attention", *(x[:, 1:] for x in (q, k, v, decay)), middle)
    assert_close(np.concatenate([first, rest], axis=1), references.wide(whole), "f32")
    assert_close(end, references.wide(last), "f32")
