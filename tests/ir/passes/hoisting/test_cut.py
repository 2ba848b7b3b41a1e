"""Smallest vertex cuts: against all subsets of small graphs, and on deep and wide ones."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tkcc.ir.passes.hoisting.cut import smallest_cut

Edges = list[tuple[int, int]]


def separates(cut: set[int], edges: Edges, sources: set[int], sinks: set[int]) -> bool:
    reached = set(sources) - cut
    for a, b in sorted(edges):  # edges lead from smaller to larger numbers
        if a in reached and b not in cut:
            reached.add(b)
    return not reached & sinks


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[int, int], Edges, set[int], set[int]]:
    count = draw(st.integers(1, 8))
    weights = {i: draw(st.integers(0, 5)) for i in range(count)}
    pairs = list(itertools.combinations(range(count), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    vertices = st.sets(st.integers(0, count - 1))
    return weights, edges, draw(vertices), draw(vertices)


@given(graphs())
@settings(max_examples=200)
def test_no_separating_set_weighs_less(graph: tuple[dict[int, int], Edges, set[int], set[int]]):
    weights, edges, sources, sinks = graph
    cut = smallest_cut(weights, edges, sources, sinks)
    assert separates(cut, edges, sources, sinks)
    subsets = itertools.chain.from_iterable(
        itertools.combinations(weights, size) for size in range(len(weights) + 1)
    )
    least = min(
        sum(weights[v] for v in subset)
        for subset in map(set, subsets)
        if separates(subset, edges, sources, sinks)
    )
    assert sum(weights[v] for v in cut) == least


def test_of_equal_cuts_the_one_nearest_to_the_sinks_is_taken() -> None:
    edges = [(i, i + 1) for i in range(9)]
    assert smallest_cut(dict.fromkeys(range(10), 3), edges, {0}, {9}) == {9}
    weights = {**dict.fromkeys(range(10), 3), 4: 2, 6: 2}
    assert smallest_cut(weights, edges, {0}, {9}) == {6}


def test_deep_and_wide_graphs_are_cut() -> None:
    deep = 20_000
    edges = [(i, i + 1) for i in range(deep)]
    weights = {**dict.fromkeys(range(deep + 1), 7), deep // 2: 1}
    assert smallest_cut(weights, edges, {0}, {deep}) == {deep // 2}
    wide = range(1, 2_000)
    fan = [(0, i) for i in wide] + [(i, 2_000) for i in wide]
    weights = {i: 10 if i in (0, 2_000) else 1 for i in range(2_001)}
    assert smallest_cut(weights, fan, {0}, {2_000}) == {2_000}


def test_without_a_path_nothing_is_cut() -> None:
    assert smallest_cut({0: 1, 1: 1}, [], {0}, {1}) == set()
    assert smallest_cut({}, [], set(), set()) == set()
