"""Types: names of dtypes, sizes, sharding, and what has no type."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tkcc.ir.errors import IRError
from tkcc.ir.text.lexer import Reader
from tkcc.ir.types import (
    AxisSplit,
    TensorType,
    dtype_name,
    dtype_names,
    jax_dtype,
    type_of,
)

KEYS = {"threefry2x32": "key<fry>", "rbg": "key<rbg>", "unsafe_rbg": "key<urbg>"}


@pytest.mark.parametrize("name", dtype_names())
def test_dtype_names_and_numpy_dtypes_are_one_to_one(name: str) -> None:
    assert dtype_name(jax_dtype(name)) == name
    assert dtype_name(jax_dtype(name).type) == name


@pytest.mark.parametrize(("implementation", "name"), KEYS.items())
def test_prng_keys_have_dtype_names(implementation: str, name: str) -> None:
    key = jax.eval_shape(lambda: jax.random.key(0, impl=implementation))
    assert type_of(key) == TensorType(name, ())
    assert jax_dtype(name) == key.dtype


@pytest.mark.parametrize("name", ["f31", "", "key<none>", "key<", "float32"])
def test_unknown_dtype_names_are_refused(name: str) -> None:
    with pytest.raises(IRError) as error:
        jax_dtype(name)
    assert error.value.remedy


@pytest.mark.parametrize("dtype", ["datetime64[s]", "U4", "nonsense", jax.dtypes.float0])
def test_dtypes_without_a_name_are_refused(dtype: object) -> None:
    with pytest.raises(IRError, match="has no name in the IR"):
        dtype_name(dtype)


@pytest.mark.parametrize(
    ("text", "size", "bits", "nbytes"),
    [
        ("f32[2,3]", 6, 32, 24),
        ("bf16[]", 1, 16, 2),
        ("i4[3]", 3, 4, 2),
        ("u2[5]", 5, 2, 2),
        ("f4e2m1fn[3]", 3, 4, 2),
        ("bool[4,0]", 0, 8, 0),
        ("c128[2]", 2, 128, 32),
        ("f8e4m3fn[7]", 7, 8, 7),
        ("key<fry>[2]", 2, 64, 16),
        ("key<rbg>[]", 1, 128, 16),
    ],
)
def test_sizes_count_packed_bytes(text: str, size: int, bits: int, nbytes: int) -> None:
    type_ = Reader(text).type()
    assert (type_.size, type_.bits, type_.bytes) == (size, bits, nbytes)
    assert str(type_) == text


@pytest.mark.parametrize(
    ("text", "expected"), [("f8e5m2[]", True), ("bf16[]", True), ("i8[]", False), ("bool[]", False)]
)
def test_is_float(text: str, expected: bool) -> None:
    assert Reader(text).type().is_float is expected


@pytest.mark.parametrize(
    ("sharding", "text"),
    [
        (("x", None), "f32[4,8]@(x,-)"),
        ((("x", "y"), "z"), "f32[4,8]@(x+y,z)"),
        ((None, None), "f32[4,8]@(-,-)"),
        ((), "f32[4,8]"),
    ],
)
def test_sharding_is_part_of_the_type_and_its_text(
    sharding: tuple[AxisSplit, ...], text: str
) -> None:
    type_ = TensorType("f32", (4, 8), sharding)
    assert str(type_) == text
    assert Reader(text).type() == type_


def test_equal_shardings_are_equal_types() -> None:
    assert TensorType("f32", (4, 8), (("x",), ())) == TensorType("f32", (4, 8), ("x", None))


@pytest.mark.parametrize("axis", ["a b", "a-b", "", "inf", "é", "x,y"])
def test_a_mesh_axis_without_a_text_form_is_refused(axis: str) -> None:
    with pytest.raises(IRError, match="no plain name"):
        TensorType("f32", (2,), (axis,))


def test_wrong_shapes_and_shardings_are_refused() -> None:
    with pytest.raises(IRError, match="negative dimension"):
        TensorType("f32", (2, -1))
    with pytest.raises(IRError, match="2 entries for 1 dimensions"):
        TensorType("f32", (2,), ("x", "y"))


def test_type_of_arrays_structs_and_numbers() -> None:
    assert type_of(np.zeros((2, 3), np.int8)) == TensorType("i8", (2, 3))
    assert type_of(jax.ShapeDtypeStruct((4,), jax.numpy.bfloat16)) == TensorType("bf16", (4,))
    assert type_of(True) == TensorType("bool", ())
    assert type_of(1.5) == TensorType("f32", ())
    assert type_of(TensorType("u4", (1,))) == TensorType("u4", (1,))


def test_with_shape_and_struct_leave_sharding_out() -> None:
    type_ = TensorType("bf16", (2, 4), ("x", None))
    assert type_.with_shape((8,)) == TensorType("bf16", (8,))
    assert type_of(type_.struct()) == TensorType("bf16", (2, 4))
    assert type_.rank == 2
