"""Products, reductions and precision, read in named axes."""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node
from tkcc.ir.reading.axes import Dim, Dims
from tkcc.ir.reading.views import Reader, View

_SHORT_FLOATS = ("bf16", "f16")


@dataclasses.dataclass(frozen=True)
class Dot:
    """A dot_general: its operands in the axes of its result, and the axes it sums over."""

    left: View
    right: View
    summed: Dim


def read_dot(reader: Reader, node: Node, dims: Dims) -> Dot:
    """The operands of a dot_general whose result runs over `dims`."""
    (sum_left, sum_right), (batch_left, batch_right) = node.attribute("dimension_numbers")
    left, right = (value.type for value in node.operands)
    summed = reader.axes.fresh([left.shape[i] for i in sum_left])
    batch = dims[: len(batch_left)]
    free_left = left.rank - len(sum_left) - len(batch_left)
    rest = dims[len(batch) :]
    one = _operand_dims(left.rank, batch_left, sum_left, batch, summed, rest[:free_left])
    two = _operand_dims(right.rank, batch_right, sum_right, batch, summed, rest[free_left:])
    total = tuple(digit for dim in summed for digit in dim)
    return Dot(View(node.operands[0], one), View(node.operands[1], two), total)


def _operand_dims(
    rank: int,
    batch_places: tuple[int, ...],
    summed_places: tuple[int, ...],
    batch: Dims,
    summed: Dims,
    free: Dims,
) -> Dims:
    known = dict(zip(batch_places, batch, strict=True))
    known.update(zip(summed_places, summed, strict=True))
    left = iter(free)
    return tuple(known[place] if place in known else next(left) for place in range(rank))


def plain_precision(node: Node) -> bool:
    """Whether a dot_general asks for no more than the default precision.

    Products of bfloat16 or float16 values are exact in float32, so for them every setting is met.
    """
    if all(value.type.dtype in _SHORT_FLOATS for value in node.operands):
        return True
    precision = node.attribute("precision")
    items = precision if isinstance(precision, tuple) else (precision,)
    return all(item is None or getattr(item, "name", "") == "DEFAULT" for item in items)


def read_sum(reader: Reader, view: View, op: str = "lax.reduce_sum") -> tuple[View, Dims] | None:
    """The operand of the reduction that a value is a layout (or conversion) of.

    Returns the operand and the dimensions that are reduced (fresh axes).
    """
    base = reader.base(view, rounding=True)
    node = reader.node(base)
    if node is None or node.op != op:
        return None
    places = node.attribute("axes")
    shape = node.operands[0].type.shape
    reduced = dict(zip(places, reader.axes.fresh([shape[i] for i in places]), strict=True))
    kept = iter(base.dims)
    dims = tuple(reduced[i] if i in reduced else next(kept) for i in range(len(shape)))
    return View(node.operands[0], dims), tuple(reduced[i] for i in places)


def reduces_last(operand: View, reduced: Dims, dims: Dims) -> bool:
    """Whether a reduction over one dimension of `operand` is over the last of `dims`, the other
    dimensions standing for the same axes."""
    if len(reduced) != 1 or len(operand.dims) != len(dims) or not dims:
        return False
    return operand.dims[:-1] == dims[:-1] and operand.dims[-1] == reduced[0]
