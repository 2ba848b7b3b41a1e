"""Values that hold one number everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tkcc.ir.graph import Node, Value
from tkcc.ir.types import TensorType, jax_dtype

Definition = Callable[[Value], Node | None]

_MAX_DEPTH = 8
_MOVES = frozenset(
    [
        "lax.reshape",
        "lax.broadcast_in_dim",
        "lax.transpose",
        "lax.squeeze",
        "lax.convert_element_type",
        "lax.copy",
        "lax.stop_gradient",
        "lax.slice",
    ]
)
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "lax.add": lambda a, b: a + b,
    "lax.sub": lambda a, b: a - b,
    "lax.mul": lambda a, b: a * b,
    "lax.div": lambda a, b: a / b if b else math.nan,
    "lax.max": max,
    "lax.min": min,
    "lax.pow": lambda a, b: a**b if a > 0 else math.nan,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "lax.neg": lambda a: -a,
    "lax.sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
    "lax.rsqrt": lambda a: 1 / math.sqrt(a) if a > 0 else math.nan,
    "lax.log": lambda a: math.log(a) if a > 0 else math.nan,
    "lax.square": lambda a: a * a,
}


def scalar(define: Definition, value: Value, depth: int = _MAX_DEPTH) -> float | None:
    """The number that every element of the value is, or None if that is not known."""
    node = define(value)
    if node is None or depth == 0:
        return None
    if node.op == "constant":
        return _uniform(node.attribute("value").array())
    if node.op in _MOVES:
        return rounded(scalar(define, node.operands[0], depth - 1), value.type)
    compute = _UNARY.get(node.op) or _BINARY.get(node.op)
    if compute is None or value.type.size > 1:
        return None  # arithmetic on numbers is done on scalars; anything else is real work
    numbers = [scalar(define, operand, depth - 1) for operand in node.operands]
    if any(number is None for number in numbers):
        return None
    return rounded(compute(*numbers), value.type)


def _uniform(array: np.ndarray[Any, Any]) -> float | None:
    if array.size == 0 or array.dtype.kind == "c":
        return None
    first = array.reshape(-1)[0]
    if array.size > 1 and not np.array_equal(array, np.full_like(array, first), equal_nan=True):
        return None
    return float(first)


def rounded(number: float | None, type_: TensorType) -> float | None:
    """The number as the type's dtype holds it."""
    if number is None or type_.dtype[0] not in "biuf":
        return None
    if type_.dtype[0] in "iu" and not abs(number) < 2 ** (type_.bits - 1):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.asarray(number).astype(jax_dtype(type_.dtype)))


def short(number: float, dtype: str) -> float:
    """The shortest decimal that is this number in `dtype` (1e-6 for float32's 9.99999997e-7)."""
    kind = jax_dtype(dtype)
    for digits in range(1, 17):
        text = float(f"{number:.{digits}g}")
        if float(np.asarray(text).astype(kind)) == number:
            return text
    return number


def near(a: float, b: float, relative: float = 1e-6) -> bool:
    """Equal up to the rounding of a float32 constant."""
    return abs(a - b) <= relative * max(abs(a), abs(b))
