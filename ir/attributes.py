"""Attribute values: what may stand in an op's attributes, and their text form.

Attributes are plain immutable data: None, bool, int, float, complex, str, dtypes, tuples, small
dense arrays, references to the node's regions, and a fixed list of JAX's own records (dimension
numbers, enums). The text form round-trips exactly; nothing in it is ever executed.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive, primitives

from tkcc.ir.errors import IRError
from tkcc.ir.types import TensorType, dtype_name, is_key_dtype, jax_dtype

MAX_DENSE_ELEMENTS = 64


@dataclasses.dataclass(frozen=True)
class RegionReference:
    """Stands in an attribute for the node's region number `index` (a jaxpr parameter in JAX)."""

    index: int
    closed: bool = True


@dataclasses.dataclass(frozen=True)
class Dense:
    """A small constant array: dtype by IR name, shape, and its bytes (little-endian, C order)."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        type_ = TensorType(self.dtype, self.shape)
        if is_key_dtype(self.dtype):
            raise IRError(f"a constant cannot hold {type_}", remedy="pass keys as parameters")
        if type_.size > MAX_DENSE_ELEMENTS:
            raise IRError(
                f"a constant of {type_.size} elements does not fit an attribute",
                remedy="pass large constants as parameters",
            )
        wanted = type_.size * int(jax_dtype(self.dtype).itemsize)
        if len(self.data) != wanted:
            raise IRError(f"{type_} has {wanted} bytes, got {len(self.data)}")

    @staticmethod
    def of(array: Any) -> Dense:
        """From an array of at most MAX_DENSE_ELEMENTS elements; larger ones are parameters."""
        value = np.asarray(array)
        return Dense(dtype_name(value.dtype), value.shape, value.tobytes())

    def array(self) -> np.ndarray[Any, Any]:
        flat: np.ndarray[Any, Any] = np.frombuffer(self.data, dtype=jax_dtype(self.dtype))
        return flat.reshape(self.shape)


@functools.cache
def record_classes() -> dict[str, type]:
    """JAX's records and enums that may stand in attributes, by class name."""
    from jax import lax

    import_names = [
        (
            lax,
            "GatherDimensionNumbers ScatterDimensionNumbers ConvDimensionNumbers "
            "RaggedDotDimensionNumbers GatherScatterMode Precision RandomAlgorithm "
            "AccuracyMode Tolerance DotAlgorithm DotAlgorithmPreset",
        ),
    ]
    found: dict[str, type] = {}
    for module, names in import_names:
        for name in names.split():
            if hasattr(module, name):
                found[name] = getattr(module, name)
    found.update(_private_records())
    return found


def _private_records() -> dict[str, type]:
    """Records that JAX has no public name for; absent ones (other JAX versions) are left out."""
    import importlib

    wanted = {
        "jax._src.lax.fft": ["FftType"],
        "jax._src.lax.lax": ["RaggedDotDimensionNumbers", "RoundingMethod", "DotAlgorithm"],
        "jax._src.lax.control_flow.solves": ["_LinearSolveTuple"],
        "jax._src.lax.linalg": ["EighImplementation", "SvdAlgorithm", "EigImplementation"],
    }
    found: dict[str, type] = {}
    for path, names in wanted.items():
        module = importlib.import_module(path)
        found.update({name: getattr(module, name) for name in names if hasattr(module, name)})
    return found


_PLAIN = (bool, int, float, complex, str, RegionReference, Dense)


