"""Draws follow the distribution that was asked for, and depend on seed and position alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tkcc.engine.requests import Sampling
from tkcc.engine.sampling import _kept, _place, draw
from tkcc.ir.errors import BackendError

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.25, 0.05], np.float32))
COUNT = 4000


def _shares(sampling: Sampling) -> np.ndarray:
    drawn = [draw(LOGITS, sampling, position, salt=1) for position in range(COUNT)]
    return np.bincount(drawn, minlength=5) / COUNT


def test_greedy_takes_the_best_and_of_equals_the_first() -> None:
    assert draw(LOGITS, Sampling(), 0, salt=0) == 1
    assert draw(np.zeros(4, np.float32), Sampling(), 5, salt=3) == 0


@pytest.mark.parametrize(
    ("sampling", "want"),
    [
        (Sampling(temperature=1.0), [0.1, 0.4, 0.2, 0.25, 0.05]),
        (Sampling(temperature=1.0, top_k=2), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        (Sampling(temperature=1.0, top_p=0.6), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        (Sampling(temperature=1.0, top_p=0.3), [0, 1, 0, 0, 0]),
        (Sampling(temperature=1.0, top_k=1), [0, 1, 0, 0, 0]),
        (Sampling(temperature=0.5), np.array([1, 16, 4, 6.25, 0.25]) / 27.5),
    ],
)
def test_shares_are_those_of_the_distribution(sampling: Sampling, want: list[float]) -> None:
    # four standard deviations of a share of COUNT draws
    allowed = 4 * np.sqrt(np.array(want) * (1 - np.array(want)) / COUNT)
    assert (np.abs(_shares(sampling) - want) <= allowed).all()


def test_a_seeded_draw_depends_on_seed_and_position_alone() -> None:
    seeded = Sampling(temperature=1.0, seed=5)
    first = [draw(LOGITS, seeded, position, salt=1) for position in range(50)]
    assert [draw(LOGITS, seeded, position, salt=9) for position in reversed(range(50))] == first[
        ::-1
    ]
    assert [draw(LOGITS, Sampling(temperature=1.0, seed=6), p, salt=1) for p in range(50)] != first


def test_without_a_seed_the_salt_tells_requests_apart() -> None:
    free = Sampling(temperature=1.0)
    assert [draw(LOGITS, free, p, salt=1) for p in range(50)] != [
        draw(LOGITS, free, p, salt=2) for p in range(50)
    ]


def _plainly_kept(weights: np.ndarray, top_k: int, top_p: float) -> list[int]:
    """Sort, cut at top_k, cut where top_p is reached."""
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    order = order[: top_k or None]
    if top_p == 1:
        return order
    share = top_p * sum(weights[token] for token in order)
    reached = itertools.accumulate(weights[token] for token in order)
    return order[: 1 + next(place for place, sum_ in enumerate(reached) if sum_ >= share)]


@example(700, 0, 0, 0.75, 1)  # more tokens than are put in order first
@given(
    st.integers(1, 700),
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 3, 300, 10_000]),
    st.sampled_from([1.0, 0.75, 0.5, 1 / 128]),
    st.sampled_from([1, 2, 12]),
)
def test_the_tokens_kept_are_those_of_the_plain_rule(
    vocabulary: int, seed: int, top_k: int, top_p: float, spread: int
) -> None:
    # powers of two: many (or all) are equal, and their sums are exact
    weights = 2.0 ** -np.random.default_rng(seed).integers(0, spread, vocabulary)
    kept = _kept(weights, Sampling(temperature=1.0, top_k=top_k, top_p=top_p)).tolist()
    assert sorted(kept) == sorted(_plainly_kept(weights, top_k, top_p))


def test_extreme_temperatures_and_logits_stay_finite() -> None:
    assert 0 <= draw(LOGITS * 1e6, Sampling(temperature=100.0), 0, salt=0) < 5
    for temperature in (1e-6, 1e-300, 5e-324):
        assert {draw(LOGITS, Sampling(temperature=temperature), p, salt=0) for p in range(9)} == {1}


def test_a_token_whose_logit_is_minus_infinity_is_never_drawn() -> None:
    masked = np.array([-np.inf, 0, -np.inf, 0, -np.inf], np.float32)
    hot = Sampling(temperature=100.0)
    assert {draw(masked, hot, p, salt=0) for p in range(200)} == {1, 3}
    assert [_place(np.array([0.0, 1.0, 0.0]), point) for point in (0.0, 1 - 2**-53)] == [1, 1]


@pytest.mark.parametrize("wrong", [[0, np.nan, 1], [np.inf, 0, 0], [-np.inf] * 3])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, top_k=2)])
def test_logits_of_a_broken_step_are_refused(wrong: list[float], sampling: Sampling) -> None:
    with pytest.raises(BackendError, match="as a logit"):
        draw(np.array(wrong, np.float32), sampling, 0, salt=0)
