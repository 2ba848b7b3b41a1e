"""Is a candidate faster? Two programs alternate in one runtime; the ratio of neighbours is judged.

Blocks run in the order A B B A. Neighbouring blocks see the same machine, so the ratio within a
pair holds where absolute times drift. The reported speed-up is the median of the pairs' ratios; its
interval comes from order statistics (a sign test), which assume nothing about the noise.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable

from tkcc.backends.base import Program
from tkcc.optimize.session import Session, Start


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Seconds per step of both programs, pair by pair."""

    baseline: tuple[float, ...]
    candidate: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Baseline time over candidate time, sorted; above 1 the candidate is faster."""
        return sorted(a / b for a, b in zip(self.baseline, self.candidate, strict=True))

    @property
    def speedup(self) -> float:
        return statistics.median(self.ratios)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """An interval that holds the median ratio with at least that probability.

        (0, inf) while there are too few pairs: the interval of n ordered values from the k-th
        lowest to the k-th highest misses with probability 2 * P(Binomial(n, 1/2) < k).
        """
        rank = _rank(len(self.baseline), (1 - confidence) / 2)
        if rank == 0:
            return 0.0, math.inf
        return self.ratios[rank - 1], self.ratios[-rank]

    def times(self) -> tuple[float, float]:
        """Median seconds per step: baseline, candidate."""
        return statistics.median(self.baseline), statistics.median(self.candidate)


def _rank(count: int, tail: float) -> int:
    """The largest k with P(Binomial(count, 1/2) < k) <= tail."""
    total, rank = 0.0, 0
    while rank < count // 2:
        total += math.comb(count, rank) * 0.5**count
        if total > tail:
            break
        rank += 1
    return rank


def compare(
    session: Session,
    baseline: Program,
    candidate: Program,
    start: Start,
    *,
    steps: int,
    max_pairs: int,
    enough: Callable[[Comparison], bool],
) -> Comparison:
    """Time pairs until `enough` or `max_pairs`. The candidate is in the slot afterwards."""
    times: dict[Program, list[float]] = {baseline: [], candidate: []}
    comparison = Comparison((), ())
    for pair in range(max_pairs):
        order = (baseline, candidate) if pair % 2 == 0 else (candidate, baseline)
        for program in order:
            times[program].append(_block(session, program, start, steps))
        comparison = Comparison(tuple(times[baseline]), tuple(times[candidate]))
        if enough(comparison):
            break
    if session.runtime.program is not candidate:
        session.runtime.swap(candidate)
    return comparison


def _block(session: Session, program: Program, start: Start, steps: int) -> float:
    if session.runtime.program is not program:
        session.runtime.swap(program)
    session.timed(start, 1)  # the first step after a swap finds cold caches
    return session.timed(start, steps)
