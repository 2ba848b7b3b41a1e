"""Who holds which page of the cache, and which pages hold prompts that may come again.

Pure bookkeeping: the pages' contents are the runtime's. A full page of tokens is known by the hash
of all tokens up to its end, so that equal beginnings of prompts share pages. A page that nobody
holds stays known until its place is needed; the one that was given up longest ago goes first.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

NULL_PAGE = 0  # takes what has no page of its own; never handed out
_DIGEST = 16  # bytes: no two prompts meet by chance


def block_hashes(tokens: Sequence[int], size: int, known: Sequence[bytes] = ()) -> list[bytes]:
    """The hash of each full block of `size` tokens: over its parent's hash and its own tokens.

    `known` are the hashes of the first blocks, which are not computed again.
    """
    hashes = list(known)
    parent = hashes[-1] if hashes else b""
    first, last = len(hashes), len(tokens) // size
    data = np.asarray(tokens[first * size : last * size], np.int64).tobytes()
    width = size * np.dtype(np.int64).itemsize
    for start in range(0, len(data), width):
        block = data[start : start + width]
        parent = hashlib.blake2b(parent + block, digest_size=_DIGEST).digest()
        hashes.append(parent)
    return hashes


@dataclasses.dataclass
class PageCounts:
    """What a pool did so far."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0


class PagePool:
    """`pages` pages, of which page 0 is never handed out. Every operation takes constant time per
    page."""

    def __init__(self, pages: int) -> None:
        assert pages > 1
        self.pages = pages
        self.counts = PageCounts()
        self._free = collections.deque(range(1, pages))
        self._holders = [0] * pages
        self._page_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        # known pages that nobody holds, the one given up longest ago first
        self._idle: collections.OrderedDict[int, None] = collections.OrderedDict()

    @property
    def available(self) -> int:
        """Pages that can be handed out now."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        """Pages that somebody holds."""
        return self.pages - 1 - self.available

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """The pages of the leading blocks that are known. They are not held by that."""
        found = []
        for key in hashes:
            page = self._page_of.get(key)
            if page is None:
                break
            found.append(page)
        return found

    def hold(self, pages: Iterable[int]) -> None:
        """Hold pages that were matched."""
        for page in pages:
            if self._holders[page] == 0:
                del self._idle[page]
            self._holders[page] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Hold `count` pages with nothing of use in them, or None if there are not enough."""
        if count > self.available:
            return None
        found = [self._free.popleft() if self._free else self._evict() for _ in range(count)]
        for page in found:
            self._holders[page] = 1
        return found

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        del self._page_of[self._hash_of.pop(page)]
        self.counts.evictions += 1
        return page

    def remember(self, page: int, key: bytes) -> None:
        """The held page is full, and `key` is its hash. The first page of a hash stays its page."""
        assert self._holders[page] > 0
        if key not in self._page_of and page not in self._hash_of:
            self._page_of[key] = page
            self._hash_of[page] = key

    def release(self, pages: Iterable[int]) -> None:
        """Give up pages; of those that stay known, the first here is evicted first.

        Give a row's up from its end: a block is of no use without those before it.
        """
        for page in pages:
            self._holders[page] -= 1
            assert self._holders[page] >= 0
            if self._holders[page]:
                continue
            if page in self._hash_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def forget(self) -> None:
        """No page is found again. Who holds one keeps it."""
        while self._idle:
            self._free.append(self._evict())
        self._page_of.clear()
        self._hash_of.clear()

    def check(self) -> None:
        """Assert that every page is in one place, and that the tables agree (for tests)."""
        held = {page for page in range(1, self.pages) if self._holders[page]}
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free)
        assert sorted([*held, *free, *idle]) == list(range(1, self.pages))
        assert {self._hash_of[p]: p for p in self._hash_of} == self._page_of
        assert idle <= set(self._hash_of)
        assert not free & set(self._hash_of)
