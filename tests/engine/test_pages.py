"""Pages: sharing, eviction, and the hit rates of a real trace."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tkcc.engine.pages import PagePool, block_hashes

DATA = Path(os.environ.get("TKCC_DATA", Path(__file__).parents[3] / "shared" / "data"))
TRACE = DATA / "traces" / "mooncake_conversation.jsonl.gz"


def _read(pool: PagePool, keys: list[bytes], from_the_end: bool = True) -> int:
    """A request comes, is computed and goes. How many of its leading blocks were known."""
    known = pool.match(keys)
    pool.hold(known)
    fresh = pool.allocate(len(keys) - len(known))
    assert fresh is not None
    for page, key in zip(fresh, keys[len(known) :], strict=True):
        pool.remember(page, key)
    pages = [*known, *fresh]
    pool.release(reversed(pages) if from_the_end else pages)
    return len(known)


def _hit_percent(capacity: int, from_the_end: bool) -> float:
    pool, hits, blocks = PagePool(capacity + 1), 0, 0
    with gzip.open(TRACE, "rt", encoding="utf-8") as lines:
        for line in lines:
            keys = [key.to_bytes(8, "little") for key in json.loads(line)["hash_ids"]]
            blocks += len(keys)
            hits += _read(pool, keys, from_the_end)
    pool.check()
    return 100 * hits / blocks


@pytest.mark.skipif(not TRACE.exists(), reason="the traces are not here (TKCC_DATA)")
@pytest.mark.parametrize(
    ("capacity", "percent"), [(1_000, 4.4), (10_000, 21.1), (50_000, 35.5), (400_000, 36.6)]
)
def test_the_hit_rate_of_plain_lru_on_a_real_trace_is_the_known_one(
    capacity: int, percent: float
) -> None:
    assert round(_hit_percent(capacity, from_the_end=False), 1) == percent


@pytest.mark.skipif(not TRACE.exists(), reason="the traces are not here (TKCC_DATA)")
def test_giving_prompts_up_from_their_end_hits_at_least_as_often() -> None:
    assert _hit_percent(10_000, from_the_end=True) > _hit_percent(10_000, from_the_end=False)


def test_equal_beginnings_have_equal_hashes_and_later_blocks_depend_on_them() -> None:
    a, b = block_hashes([1, 2, 3, 4, 5], 2), block_hashes([1, 2, 9, 9], 2)
    c = block_hashes([7, 2, 3, 4], 2)
    assert len(a) == 2
    assert a[0] == b[0]
    assert a[1] != b[1]
    assert a[1] != c[1], "the same tokens after another beginning are another block"
    assert block_hashes([1, 2, 3, 4, 5, 6], 2, a) == block_hashes([1, 2, 3, 4, 5, 6], 2)


def test_the_page_given_up_longest_ago_goes_first_and_a_prompts_end_before_its_beginning() -> None:
    pool = PagePool(5)
    old, new = block_hashes([1, 2], 1), block_hashes([3, 4], 1)
    _read(pool, old)
    _read(pool, new)
    _read(pool, old)  # used again
    taken = pool.allocate(1)
    assert taken is not None
    assert [len(pool.match(keys)) for keys in (old, new)] == [2, 1]
    assert pool.counts.evictions == 1


def test_held_pages_are_never_evicted_and_page_0_is_never_given() -> None:
    pool = PagePool(4)
    pages = pool.allocate(3)
    assert sorted(pages or []) == [1, 2, 3]
    assert pool.allocate(1) is None
    pool.remember(pages[0], b"x")
    pool.release(pages)
    assert pool.available == 3
    pool.hold(pool.match([b"x"]))
    assert pool.allocate(3) is None
    assert pool.allocate(2) is not None
    pool.check()


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 3)), max_size=60))
def test_pages_are_never_lost_or_in_two_places(steps: list[tuple[int, bool, int]]) -> None:
    pool, held = PagePool(8), []
    for count, known, which in steps:
        keys = [bytes([which, i]) for i in range(count)]
        pages = pool.match(keys)
        pool.hold(pages)
        fresh = pool.allocate(count - len(pages))
        if fresh is None:
            pool.release(pages)
            if held:
                pool.release(held.pop(which % len(held)))
        else:
            for page, key in zip(fresh, keys[len(pages) :], strict=True):
                if known:
                    pool.remember(page, key)
            held.append([*pages, *fresh])
        pool.check()
    for pages in held:
        pool.release(pages)
    pool.check()
    assert pool.available == 7
