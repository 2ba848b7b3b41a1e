"""Named axes survive reshapes, splits and merges."""

from __future__ import annotations

from tkcc.ir.reading.axes import Axes, Fixed, axes_in, flat, size_of


def test_dimensions_of_size_1_have_no_digits():
    dims = Axes().fresh((2, 1, 3))
    assert [len(dim) for dim in dims] == [1, 0, 1]


def test_merging_keeps_the_axes():
    axes = Axes()
    a, b, c = axes.fresh((2, 3, 4))
    assert axes.regroup((a, b, c), (6, 4)) == ((*a, *b), c)


def test_splitting_makes_two_axes_that_the_old_one_resolves_to():
    axes = Axes()
    (a,) = axes.fresh((6,))
    high, low = axes.regroup((a,), (2, 3))
    assert [size_of(high), size_of(low)] == [2, 3]
    assert axes.resolve((a,)) == ((*high, *low),)


def test_a_split_of_a_split_resolves_to_all_parts():
    axes = Axes()
    (a,) = axes.fresh((12,))
    axes.regroup((a,), (2, 6))
    last = axes.regroup((a,), (2, 2, 3))
    assert axes.resolve((a,)) == (flat(last),)
    assert len(axes_in(axes.resolve((a,)))) == 3


def test_cuts_that_do_not_fall_between_factors_are_refused():
    axes = Axes()
    a, b = axes.fresh((4, 3))
    assert axes.regroup((a, b), (6, 2)) is None
    assert axes.regroup((a, b), (5,)) is None
    assert axes.regroup((a, b), (4,)) is None
    assert axes.regroup(axes.fresh((0, 3)), (3, 0)) is None


def test_a_fixed_index_splits_into_its_digits():
    axes = Axes()
    assert axes.regroup(((Fixed(6, 4),),), (2, 3)) == ((Fixed(2, 1),), (Fixed(3, 1),))
