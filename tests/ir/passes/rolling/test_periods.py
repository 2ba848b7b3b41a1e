"""Repetitions in sequences: what is found, and that it repeats."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tkcc.ir.passes.rolling.periods import Run, find_runs, runs_of_period


def assert_repeats(symbols: list[int], run: Run) -> None:
    assert 0 <= run.start < run.stop <= len(symbols)
    assert run.repeats >= 2
    for i in range(run.start, run.stop - run.period):
        assert symbols[i] == symbols[i + run.period]


@given(st.lists(st.integers(0, 3), max_size=60))
def test_every_run_repeats_with_its_period(symbols: list[int]) -> None:
    for run in find_runs(symbols):
        assert_repeats(symbols, run)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 12))
def test_runs_of_a_period_are_all_maximal_ones(symbols: list[int], period: int) -> None:
    found = {i for run in runs_of_period(symbols, period) for i in range(run.start, run.stop)}
    for start in range(len(symbols) - 2 * period + 1):
        one, two = symbols[start : start + period], symbols[start + period : start + 2 * period]
        assert one != two or found.issuperset(range(start, start + 2 * period))


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True),
    st.integers(2, 20),
    st.lists(st.integers(31, 60), max_size=15, unique=True),
)
def test_a_block_that_is_repeated_is_found(block: list[int], times: int, around: list[int]) -> None:
    half = len(around) // 2
    symbols = around[:half] + block * times + around[half:]
    expected = Run(half, half + len(block) * times, len(block))
    assert find_runs(symbols)[0] == expected


def test_the_longest_repetition_of_a_long_sequence_comes_first() -> None:
    rng = np.random.default_rng(0)
    layer = rng.integers(0, 12, 117)
    noise = [rng.integers(12, 5_000, 20_000) for _ in range(2)]
    symbols = np.concatenate([noise[0], np.tile(layer, 80), noise[1]]).tolist()
    best = find_runs(symbols)[0]
    assert (best.start, best.stop, best.period) == (20_000, 20_000 + 117 * 80, 117)


def test_nothing_repeats_in_different_symbols() -> None:
    assert find_runs([]) == find_runs([1]) == find_runs([1, 2, 3]) == []
