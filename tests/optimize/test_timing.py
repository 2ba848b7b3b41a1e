"""The statistics of comparisons, on numbers and on a scripted clock."""

from __future__ import annotations

import math
import random

import pytest

from tkcc.optimize.timing import Comparison, _rank


def _comparison(generator: random.Random, count: int, gain: float, noise: float) -> Comparison:
    base = [math.exp(generator.gauss(0, noise)) for _ in range(count)]
    other = [math.exp(generator.gauss(0, noise)) / gain for _ in range(count)]
    return Comparison(tuple(base), tuple(other))


def test_the_speedup_is_the_median_ratio():
    found = Comparison((2.0, 3.0, 4.0), (1.0, 1.0, 4.0))
    assert found.speedup == 2.0
    assert found.times() == (3.0, 1.0)


def test_too_few_pairs_give_no_interval():
    assert Comparison((2.0,) * 3, (1.0,) * 3).interval(0.95) == (0.0, math.inf)


@pytest.mark.parametrize(("count", "tail", "rank"), [(5, 0.05, 1), (6, 0.025, 1), (8, 0.05, 2)])
def test_ranks_follow_the_binomial_distribution(count, tail, rank):
    assert _rank(count, tail) == rank
    missed = sum(math.comb(count, k) for k in range(rank)) / 2**count
    assert missed <= tail


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(confidence):
    generator = random.Random(1)
    inside = 0
    for _ in range(2000):
        low, high = _comparison(generator, 16, 1.3, 0.2).interval(confidence)
        inside += low <= 1.3 <= high
    assert inside / 2000 >= confidence - 0.015


def test_a_program_against_itself_is_rarely_called_faster():
    generator = random.Random(2)
    wins = sum(_comparison(generator, 16, 1.0, 0.2).interval(0.99)[0] > 1 for _ in range(2000))
    assert wins / 2000 <= 0.01
