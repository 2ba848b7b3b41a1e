"""Data movement against numpy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.ops.run import normal, run

X = normal((2, 3, 4))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_concat_and_split_are_inverse(axis: int) -> None:
    whole = run("concat", X, X + 1, axis=axis)
    np.testing.assert_array_equal(whole, np.concatenate([X, X + 1], axis=axis))
    size = X.shape[axis]
    first, second = run("split", whole, axis=axis, sizes=(size, size))
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, X + 1)


def test_split_gives_pieces_of_the_sizes_zero_too() -> None:
    pieces = run("split", X, sizes=(1, 0, 3))
    for piece, want in zip(pieces, np.split(X, [1, 1], axis=-1), strict=True):
        np.testing.assert_array_equal(piece, want)


def test_stack_and_take_row_are_inverse() -> None:
    stacked = run("stack", X, X + 1, X + 2)
    np.testing.assert_array_equal(stacked, np.stack([X, X + 1, X + 2]))
    for index, row in ((0, 0), (2, 2), (9, 2), (-1, 0)):
        np.testing.assert_array_equal(run("take_row", stacked, np.int32(index)), X + row)


@pytest.mark.parametrize("permutation", [(), (0,), (1, 0), (2, 0, 1), (0, 2, 1)])
def test_transpose_permutes_the_last_dimensions(permutation: tuple[int, ...]) -> None:
    lead = 3 - len(permutation)
    full = (*range(lead), *(lead + p for p in permutation))
    got = run("transpose", X, permutation=permutation)
    np.testing.assert_array_equal(got, X.transpose(full))


@pytest.mark.parametrize(
    ("keep", "shape", "want"),
    [(0, (24,), (24,)), (1, (12,), (2, 12)), (1, (2, -1), (2, 2, 6)), (-1, (2, 2), (2, 3, 2, 2))]
    + [(3, (), (2, 3, 4)), (3, (1,), (2, 3, 4, 1)), (-3, (4, 6), (4, 6))],
)
def test_reshape_keeps_the_first_dimensions(keep: int, shape: Any, want: Any) -> None:
    got = run("reshape", X, keep=keep, shape=shape)
    np.testing.assert_array_equal(got, X.reshape(want))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("plus_one", [False, True])
def test_scale_axis_multiplies_slices(axis: int, plus_one: bool) -> None:
    s = normal((X.shape[axis],), seed=1)
    shape = [1, 1, 1]
    shape[axis] = -1
    got = run("scale_axis", X, s, axis=axis, plus_one=plus_one)
    np.testing.assert_allclose(got, X * (s + plus_one).reshape(shape), rtol=1e-6)


def test_cast_rounds_to_nearest_even() -> None:
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1.5, 300.0], np.float32)
    np.testing.assert_array_equal(run("cast", x, dtype=jnp.bfloat16), x.astype(jnp.bfloat16))
    np.testing.assert_array_equal(run("cast", x, dtype=np.dtype("int32")), [1, 1, -1, 300])