def freeze(value: Any, where: str = "") -> Any:
    """`value` as an immutable attribute. Raises IRError naming what cannot be one."""
    if isinstance(value, enum.Enum):
        return _freeze_enum(value, where)
    if _is_record(value):
        names = _fields_of(value)
        return type(value)(**{name: freeze(getattr(value, name), where) for name in names})
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.generic):
        wider_than_python = isinstance(value, (np.longdouble, np.clongdouble))
        is_plain = value.dtype.kind in "biufc" and not wider_than_python
        return value.item() if is_plain else Dense.of(value)
    if value is None or isinstance(value, _PLAIN):
        return value
    if type(value).__name__ == "PRNGImpl":
        return KeyImplementation(str(value.name))
    if isinstance(value, Primitive):
        return _freeze_primitive(value, where)
    if isinstance(value, (DType, KeyImplementation, PrimitiveName)):
        return value
    if isinstance(value, np.dtype) or _is_dtype(value):
        return dtype_value(value)
    if isinstance(value, (tuple, list)):
        return tuple(freeze(item, where) for item in value)
    if isinstance(value, np.ndarray):
        return Dense.of(value)
    if isinstance(value, dict):
        return tuple((freeze(key, where), freeze(item, where)) for key, item in value.items())
    raise IRError(
        f"{where or 'an attribute'} is a {type(value).__module__}.{type(value).__qualname__}, "
        "which the IR cannot write as text",
        remedy="use plain numbers, strings, dtypes or tuples, or tag the code as a tkcc composite",
    )


def _is_dtype(value: Any) -> bool:
    if isinstance(value, type):
        is_jax_scalar = isinstance(getattr(value, "dtype", None), np.dtype)  # jnp.float32
        return issubclass(value, np.generic) or is_jax_scalar
    return is_key_dtype(value)


@dataclasses.dataclass(frozen=True)
class DType:
    """A dtype as an attribute, by IR name."""

    name: str


def dtype_value(value: Any) -> DType:
    return DType(dtype_name(value))


@dataclasses.dataclass(frozen=True)
class KeyImplementation:
    """A PRNG implementation as an attribute, by JAX's name for it (`threefry2x32`, `rbg`)."""

    name: str

    def resolve(self) -> Any:
        key = jax.eval_shape(lambda: jax.random.key(0, impl=self.name))
        return key.dtype._impl


@dataclasses.dataclass(frozen=True)
class PrimitiveName:
    """A JAX primitive as an attribute (which comparison a pooling uses), by its name."""

    name: str

    def resolve(self) -> Any:
        """The primitive. Raises ValueError if this JAX has none of that name."""
        found = getattr(primitives, f"{self.name}_p", None)
        if not isinstance(found, Primitive):
            raise ValueError(f"JAX has no primitive {self.name!r}")
        return found


def _freeze_primitive(value: Primitive, where: str) -> PrimitiveName:
    if getattr(primitives, f"{value.name}_p", None) is not value:
        raise IRError(
            f"{where or 'an attribute'} is the primitive {value.name!r}, which is not JAX's own",
            remedy="use one of jax.extend.core.primitives",
        )
    return PrimitiveName(value.name)


def _freeze_enum(value: enum.Enum, where: str) -> enum.Enum:
    if not _is_record(value):
        raise IRError(
            f"{where or 'an attribute'} is of the unknown enum {type(value).__qualname__}",
            remedy=f"use a string, or one of {sorted(record_classes())}",
        )
    return value


def _is_record(value: Any) -> bool:
    return record_classes().get(type(value).__name__) is type(value)


def _fields_of(value: Any) -> tuple[str, ...]:
    record: Any = type(value)
    return _field_names(record)


@functools.cache
def _field_names(record: Any) -> tuple[str, ...]:
    """The fields of a NamedTuple, dataclass or plain class: its constructor's arguments."""
    return tuple(inspect.signature(record).parameters)


