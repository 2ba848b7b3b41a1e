"""Adding `lax` nodes in the form in which JAX itself writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tkcc.ir.attributes import Dense, DType
from tkcc.ir.graph import Value
from tkcc.ir.reading.axes import Dim, flat, size_of
from tkcc.ir.reading.forms import Form
from tkcc.ir.reading.views import View
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.types import jax_dtype


def constant(editor: Editor, number: Any, dtype: str) -> Value:
    array = np.asarray(number).astype(jax_dtype(dtype))
    return editor.add("constant", attributes={"value": Dense.of(array)})[0]


def reshape(editor: Editor, value: Value, shape: Sequence[int]) -> Value:
    if value.type.shape == tuple(shape):
        return value
    attributes = {"new_sizes": tuple(shape), "dimensions": None, "sharding": None}
    return editor.add("lax.reshape", value, attributes=attributes)[0]


def transpose(editor: Editor, value: Value, permutation: Sequence[int]) -> Value:
    if list(permutation) == list(range(value.type.rank)):
        return value
    return editor.add("lax.transpose", value, attributes={"permutation": tuple(permutation)})[0]


def broadcast(editor: Editor, value: Value, shape: Sequence[int], places: Sequence[int]) -> Value:
    """Dimension i of the value becomes dimension `places[i]` of `shape`."""
    if value.type.shape == tuple(shape):
        return value
    attributes = {
        "shape": tuple(shape),
        "broadcast_dimensions": tuple(places),
        "sharding": None,
    }
    return editor.add("lax.broadcast_in_dim", value, attributes=attributes)[0]


def full(editor: Editor, number: Any, dtype: str, shape: Sequence[int]) -> Value:
    return broadcast(editor, constant(editor, number, dtype), shape, ())


def convert(editor: Editor, value: Value, dtype: str) -> Value:
    if value.type.dtype == dtype:
        return value
    attributes = {"new_dtype": DType(dtype), "weak_type": False, "sharding": None}
    return editor.add("lax.convert_element_type", value, attributes=attributes)[0]


def iota(editor: Editor, size: int) -> Value:
    """0, 1, ... as i32 [size]."""
    attributes = {"dtype": DType("i32"), "shape": (size,), "dimension": 0, "sharding": None}
    return editor.add("lax.iota", attributes=attributes)[0]


def binary(editor: Editor, op: str, left: Value, right: Value) -> Value:
    """An elementwise op of two values of one shape (or with scalars)."""
    attributes = {"out_dtype": None} if op == "lax.mul" else {}
    return editor.add(op, left, right, attributes=attributes)[0]


def arrange(editor: Editor, view: View, target: Sequence[Dim], *, expand: bool = False) -> Value:
    """The view's value laid out as `target`, by reshapes and at most one transpose.

    Every digit of the view stands in `target`. Digits of `target` that the view lacks get size 1
    (the dimension must then hold no digit of the view), or are repeated with `expand`.
    """
    have = set(flat(view.dims))
    wanted = tuple(tuple(d for d in dim if d in have) for dim in target)
    assert len(flat(wanted)) == len(flat(view.dims)), "the target lacks an axis of the view"
    value = _permute(editor, view, wanted)
    partial = [
        dim for dim, kept in zip(target, wanted, strict=True) if kept and len(kept) < len(dim)
    ]
    if not expand and not partial:
        return reshape(editor, value, [size_of(dim) for dim in wanted])
    return _expand(editor, value, target, have, everything=expand)


def _permute(editor: Editor, view: View, wanted: Sequence[Dim]) -> Value:
    """A value with the digits in the order of `wanted` (its shape may still differ)."""
    if flat(view.dims) == flat(wanted):
        return view.value
    if len(view.dims) == len(wanted):
        order = _dimension_order(view.dims, wanted)
        if order is not None:
            return transpose(editor, view.value, order)
    digits = flat(view.dims)
    split = reshape(editor, view.value, [digit.size for digit in digits])
    return transpose(editor, split, [digits.index(digit) for digit in flat(wanted)])


def _dimension_order(dims: Sequence[Dim], wanted: Sequence[Dim]) -> list[int] | None:
    """The permutation that makes `wanted` out of whole dimensions, if there is one."""
    left = list(range(len(dims)))
    order = []
    for dim in wanted:
        found = next((place for place in left if dims[place] == dim), None)
        if found is None:
            return None
        left.remove(found)
        order.append(found)
    return order


def _expand(
    editor: Editor, value: Value, target: Sequence[Dim], have: set[Any], *, everything: bool
) -> Value:
    """Repeat over the digits that the value lacks: all of them, or those beside ones it has."""
    shape: list[int] = []
    places: list[int] = []
    sizes: list[int] = []
    for dim in target:
        kept = [digit for digit in dim if digit in have]
        repeated = everything or bool(kept)
        for digit in dim:
            if digit in have:
                places.append(len(shape))
                sizes.append(digit.size)
            shape.append(digit.size if digit in have or repeated else 1)
    spread = broadcast(editor, reshape(editor, value, sizes), shape, places)
    final = [size_of(dim) if everything or any(d in have for d in dim) else 1 for dim in target]
    return reshape(editor, spread, final)


def integers(editor: Editor, form: Form, rows: Sequence[Dim]) -> Value:
    """The value of an index form over `rows`, as i32 (every axis of the form stands there)."""
    parts = [
        _times(editor, arrange(editor, base.view, rows, expand=True), base.factor)
        for base in form.bases
    ]
    for axis, factor in form.terms:
        counted = arrange(editor, View(iota(editor, axis.size), ((axis,),)), rows, expand=True)
        parts.append(_times(editor, counted, factor))
    if form.number or not parts:
        parts.append(full(editor, form.number, "i32", [size_of(dim) for dim in rows]))
    total = parts[0]
    for part in parts[1:]:
        total = binary(editor, "lax.add", total, part)
    return total


def _times(editor: Editor, value: Value, factor: int) -> Value:
    value = convert(editor, value, "i32")
    if factor == 1:
        return value
    return binary(editor, "lax.mul", value, full(editor, factor, "i32", value.type.shape))
