"""Index arithmetic: an integer value as a sum over its axes and over values that are read.

`positions[b, t] - iota[s] + 1` is the form with term {s: -1}, base (1, positions over (b, t)) and
number 1. Comparing two such forms is how masks are understood.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from tkcc.ir.graph import Node
from tkcc.ir.reading.axes import Axis, Dim, Fixed
from tkcc.ir.reading.views import Reader, View

_MAX_DEPTH = 12
# Dtypes in which positions are exact (float32 up to 2^24).
_EXACT = ("i8", "i16", "i32", "i64", "f32", "f64")


@dataclasses.dataclass(frozen=True)
class Base:
    """`factor` times a value that is read."""

    factor: int
    view: View


@dataclasses.dataclass(frozen=True)
class Form:
    """number + sum of factor * axis index + sum of factor * base."""

    number: int = 0
    terms: tuple[tuple[Axis, int], ...] = ()
    bases: tuple[Base, ...] = ()

    def factor(self, axis: Axis) -> int:
        return dict(self.terms).get(axis, 0)

    def plus(self, other: Form, times: int = 1) -> Form:
        terms = dict(self.terms)
        for axis, factor in other.terms:
            terms[axis] = terms.get(axis, 0) + times * factor
        bases = {base.view: base.factor for base in self.bases}
        for base in other.bases:
            bases[base.view] = bases.get(base.view, 0) + times * base.factor
        return Form(
            self.number + times * other.number,
            tuple((axis, factor) for axis, factor in terms.items() if factor),
            tuple(Base(factor, view) for view, factor in bases.items() if factor),
        )

    def times(self, factor: int) -> Form:
        return Form().plus(self, factor)

    def shifted(self, number: int) -> Form:
        return dataclasses.replace(self, number=self.number + number)

    @property
    def axes(self) -> set[Axis]:
        found = {axis for axis, _ in self.terms}
        for base in self.bases:
            found |= base.view.axes
        return found

    def smallest(self) -> float:
        """The least value it can take; -inf if it reads a value."""
        if self.bases:
            return -math.inf
        return self.number + sum(min(0, f * (axis.size - 1)) for axis, f in self.terms)

    def largest(self) -> float:
        """The largest value it can take; inf if it reads a value."""
        return -self.times(-1).smallest()


def index_of(dim: Dim) -> Form:
    """The index along a dimension made of these digits."""
    form, weight = Form(), 1
    for digit in reversed(dim):
        if isinstance(digit, Fixed):
            form = form.shifted(weight * digit.index)
        else:
            form = form.plus(Form(0, ((digit, weight),)))
        weight *= digit.size
    return form


def resolved(reader: Reader, form: Form) -> Form:
    """The form in the axes that are left after splits."""
    out = Form(form.number)
    for axis, factor in form.terms:
        out = out.plus(index_of(reader.axes.parts((axis,))), factor)
    for base in form.bases:
        out = out.plus(Form(0, (), (Base(base.factor, reader.resolve(base.view)),)))
    return out


def read_form(reader: Reader, view: View, depth: int = _MAX_DEPTH) -> Form | None:
    """An integer value (or a float that holds integers) as a form; None for other dtypes.

    What cannot be taken apart is a base of the form.
    """
    if view.dtype not in _EXACT:
        return None
    number = reader.scalar(view.value)
    if number is not None:
        return Form(int(number)) if float(number).is_integer() else None
    node = reader.node(view)
    step = _STEPS.get(node.op) if node is not None else None
    if node is not None and step is not None and depth:
        form = step(reader, node, reader.resolve(view), depth - 1)
        if form is not None:
            return form
    earlier = reader.back(view)
    if earlier is not None and depth:
        return read_form(reader, earlier, depth - 1)
    if view.dtype[0] != "i":
        return None
    return Form(0, (), (Base(1, reader.resolve(view)),))


def _sum(times: int) -> Callable[[Reader, Node, View, int], Form | None]:
    def step(reader: Reader, node: Node, view: View, depth: int) -> Form | None:
        left, right = _operand_forms(reader, node, view, depth)
        if left is None or right is None:
            return None
        return resolved(reader, left).plus(resolved(reader, right), times)

    return step


def _operand_forms(
    reader: Reader, node: Node, view: View, depth: int
) -> tuple[Form | None, Form | None]:
    one, two = reader.operands(node, view.dims)
    return read_form(reader, one, depth), read_form(reader, two, depth)


def _product(reader: Reader, node: Node, view: View, depth: int) -> Form | None:
    for side in (0, 1):
        number = reader.scalar(node.operands[side])
        if number is not None and number.is_integer():
            form = read_form(reader, reader.operand(node, 1 - side, view.dims), depth)
            return None if form is None else form.times(int(number))
    return None


def _negative(reader: Reader, node: Node, view: View, depth: int) -> Form | None:
    form = read_form(reader, reader.operand(node, 0, view.dims), depth)
    return None if form is None else form.times(-1)


def _iota(reader: Reader, node: Node, view: View, depth: int) -> Form | None:
    return index_of(view.dims[node.attribute("dimension")])


def _constant(reader: Reader, node: Node, view: View, depth: int) -> Form | None:
    """An array that is an arithmetic progression along each dimension."""
    array = node.attribute("value").array().astype(np.float64)
    if not np.all(np.isfinite(array)) or not np.all(array == np.round(array)):
        return None
    form = Form(int(array.reshape(-1)[0]))
    rebuilt = np.full(array.shape, array.reshape(-1)[0])
    for place, size in enumerate(array.shape):
        if size == 1:
            continue
        step = int(np.take(array, 1, place).reshape(-1)[0] - array.reshape(-1)[0])
        along = [1] * array.ndim
        along[place] = size
        rebuilt = rebuilt + step * np.arange(size).reshape(along)
        form = form.plus(index_of(view.dims[place]), step)
    return form if np.array_equal(rebuilt, array) else None


def _conversion(reader: Reader, node: Node, view: View, depth: int) -> Form | None:
    if node.operands[0].type.dtype == "bool":
        return None
    return read_form(reader, View(node.operands[0], view.dims), depth)


def _selection(reader: Reader, node: Node, view: View, depth: int) -> Form | None:
    """`where(i < 0, i + n, i)`, which JAX writes around indices: i, for indices in range."""
    inner = unwrapped(reader, node)
    return None if inner is None else read_form(reader, reader.operand(node, 1, view.dims), depth)


def unwrapped(reader: Reader, node: Node | None) -> Node | None:
    """The node itself if it is JAX's negative-index fix `select_n(i < 0, i, i + n)`."""
    if node is None or node.op != "lax.select_n" or len(node.operands) != 3:
        return None
    test, total = reader.define(node.operands[0]), reader.define(node.operands[2])
    index = node.operands[1]
    if test is None or total is None or (test.op, total.op) != ("lax.lt", "lax.add"):
        return None
    below = test.operands[0] is index and reader.scalar(test.operands[1]) == 0
    size = [reader.scalar(v) for v in total.operands if v is not index]
    return node if below and len(size) == 1 and (size[0] or 0) > 0 else None


