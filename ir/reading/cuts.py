"""Slices, splits, stacks and concatenations, seen from one piece of the whole."""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node
from tkcc.ir.reading.axes import Digit, Dim, Fixed, size_of
from tkcc.ir.reading.views import Reader, View


@dataclasses.dataclass(frozen=True)
class Cut:
    """`view` is elements start, start + stride, ... of `source` along dimension `place`."""

    source: View  # with the cut dimension's digits as in the piece
    place: int
    start: int
    stride: int


def read_cut(reader: Reader, view: View) -> Cut | None:
    """The slice (or piece of a split) that a value is, if it cuts one dimension only."""
    node = reader.node(view)
    if node is None or node.op not in ("lax.slice", "lax.split"):
        return None
    source = View(node.operands[0], reader.resolve(view).dims)
    if node.op == "lax.split":
        sizes, axis = node.attribute("sizes"), node.attribute("axis")
        number = node.results.index(view.value)
        return Cut(source, axis, sum(sizes[:number]), 1)
    starts = node.attribute("start_indices")
    strides = node.attribute("strides") or (1,) * len(starts)
    shape, whole = view.value.type.shape, source.value.type.shape
    places = [i for i in range(len(shape)) if shape[i] != whole[i]]
    if len(places) != 1:
        return None
    return Cut(source, places[0], starts[places[0]], strides[places[0]])


def uncut(reader: Reader, view: View) -> View | None:
    """The whole behind a slice or split that takes one of several equal pieces (or each k-th
    element): the piece becomes a fixed digit of the whole's dimension."""
    cut = read_cut(reader, view)
    if cut is None:
        return None
    dim = cut.source.dims[cut.place]
    size = view.value.type.shape[cut.place]
    whole = cut.source.value.type.shape[cut.place]
    if size == 0 or whole % size:
        return None
    pieces = whole // size
    digits: Dim | None = None
    if cut.stride == 1 and cut.start % size == 0:
        digits = (Fixed(pieces, cut.start // size), *dim)
    elif cut.stride == pieces and cut.start < pieces:
        digits = (*dim, Fixed(pieces, cut.start))
    if digits is None:
        return None
    return View(cut.source.value, _with_dim(cut.source.dims, cut.place, digits))


def _with_dim(dims: tuple[Dim, ...], place: int, digits: Dim) -> tuple[Dim, ...]:
    return (*dims[:place], digits, *dims[place + 1 :])


def piece(reader: Reader, view: View) -> View | None:
    """The operand of a stack or concatenation in which the view lies, if a fixed digit says so."""
    node = reader.node(view)
    if node is None:
        return None
    dims = reader.resolve(view).dims
    if node.op == "lax.stack":
        axis = node.attribute("axis")
        number = _only_fixed(dims[axis])
        return (
            None
            if number is None
            else View(node.operands[number], (*dims[:axis], *dims[axis + 1 :]))
        )
    if node.op == "lax.concatenate":
        return _concatenated(reader, node, dims)
    return None


def _concatenated(reader: Reader, node: Node, dims: tuple[Dim, ...]) -> View | None:
    axis, count = node.attribute("dimension"), len(node.operands)
    sizes = {value.type.shape[axis] for value in node.operands}
    if len(sizes) != 1 or size_of(dims[axis]) != count * min(sizes):
        return None
    parts = reader.axes.regroup((dims[axis],), (count, sizes.pop()))
    number = _only_fixed(parts[0]) if parts is not None else None
    if parts is None or number is None:
        return None
    return View(node.operands[number], _with_dim(reader.axes.resolve(dims), axis, parts[1]))


def _only_fixed(dim: Dim) -> int | None:
    """The index that fixed digits make."""
    index = 0
    for digit in dim:
        if not isinstance(digit, Fixed):
            return None
        index = index * digit.size + digit.index
    return index if dim else None


def fixed_in(dims: tuple[Dim, ...]) -> list[Digit]:
    return [digit for dim in dims for digit in dim if isinstance(digit, Fixed)]
