"""Paged caches against dense ones, and what falls outside of the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.ops import references
from tests.ir.ops.run import run
from tests.ir.samples import type_from
from tkcc.ir.errors import IRError
from tkcc.ir.graph import Value
from tkcc.ir.op import build

LAYERS, PAGES, SIZE, HEADS, WIDTH = 2, 9, 4, 2, 3
BATCH, COLUMNS = 2, 3


def _pool(seed: int = 0) -> Any:
    shape = (LAYERS, PAGES, SIZE, HEADS, WIDTH)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _tables(seed: int) -> Any:
    pages = np.random.default_rng(seed).permutation(np.arange(1, PAGES))
    return pages[: BATCH * COLUMNS].reshape(BATCH, COLUMNS).astype(np.int32)


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(1, 5), st.integers(0, LAYERS - 1))
def test_pages_hold_what_a_dense_cache_would(seed: int, count: int, layer: int) -> None:
    draw = np.random.default_rng(seed)
    pool, table = _pool(seed), _tables(seed)
    start = draw.integers(0, COLUMNS * SIZE - count, BATCH, endpoint=True).astype(np.int32)
    new = draw.normal(size=(BATCH, count, HEADS, WIDTH)).astype(np.float32)
    index = np.int32(layer)
    dense = run("gather_pages", pool, index, table)
    changed = run("update_pages", pool, new, start, index, table)
    want = references.update_cache(dense, new, start, "bshd")
    np.testing.assert_array_equal(run("gather_pages", changed, index, table), want)
    others = [page for page in range(PAGES) if page not in table]
    np.testing.assert_array_equal(changed[:, others], pool[:, others])
    np.testing.assert_array_equal(np.delete(changed, layer, 0), np.delete(pool, layer, 0))


@pytest.mark.parametrize("start", [-3, COLUMNS * SIZE - 1, COLUMNS * SIZE + 5])
def test_positions_outside_the_table_touch_page_0_alone(start: int) -> None:
    pool, table = _pool(), _tables(0)
    new = np.ones((BATCH, 2, HEADS, WIDTH), np.float32)
    at = np.array([start, 0], np.int32)
    changed = run("update_pages", pool, new, at, np.int32(0), table)
    untouched = [p for p in range(1, PAGES) if p not in (table[0, -1], table[1, 0])]
    np.testing.assert_array_equal(changed[:, untouched], pool[:, untouched])
    inside = np.arange(start, start + 2)
    inside = inside[(inside >= 0) & (inside < COLUMNS * SIZE)]
    got = run("gather_pages", changed, np.int32(0), table)[0]
    assert (got[inside] == 1).all()


def test_entries_that_name_no_page_read_and_write_page_0() -> None:
    pool = _pool()
    table = np.array([[-1, PAGES, 0], [3, 4, 5]], np.int32)
    got = run("gather_pages", pool, np.int32(1), table)
    np.testing.assert_array_equal(got[0, :SIZE], pool[1, 0])
    np.testing.assert_array_equal(got[0, SIZE : 2 * SIZE], pool[1, 0])
    new = np.ones((BATCH, 1, HEADS, WIDTH), np.float32)
    changed = run("update_pages", pool, new, np.array([SIZE, 0], np.int32), np.int32(1), table)
    assert (changed[1, 0, 0] == 1).all()
    np.testing.assert_array_equal(changed[1, PAGES - 1], pool[1, PAGES - 1])


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (("f32[7,2,2,5]", "f32[2,3,2,5]", "i32[2]", "i32[]", "i32[2,3]"), r"not \[l, p, s, h, d\]"),
        (("f32[3,7,2,2,5]", "f32[2,3,2,4]", "i32[2]", "i32[]", "i32[2,3]"), "but the pages are"),
        (("f32[3,7,2,2,5]", "f32[2,3,2,5]", "i32[3]", "i32[]", "i32[2,3]"), "one position per row"),
        (("f32[3,7,2,2,5]", "f32[2,3,2,5]", "i32[2]", "i32[1]", "i32[2,3]"), r"not i32\[\]"),
        (("f32[3,7,2,2,5]", "f32[2,3,2,5]", "i32[2]", "i32[]", "f32[2,3]"), r"not i32\[b, m\]"),
    ],
)
def test_operands_that_do_not_fit_are_refused(types: tuple[str, ...], message: str) -> None:
    with pytest.raises(IRError, match=message):
        build("update_pages", *(Value(type_from(text)) for text in types))
