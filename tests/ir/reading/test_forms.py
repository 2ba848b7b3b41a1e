"""Integer values are read as sums over their axes and over what they read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.rules.raising import plain, struct
from tkcc.ir.passes.canonicalise import canonicalise
from tkcc.ir.reading.forms import Form, index_of, read_form, resolved
from tkcc.ir.reading.masks import read_choice, read_mask
from tkcc.ir.reading.views import Reader, View


def read(f: Any, *args: Any) -> tuple[Reader, View]:
    function = canonicalise(plain(f, *args)).function()
    definitions = {v: n for n in function.nodes for v in n.results}
    reader = Reader(definitions.get)
    return reader, reader.view(function.outputs[0])


def form_of(f: Any, *args: Any) -> tuple[Form | None, View]:
    reader, view = read(f, *args)
    form = read_form(reader, view)
    return (None if form is None else resolved(reader, form)), reader.resolve(view)


COUNTS = {
    "arange": (lambda: jnp.arange(5), [1], 0),
    "start and step": (lambda: jnp.arange(3, 15, 4), [4], 3),
    "constant": (lambda: np.arange(5, dtype=np.int32)[::-1].copy() * jnp.int32(1), [-1], 4),
    "sum": (lambda: jnp.arange(4)[:, None] - 2 * jnp.arange(3) + 7, [1, -2], 7),
    "iota": (lambda: jax.lax.broadcasted_iota(jnp.int32, (4, 3), 1), [0, 1], 0),
    "negated": (lambda: -(jnp.arange(4) - 1), [-1], 1),
    "transposed": (lambda: (jnp.arange(4)[:, None] + 5 * jnp.arange(3)).T, [5, 1], 0),
    "sliced": (lambda: jnp.arange(20)[4:10:2], [2], 4),
    "in float32": (lambda: jnp.arange(4).astype(jnp.float32) + 1.0, [1], 1),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    f, factors, number = COUNTS[name]
    form, view = form_of(lambda x: f(), struct("f32"))
    assert form is not None
    assert form.number == number
    assert [form.factor(dim[0]) for dim in view.dims] == factors
    assert form.bases == ()


def test_a_merged_dimension_counts_in_both_axes():
    form, view = form_of(lambda x: jnp.arange(12).reshape(3, 4), struct("f32"))
    assert form == index_of((*view.dims[0], *view.dims[1]))


def test_values_are_bases():
    form, view = form_of(lambda x: 2 * x[:, None] + jnp.arange(3), struct("i32", 4))
    assert form is not None
    assert [base.factor for base in form.bases] == [2]
    assert form.factor(view.dims[1][0]) == 1


def test_terms_that_cancel_are_gone():
    form, _ = form_of(lambda x: x + jnp.arange(4) - x, struct("i32", 4))
    assert form is not None
    assert form.bases == ()


def test_smallest_and_largest():
    form, _ = form_of(lambda x: jnp.arange(4)[:, None] - jnp.arange(3) + 7, struct("f32"))
    assert form is not None
    assert (form.smallest(), form.largest()) == (5, 10)


def test_floats_that_are_data_have_no_form():
    assert form_of(lambda x: x, struct("f32", 4))[0] is None


def test_a_mask_is_split_into_its_tests():
    reader, view = read(
        lambda x: (jnp.arange(4) <= x) & ~(jnp.arange(4) < 2) & (x > 0), struct("i32", 4)
    )
    tests = read_mask(reader, view).tests
    assert len(tests) == 3
    assert all(test.form is not None for test in tests)


def test_a_disjunction_is_one_test_and_its_opposite_two():
    reader, view = read(lambda x: (jnp.arange(4) <= x) | (x > 9), struct("i32", 4))
    assert len(read_mask(reader, view, True).tests) == 1
    assert len(read_mask(reader, view, False).tests) == 2


def test_masks_that_are_known():
    reader, view = read(lambda x: (jnp.ones(4) > 0) & (x == x[0]), struct("i32", 4))
    assert len(read_mask(reader, view).tests) == 1
    reader, view = read(lambda x: (jnp.ones(4) > 2) & (x == x[0]), struct("i32", 4))
    assert read_mask(reader, view).never


def test_a_choice_of_two_numbers():
    reader, view = read(lambda x: (1.0 - (jnp.arange(4) <= x)) * -1e9 + 2.0, struct("i32", 4))
    choice = read_choice(reader, view)
    assert choice is not None
    assert (choice.yes, choice.no) == (2.0, pytest.approx(-1e9))
    assert len(choice.mask.tests) == 1


def test_zero_times_infinity_is_not_a_hiding_number():
    reader, view = read(lambda x: (1.0 - (jnp.arange(4) <= x)) * -jnp.inf, struct("i32", 4))
    choice = read_choice(reader, view)
    assert choice is not None
    assert np.isnan(choice.yes)