def _slice(reader: Reader, node: Node, view: View, depth: int) -> Form | None:
    """The operand's form, with start + stride * index in the place of each index."""
    part = read_part(reader, node, view)
    form = read_form(reader, part[0], depth) if part is not None else None
    if part is None or form is None or not is_whole(reader, part[0]):
        return None
    return substituted(form, part[1])


def read_part(reader: Reader, node: Node, view: View) -> tuple[View, dict[Axis, Form]] | None:
    """What a slice or dynamic_slice cuts from, in axes of its own, and the indices that the part
    reads there, as forms over the axes of the part."""
    rank = len(view.dims)
    if node.op == "lax.slice":
        strides = node.attribute("strides") or (1,) * rank
        starts = [Form(start) for start in node.attribute("start_indices")]
    else:
        strides = (1,) * rank
        found = [read_form(reader, View(value, ())) for value in node.operands[1:]]
        starts = [start for start in found if start is not None]
    if len(starts) != rank:
        return None
    operand = reader.view(node.operands[0])
    places = {}
    for i, (dim, start, stride) in enumerate(zip(operand.dims, starts, strides, strict=True)):
        if dim and isinstance(dim[0], Axis):
            places[dim[0]] = start.plus(index_of(view.dims[i]), stride)
    return operand, places


def is_whole(reader: Reader, view: View) -> bool:
    """Whether none of the view's axes was split meanwhile."""
    return reader.axes.resolve(view.dims) == view.dims


def substituted(form: Form, places: dict[Axis, Form]) -> Form | None:
    """The form with other forms in the place of axes; None if a base runs over one of them."""
    out = Form(form.number)
    for axis, factor in form.terms:
        out = out.plus(places.get(axis, Form(0, ((axis, 1),))), factor)
    for base in form.bases:
        if base.view.axes & set(places):
            return None
        out = out.plus(Form(0, (), (base,)))
    return out


_STEPS: dict[str, Callable[[Reader, Node, View, int], Form | None]] = {
    "lax.add": _sum(1),
    "lax.sub": _sum(-1),
    "lax.mul": _product,
    "lax.neg": _negative,
    "lax.iota": _iota,
    "constant": _constant,
    "lax.convert_element_type": _conversion,
    "lax.select_n": _selection,
    "lax.slice": _slice,
    "lax.dynamic_slice": _slice,
}
