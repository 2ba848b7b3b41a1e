"""Layers of several kinds are cut into few periodic runs, each of them one scan."""

from __future__ import annotations

import pytest

from tkcc.models.stacks import Stack, find_runs

S, F, D, M = "sliding", "full", "dense", "moe"


@pytest.mark.parametrize(
    ("kinds", "runs"),
    [
        ((F,) * 5, [[(F, range(0, 5, 1))]]),
        ((S, F) * 3, [[(S, range(0, 6, 2)), (F, range(1, 6, 2))]]),
        ((D, D, M, M, M), [[(D, range(0, 2))], [(M, range(2, 5))]]),
        (
            (S, F, S, F, S),
            [[(S, range(0, 4, 2)), (F, range(1, 4, 2))], [(S, range(4, 5))]],
        ),
        (
            (S, S, S, F) * 2,
            [[(S, range(i, 8, 4)) for i in range(3)] + [(F, range(3, 8, 4))]],
        ),
        ((D,), [[(D, range(0, 1))]]),
    ],
    ids=["alike", "pairs", "two kinds", "a rest", "period of four", "one layer"],
)
def test_runs(kinds, runs):
    got = find_runs(kinds)
    assert [[(stack.kind, stack.layers) for stack in run] for run in got] == runs


@pytest.mark.parametrize("kinds", ["abcabcab", "aabbaabb", "abacadabacad", "a", "abcdefghij"])
def test_every_layer_is_in_one_stack_of_its_kind_and_runs_follow_each_other(kinds):
    runs = find_runs(tuple(kinds))
    order = [stack.layers[i] for run in runs for i in range(len(run[0].layers)) for stack in run]
    assert order == list(range(len(kinds)))
    for stack in (stack for run in runs for stack in run):
        assert {kinds[i] for i in stack.layers} == {stack.kind}


def test_stacks_are_named_by_kind_and_first_layer():
    assert Stack("moe", range(3, 61)).name == "moe_3"
