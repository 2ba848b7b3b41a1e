"""Views: a value together with what its dimensions stand for, and steps back through the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.axes import Axes, Axis, Dim, Dims, axes_in
from tkcc.ir.reading.scalars import Definition, scalar

# A float dtype -> the float dtypes that hold all of its values.
_WIDER = {
    "bf16": ("bf16", "f32", "f64"),
    "f16": ("f16", "f32", "f64"),
    "f32": ("f32", "f64"),
    "f64": ("f64",),
}


def holds_all(wide: str, narrow: str) -> bool:
    """Whether the float dtype `wide` represents every value of the float dtype `narrow`."""
    return wide in _WIDER.get(narrow, (narrow,))


@dataclasses.dataclass(frozen=True)
class View:
    """`value`, whose dimensions run over the digits `dims`."""

    value: Value
    dims: Dims

    @property
    def dtype(self) -> str:
        return self.value.type.dtype

    @property
    def axes(self) -> set[Axis]:
        return axes_in(self.dims)


_Step = Callable[[Axes, Node, View], Dims | None]


def _same(axes: Axes, node: Node, view: View) -> Dims | None:
    return view.dims


def _through_reshape(axes: Axes, node: Node, view: View) -> Dims | None:
    if node.attribute("dimensions") is not None:
        return None
    return axes.regroup(view.dims, node.operands[0].type.shape)


def _through_transpose(axes: Axes, node: Node, view: View) -> Dims | None:
    permutation = node.attribute("permutation")
    dims: list[Dim] = [()] * len(permutation)
    for place, source in enumerate(permutation):
        dims[source] = view.dims[place]
    return tuple(dims)


def _through_broadcast(axes: Axes, node: Node, view: View) -> Dims | None:
    shape = node.operands[0].type.shape
    places = node.attribute("broadcast_dimensions")
    return tuple(
        view.dims[place] if size != 1 else () for size, place in zip(shape, places, strict=True)
    )


def _through_squeeze(axes: Axes, node: Node, view: View) -> Dims | None:
    rank = node.operands[0].type.rank
    removed = {dimension % rank for dimension in node.attribute("dimensions")}
    kept = iter(view.dims)
    return tuple(() if place in removed else next(kept) for place in range(rank))


def _through_tile(axes: Axes, node: Node, view: View) -> Dims | None:
    """Repeats count slower than what is repeated."""
    dims: list[Dim] = []
    for repeats, size, dim in zip(
        node.attribute("reps"), node.operands[0].type.shape, view.dims, strict=True
    ):
        parts = axes.regroup((dim,), (repeats, size))
        if parts is None:
            return None
        dims.append(parts[1])
    return tuple(dims)


_LAYOUT: dict[str, _Step] = {
    "lax.reshape": _through_reshape,
    "lax.transpose": _through_transpose,
    "lax.broadcast_in_dim": _through_broadcast,
    "lax.squeeze": _through_squeeze,
    "lax.tile": _through_tile,
    "lax.copy": _same,
    "lax.stop_gradient": _same,
}


def converts_floats(node: Node) -> bool:
    """Whether the node converts floats to another float dtype."""
    if node.op != "lax.convert_element_type":
        return False
    return node.operands[0].type.is_float and node.results[0].type.is_float


def widens(node: Node) -> bool:
    """Whether the node converts floats to a float dtype that holds all of them."""
    if not converts_floats(node):
        return False
    return holds_all(node.results[0].type.dtype, node.operands[0].type.dtype)


def origin(define: Definition, value: Value) -> Value:
    """The value before exact conversions of floats."""
    node = define(value)
    while node is not None and widens(node):
        value = node.operands[0]
        node = define(value)
    return value


class Reader:
    """Reads a graph through views that share their axes."""

    def __init__(self, define: Definition) -> None:
        self.define = define
        self.axes = Axes()

    def view(self, value: Value) -> View:
        """The value with axes of its own."""
        return View(value, self.axes.fresh(value.type.shape))

    def node(self, view: View) -> Node | None:
        return self.define(view.value)

    def scalar(self, value: Value) -> float | None:
        return scalar(self.define, value)

    def resolve(self, view: View) -> View:
        return View(view.value, self.axes.resolve(view.dims))

    def back(self, view: View) -> View | None:
        """One step back through a layout op, or None if the value is not made by one."""
        node = self.define(view.value)
        step = _LAYOUT.get(node.op) if node is not None else None
        if node is None or step is None:
            return None
        dims = step(self.axes, node, self.resolve(view))
        return None if dims is None else View(node.operands[0], dims)

    def base(self, view: View, *, widening: bool = False, rounding: bool = False) -> View:
        """As far back as layout ops go; with `widening` through exact conversions of floats too,
        with `rounding` through any conversion of floats."""
        while True:
            earlier = self.back(view)
            node = self.define(view.value)
            if earlier is None and node is not None:
                passes = (widening and widens(node)) or (rounding and converts_floats(node))
                earlier = View(node.operands[0], view.dims) if passes else None
            if earlier is None:
                return self.resolve(view)
            view = earlier

    def operand(self, node: Node, index: int, dims: Dims) -> View:
        """An operand of an elementwise node whose result runs over `dims`."""
        value = node.operands[index]
        if value.type.rank == 0:
            return View(value, ())
        pairs = zip(dims, value.type.shape, strict=True)
        return View(value, tuple(dim if size != 1 else () for dim, size in pairs))

    def operands(self, node: Node, dims: Dims) -> tuple[View, ...]:
        return tuple(self.operand(node, i, dims) for i in range(len(node.operands)))
