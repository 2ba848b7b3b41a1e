"""Types of values: dtype, shape and sharding."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import ml_dtypes
import numpy as np

from tkcc.ir.errors import IRError

# IR name -> numpy dtype. int4 and the float8 kinds come from ml_dtypes, as in JAX itself.
_DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i2": np.dtype(ml_dtypes.int2),
    "u2": np.dtype(ml_dtypes.uint2),
    "i4": np.dtype(ml_dtypes.int4),
    "u4": np.dtype(ml_dtypes.uint4),
    "f4e2m1fn": np.dtype(ml_dtypes.float4_e2m1fn),
    "f8e3m4": np.dtype(ml_dtypes.float8_e3m4),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8e4m3b11fnuz": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_BITS = {"bool": 8, "i2": 2, "u2": 2, "i4": 4, "u4": 4, "f4e2m1fn": 4}

_AXIS_NAME = re.compile(r"(?!(?:inf|nan)\Z)[A-Za-z_][A-Za-z0-9_]*")

# A mesh axis name, several of them, or None for an unsplit dimension.
AxisSplit = str | tuple[str, ...] | None


def dtype_names() -> list[str]:
    """Every plain dtype name of the IR (PRNG keys, `key<impl>`, come on top)."""
    return list(_DTYPES)


def is_key_dtype(dtype: Any) -> bool:
    """Whether it is a JAX PRNG key dtype (an extended dtype, not a numpy one)."""
    return str(dtype).startswith("key<")


@functools.lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """The IR's name of a numpy, ml_dtypes or JAX extended (PRNG key) dtype.

    Raises IRError for a dtype the IR does not have.
    """
    if is_key_dtype(dtype):
        return str(dtype)
    try:
        name = _NAMES.get(np.dtype(dtype))
    except TypeError:
        name = None
    if name is None:
        raise IRError(f"dtype {dtype} has no name in the IR", remedy=f"use one of {dtype_names()}")
    return name


@functools.lru_cache(maxsize=256)
def jax_dtype(name: str) -> Any:
    """The numpy dtype, or the JAX PRNG key dtype, of an IR dtype name. Raises IRError."""
    if name in _DTYPES:
        return _DTYPES[name]
    if name.startswith("key<") and name.endswith(">"):
        return _key_dtype(name)
    raise IRError(f"unknown dtype {name!r}", remedy=f"use one of {dtype_names()} or key<fry>")


def _key_dtype(name: str) -> Any:
    for implementation in ("threefry2x32", "rbg", "unsafe_rbg"):
        dtype = jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype  # noqa: B023
        if str(dtype) == name:
            return dtype
    raise IRError(
        f"unknown PRNG key dtype {name!r}", remedy="JAX has key<fry>, key<rbg>, key<urbg>"
    )


@dataclasses.dataclass(frozen=True)
class TensorType:
    """The type of a value: `dtype` by IR name, static `shape`, and how each dimension is split.

    `sharding` has one entry per dimension (a mesh axis, a tuple of axes, or None); an empty tuple
    means that the value is not split at all. A tuple of one axis is kept as that axis.
    """

    dtype: str
    shape: tuple[int, ...]
    sharding: tuple[AxisSplit, ...] = ()

    def __post_init__(self) -> None:
        if self.sharding and len(self.sharding) != len(self.shape):
            raise IRError(
                f"sharding {self.sharding} has {len(self.sharding)} entries for "
                f"{len(self.shape)} dimensions",
                remedy="give one mesh axis or None per dimension",
            )
        object.__setattr__(self, "sharding", tuple(map(_checked_axis, self.sharding)))
        if any(size < 0 for size in self.shape):
            raise IRError(f"shape {self.shape} has a negative dimension", remedy="sizes are >= 0")

    def __str__(self) -> str:
        text = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        if not self.sharding:
            return text
        return text + "@(" + ",".join(_split_text(axis) for axis in self.sharding) + ")"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Bits of one element; a PRNG key counts its 32-bit words."""
        if self.dtype.startswith("key<"):
            return 64 if self.dtype == "key<fry>" else 128
        return _BITS.get(self.dtype, 8 * jax_dtype(self.dtype).itemsize)

    @property
    def bytes(self) -> int:
        """Bytes in memory, sub-byte elements packed."""
        return (self.size * self.bits + 7) // 8

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("f", "bf"))

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """The same dtype with another shape, unsharded."""
        return TensorType(self.dtype, tuple(int(size) for size in shape))

    def struct(self) -> jax.ShapeDtypeStruct:
        """As JAX's shape-and-dtype record (without sharding)."""
        return jax.ShapeDtypeStruct(self.shape, jax_dtype(self.dtype))


def _checked_axis(axis: AxisSplit) -> AxisSplit:
    """The split with one form per meaning. Raises IRError for a name that has no text form."""
    names = () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)
    for name in names:
        if not _AXIS_NAME.fullmatch(name):
            raise IRError(f"mesh axis {name!r} is no plain name", remedy="use letters, _ and 0-9")
    if len(names) < 2:
        return names[0] if names else None
    return names


def _split_text(axis: AxisSplit) -> str:
    if axis is None:
        return "-"
    return axis if isinstance(axis, str) else "+".join(axis)


def type_of(value: Any) -> TensorType:
    """The type of an array, a ShapeDtypeStruct, an abstract value or a Python number."""
    if isinstance(value, TensorType):
        return value
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        value = jax.typeof(value)
    return TensorType(dtype_name(value.dtype), tuple(int(size) for size in value.shape))
