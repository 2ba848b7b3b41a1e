"""Attribute values: what is frozen to what, exact text, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from tkcc.ir.attributes import (
    MAX_DENSE_ELEMENTS,
    Dense,
    DType,
    KeyImplementation,
    RegionReference,
    dense_from_numbers,
    format_attribute,
    freeze,
    quote,
    thaw,
)
from tkcc.ir.errors import IRError, ParseError
from tkcc.ir.text.lexer import Reader, unquote
from tkcc.ir.types import dtype_names, jax_dtype


def read(text: str) -> Any:
    """The attribute that is all of the text."""
    reader = Reader(text)
    value = reader.attribute()
    assert reader.token.kind == "end"
    return value


def same(a: Any, b: Any) -> bool:
    """Equal in type and value, down to the sign of zeros; all NaNs of Python floats are equal."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, float):
        return math.isnan(a) == math.isnan(b) and (
            math.isnan(a) or (a == b and math.copysign(1, a) == math.copysign(1, b))
        )
    return bool(a == b)


texts = st.text(st.characters(codec=None), max_size=12)  # lone surrogates and controls too
floats = st.floats(allow_nan=True, allow_infinity=True)
dtypes = st.sampled_from([DType(name) for name in [*dtype_names(), "key<fry>"]])


@st.composite
def dense_arrays(draw: st.DrawFn) -> Dense:
    """Every bit pattern of every dtype, among them NaNs with payloads."""
    name = draw(st.sampled_from(dtype_names()))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = math.prod(shape) * jax_dtype(name).itemsize
    return Dense(name, shape, draw(st.binary(min_size=size, max_size=size)))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    floats,
    st.complex_numbers(allow_nan=True, allow_infinity=True),
    texts,
    dtypes,
    dense_arrays(),
    st.builds(RegionReference, st.integers(0, 9), st.booleans()),
    st.sampled_from([KeyImplementation("rbg"), lax.Precision.HIGHEST, lax.GatherScatterMode.CLIP]),
)
attributes = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8
)


@given(attributes)
def test_every_attribute_round_trips_through_text(value: Any) -> None:
    frozen = freeze(value)
    text = format_attribute(frozen)
    again = read(text)
    assert same(again, frozen)
    assert format_attribute(again) == text


@given(texts)
def test_every_string_round_trips_in_printable_text(text: str) -> None:
    quoted = quote(text)
    assert unquote(quoted) == text
    assert quoted.isprintable()
    quoted.encode("utf-8")


@pytest.mark.parametrize("name", dtype_names())
def test_ordinary_numbers_of_every_dtype_print_as_numbers(name: str) -> None:
    array = np.ones((2,), dtype=jax_dtype(name))
    text = format_attribute(Dense.of(array))
    assert "hex" not in text
    np.testing.assert_array_equal(read(text).array(), array)


def test_special_floats_print_as_words_and_odd_nans_as_bytes() -> None:
    plain = Dense.of(np.array([math.inf, -math.inf, math.nan, -0.0], np.float32))
    assert format_attribute(plain) == "f32[4](inf, -inf, nan, -0.0)"
    payload = Dense("f32", (1,), bytes.fromhex("0100c07f"))
    assert format_attribute(payload) == 'f32[1](hex "0100c07f")'
    assert read(format_attribute(payload)) == payload


RECORDS = [
    lax.GatherDimensionNumbers((1,), (0,), (0,), (), ()),
    lax.ScatterDimensionNumbers((1,), (0,), (0,), (), ()),
    lax.ConvDimensionNumbers((0, 1, 2), (0, 1, 2), (0, 1, 2)),
    lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,)),
    lax.GatherScatterMode.FILL_OR_DROP,
    lax.RandomAlgorithm.RNG_DEFAULT,
    lax.AccuracyMode.HIGHEST,
    lax.Tolerance(atol=1e-3, rtol=1e-4, ulps=2),
    lax.DotAlgorithm(np.dtype("float32"), np.dtype("float32"), np.dtype("float32")),
    lax.DotAlgorithmPreset.BF16_BF16_F32,
    lax.FftType.RFFT if hasattr(lax, "FftType") else lax.Precision.DEFAULT,
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: f"{type(r).__name__}")
def test_jax_records_round_trip_through_text(record: Any) -> None:
    frozen = freeze(record)
    again = read(format_attribute(frozen))
    assert type(again) is type(record)
    assert format_attribute(again) == format_attribute(frozen)
    assert again == frozen or isinstance(record, lax.Tolerance)  # which has no equality


