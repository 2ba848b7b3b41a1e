"""Repetitions in a sequence of symbols, found in O(n log n).

Equal windows of 1, 2, 4, ... symbols are numbered by doubling (Karp, Miller and Rosenberg, 1972).
The distance from a window to its next occurrence is a period wherever the sequence repeats, and a
distance that many windows share is worth an exact look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

_PERIODS_PER_WIDTH = 8

Symbols = np.ndarray[Any, np.dtype[np.int64]]


@dataclasses.dataclass(frozen=True)
class Run:
    """Symbols `start` to `stop` repeat with `period`: each equals the one a period later."""

    start: int
    stop: int
    period: int

    @property
    def repeats(self) -> int:
        """Number of whole periods."""
        return (self.stop - self.start) // self.period

    @property
    def removable(self) -> int:
        """Symbols past the first period."""
        return self.stop - self.start - self.period

    def order(self) -> tuple[int, int, int]:
        """Sorts those with most removable symbols first."""
        return (-self.removable, self.period, self.start)


def find_runs(symbols: Sequence[int]) -> list[Run]:
    """Runs of at least two whole periods, those with most removable symbols first."""
    array = np.asarray(symbols, dtype=np.int64)
    found = {run for period in _likely_periods(array) for run in runs_of_period(array, period)}
    return sorted(found, key=Run.order)


def runs_of_period(symbols: Sequence[int] | Symbols, period: int) -> list[Run]:
    """The maximal runs of one period, in order."""
    array = np.asarray(symbols, dtype=np.int64)
    if period >= len(array):
        return []
    equal = (array[:-period] == array[period:]).astype(np.int8)
    edges = np.flatnonzero(np.diff(equal, prepend=0, append=0))
    pairs = zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True)
    return [Run(start, stop + period, period) for start, stop in pairs if stop - start >= period]


def _likely_periods(symbols: Symbols) -> list[int]:
    """Distances between equal windows, the most frequent ones for each width."""
    ranks, width = _numbered(symbols), 1
    found: dict[int, None] = {}
    while len(ranks):
        gaps = _gaps(ranks)
        if not len(gaps):
            break
        found.update(dict.fromkeys(_most_frequent(gaps)))
        if len(ranks) <= width:
            break
        ranks, width = _numbered(ranks[:-width] * (len(ranks) + 1) + ranks[width:]), 2 * width
    return list(found)


def _numbered(keys: Symbols) -> Symbols:
    """Equal keys get equal numbers from 0 up."""
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def _gaps(ranks: Symbols) -> Symbols:
    """For each position with a later equal one, the distance to the next."""
    order = np.argsort(ranks, kind="stable")
    same = ranks[order[:-1]] == ranks[order[1:]]
    gaps: Symbols = (order[1:] - order[:-1])[same]
    return gaps


def _most_frequent(gaps: Symbols) -> list[int]:
    values, counts = np.unique(gaps, return_counts=True)
    best = np.argsort(-counts, kind="stable")[:_PERIODS_PER_WIDTH]
    return [int(value) for value in values[best]]
