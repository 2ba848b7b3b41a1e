"""Draws follow the distribution that was asked for, and depend on seed and position alone."""

from __future__ import annotations

import numpy as np
import pytest

from tkcc.engine.requests import Sampling
from tkcc.engine.sampling import draw

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


def test_a_huge_temperature_and_huge_logits_stay_finite() -> None:
    assert 0 <= draw(LOGITS * 1e6, Sampling(temperature=100.0), 0, salt=0) < 5
    assert draw(LOGITS * 1e6, Sampling(temperature=1e-6), 0, salt=0) == 1