@pytest.mark.parametrize(
    ("value", "frozen"),
    [
        (np.float32(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.complex64(1 + 2j), 1 + 2j),
        (np.str_("a"), "a"),
        ([1, [2.0, None]], (1, (2.0, None))),
        ({"a": [1]}, (("a", (1,)),)),
        (np.dtype("int8"), DType("i8")),
        (np.float32, DType("f32")),
        (ml_dtypes.bfloat16, DType("bf16")),
        (jax.numpy.bfloat16, DType("bf16")),
        (jax.numpy.dtype("uint8"), DType("u8")),
        (np.arange(2, dtype=np.int8), Dense("i8", (2,), b"\x00\x01")),
        (ml_dtypes.bfloat16(1), Dense("bf16", (), b"\x80\x3f")),
    ],
)
def test_freeze_makes_plain_immutable_values(value: Any, frozen: Any) -> None:
    assert same(freeze(value), frozen)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_prng_implementations_are_kept_by_name(implementation: str) -> None:
    dtype = jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
    frozen = freeze(dtype._impl)
    assert frozen == KeyImplementation(implementation)
    assert thaw(read(format_attribute(frozen))) is dtype._impl
    assert thaw(freeze(dtype)) == dtype


def test_thaw_gives_what_jax_expects() -> None:
    assert thaw(DType("bf16")) == np.dtype(ml_dtypes.bfloat16)
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    np.testing.assert_array_equal(thaw((Dense.of(array),))[0], array)
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,), (), ())
    assert isinstance(thaw(freeze(numbers)), lax.GatherDimensionNumbers)


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, b"bytes", lambda x: x, jax.numpy.float32(1), slice(1), np.longdouble(1)],
    ids=lambda v: type(v).__name__,
)
def test_freeze_refuses_other_objects_by_type(value: Any) -> None:
    with pytest.raises(IRError) as error:
        freeze(value, "op.attribute")
    assert error.value.remedy


def test_an_unknown_enum_is_refused() -> None:
    import enum

    class Colour(enum.Enum):
        RED = 1

    with pytest.raises(IRError, match="unknown enum"):
        freeze(Colour.RED)


def test_a_constant_has_at_most_64_elements() -> None:
    assert Dense.of(np.zeros(MAX_DENSE_ELEMENTS)).shape == (MAX_DENSE_ELEMENTS,)
    with pytest.raises(IRError, match="65 elements"):
        Dense.of(np.zeros(MAX_DENSE_ELEMENTS + 1))
    with pytest.raises(ParseError, match="elements"):
        read(f"f32[65]({', '.join(['1.0'] * 65)})")


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        ("f32", (2,), b"1234"),
        ("key<fry>", (), b"12345678"),
        ("f32", (-1, -1), b"1234"),
        ("q", (), b""),
    ],
)
def test_a_constant_whose_bytes_do_not_fit_is_refused(
    dtype: str, shape: tuple[int, ...], data: bytes
) -> None:
    with pytest.raises(IRError):
        Dense(dtype, shape, data)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("i8", 128),
        ("u8", -1),
        ("i4", 8),
        ("u4", 16),
        ("i2", 2),
        ("i32", 1.5),
        ("i32", True),
        ("bool", 1),
        ("f32", True),
        ("f32", "1.5"),
        ("f32", None),
        ("bf16", 1j),
        ("c64", "x"),
    ],
)
def test_an_element_of_another_kind_or_range_is_refused(dtype: str, number: Any) -> None:
    with pytest.raises((IRError, OverflowError)):
        dense_from_numbers(dtype, (1,), [number])


MALFORMED = [
    "f32[2](1.0)",
    "i8[1](300)",
    "i32[1](1.5)",
    'f32[1](hex "00")',
    'f32[1](hex "zz")',
    'key<fry>[1](hex "00")',
    "f32[-1]()",
    "complex(1)",
    'complex("a", 2)',
    "complex(1, 2, 3)",
    r'"\q"',
    r'"\u110000"',
    "9" * 5000,
    "@x",
    "@0:closed",
    "Precision.NONE",
    "Precision(1)",
    "ConvDimensionNumbers.lhs_spec",
    "ConvDimensionNumbers(lhs_spec=(0,))",
    "unknown",
    "key<none>",
    "(1, 2",
    "(1 2)",
    "(" * 100,
    "[1]",
    "",
]


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:24])
def test_malformed_attributes_are_parse_errors_with_a_place(text: str) -> None:
    with pytest.raises(ParseError) as error:
        read(text)
    assert error.value.where.startswith("<text>:1:")