def thaw(value: Any) -> Any:
    """The value as JAX expects it (dtypes as numpy dtypes, dense constants as arrays)."""
    if isinstance(value, DType):
        return jax_dtype(value.name)
    if isinstance(value, (KeyImplementation, PrimitiveName)):
        return value.resolve()
    if isinstance(value, Dense):
        return value.array()
    if isinstance(value, tuple):
        items = [thaw(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def format_attribute(value: Any) -> str:
    """The text form of a frozen attribute value."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (int, float, complex)):
        return format_number(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, RegionReference):
        return f"@{value.index}" + ("" if value.closed else ":open")
    if isinstance(value, Dense):
        return format_dense(value)
    if isinstance(value, (KeyImplementation, PrimitiveName)) or _is_record(value):
        return _format_fields(value, _fields_of(value))
    if isinstance(value, tuple):
        inner = ", ".join(map(format_attribute, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise IRError(f"attribute value {value!r} has no text form", remedy="report the op's name")


def _format_fields(value: Any, names: tuple[str, ...]) -> str:
    fields = ", ".join(f"{name}={format_attribute(getattr(value, name))}" for name in names)
    return f"{type(value).__name__}({fields})"


def quote(text: str) -> str:
    """A string literal with \\, \", newline and other control characters escaped."""
    out = []
    for character in text:
        if character in '"\\':
            out.append("\\" + character)
        elif character == "\n":
            out.append("\\n")
        elif not character.isprintable():
            out.append(f"\\u{ord(character):06x}")
        else:
            out.append(character)
    return '"' + "".join(out) + '"'


def format_number(value: complex) -> str:
    """Shortest text that reads back as the same number; floats always hold '.', 'e', inf or nan."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    return f"complex({format_number(value.real)}, {format_number(value.imag)})"


def format_dense(value: Dense) -> str:
    """`f32[2](1.0, 2.0)`; a float whose bits are a special NaN is written as its hex bytes."""
    head = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    array = value.array().reshape(-1)
    texts = [_format_element(item) for item in array]
    if _dense_from_texts(value.dtype, value.shape, texts).data == value.data:
        return f"{head}({', '.join(texts)})"
    return f"{head}(hex {quote(value.data.hex())})"


def _format_element(item: Any) -> str:
    if isinstance(item, np.bool_):
        return "true" if item else "false"
    if isinstance(item, np.complexfloating):
        return format_number(complex(item))
    if np.issubdtype(item.dtype, np.integer) or str(item.dtype) in (
        "int4",
        "uint4",
        "int2",
        "uint2",
    ):
        return str(int(item))
    return repr(float(item)) if not np.isnan(item) else "nan"


def _dense_from_texts(dtype: str, shape: tuple[int, ...], texts: list[str]) -> Dense:
    return dense_from_numbers(dtype, shape, [number(text) for text in texts])


def number(text: str) -> Any:
    """Read one number, true or false. Raises ValueError."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("complex("):
        real, imaginary = text[len("complex(") : -1].split(",")
        return complex(float(real), float(imaginary))
    return int(text) if text.lstrip("-").isdigit() else float(text)


def dense_from_numbers(dtype: str, shape: tuple[int, ...], numbers: list[Any]) -> Dense:
    """A dense constant from its elements in C order. Raises IRError on a wrong count."""
    if len(numbers) != math.prod(shape):
        raise IRError(
            f"{dtype}[{','.join(map(str, shape))}] needs {math.prod(shape)} elements, got "
            f"{len(numbers)}",
            remedy="write one number per element",
        )
    if is_key_dtype(dtype):
        raise IRError(f"a constant cannot hold {dtype}", remedy="pass keys as parameters")
    array = np.empty(len(numbers), dtype=jax_dtype(dtype))
    for position, item in enumerate(numbers):
        _put(array, position, item, dtype)
    return Dense(dtype, shape, array.tobytes())


_ELEMENT_KINDS: dict[str, Any] = {"bool": bool, "i": int, "u": int, "c": (int, float, complex)}


def _put(array: np.ndarray[Any, Any], position: int, item: Any, dtype: str) -> None:
    """Store one element. Raises IRError for another kind of number or an integer out of range."""
    kinds = _ELEMENT_KINDS.get(dtype if dtype == "bool" else dtype[0], (int, float))
    fits = isinstance(item, kinds) and isinstance(item, bool) == (dtype == "bool")
    if fits:
        array[position] = item if dtype[0] in "bciu" and dtype != "bf16" else float(item)
    if not fits or (dtype[0] in "iu" and int(array[position]) != item):
        raise IRError(f"{item!r} is no element of a constant of {dtype}")
