"""Greedy generation: the loop's own arithmetic and its refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tkcc.models.errors import ModelError
from tkcc.models.generate import greedy, pad_prompts
from tkcc.models.llama import Llama


@pytest.fixture
def model(tiny_model: Llama) -> Llama:
    return tiny_model


def test_prompts_are_padded_on_the_right_with_their_lengths():
    tokens, lengths = pad_prompts([[1, 2, 3], [4]], 10)
    np.testing.assert_array_equal(tokens, [[1, 2, 3], [4, 0, 0]])
    np.testing.assert_array_equal(lengths, [3, 1])


def test_a_longer_run_starts_with_the_shorter_one(model):
    prompts = [[5, 6], [7, 8, 9]]
    short, long = (
        greedy(model, prompts, 3, cache_length=16),
        greedy(model, prompts, 9, cache_length=16),
    )
    assert [len(row) for row in long] == [9, 9]
    assert [row[:3] for row in long] == short


@pytest.mark.parametrize(
    ("prompts", "message"),
    [([], "at least one"), ([[]], "at least one"), ([[300]], "outside"), ([[-1]], "outside")],
)
def test_prompts_that_cannot_be_run_are_refused(model, prompts, message):
    with pytest.raises(ModelError, match=message):
        greedy(model, prompts, 2)


def test_caches_that_are_too_short_are_refused(model):
    with pytest.raises(ModelError, match="5 are needed"):
        greedy(model, [[1, 2, 3]], 2, cache_length=4)


def test_no_new_token_at_all_is_refused(model):
    with pytest.raises(ModelError, match="new_tokens is 0"):
        greedy(model, [[1]], 0)
