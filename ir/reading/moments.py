"""Roots of mean squares and variances."""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.axes import Dims
from tkcc.ir.reading.dots import read_sum, reduces_last
from tkcc.ir.reading.scalars import near, rounded
from tkcc.ir.reading.views import Reader, View, origin

_MAX_FACTORS = 3


@dataclasses.dataclass(frozen=True)
class Moment:
    """mean(x * x) + eps over the last axis, or the variance of x plus eps if `centred`."""

    x: Value
    eps: float
    centred: bool


@dataclasses.dataclass(frozen=True)
class Root:
    """1 / sqrt(moment), times `factors` (values that broadcast to the shape of x)."""

    moment: Moment
    factors: tuple[Value, ...] = ()


def read_root(
    reader: Reader, view: View, dims: Dims, x: Value, *, inverse: bool, depth: int = _MAX_FACTORS
) -> Root | None:
    """The view as 1 / sqrt of a moment of x (sqrt, if not `inverse`), x running over `dims`.

    x is what is scaled: the moment is that of x, or, if x is y - mean(y), the variance of y.
    """
    view = reader.base(view, rounding=True)
    node = reader.node(view)
    if node is None or view.dtype == "f64" != x.type.dtype:
        return None
    if inverse and node.op == "lax.mul":
        return _product(reader, node, view, dims, x, depth - 1) if depth else None
    inner = _under_root(reader, node, view, inverse)
    moment = _moment(reader, inner, dims, x) if inner is not None else None
    return None if moment is None else Root(moment)


def _product(
    reader: Reader, node: Node, view: View, dims: Dims, x: Value, depth: int
) -> Root | None:
    """rsqrt(...) * weight, where the weight runs over the last axis."""
    for side in (0, 1):
        inner = reader.operand(node, side, view.dims)
        root = read_root(reader, inner, dims, x, inverse=True, depth=depth)
        if root is None:
            continue
        other = reader.operand(node, 1 - side, view.dims)
        if other.value.type.rank in (0, len(dims)) and view.dims == dims:
            return dataclasses.replace(root, factors=(*root.factors, other.value))
    return None


def _under_root(reader: Reader, node: Node, view: View, inverse: bool) -> View | None:
    """y of rsqrt(y), 1 / sqrt(y) or y ** -0.5 (of sqrt(y) or y ** 0.5, if not `inverse`)."""
    if node.op == ("lax.rsqrt" if inverse else "lax.sqrt"):
        return View(node.operands[0], view.dims)
    if node.op == "lax.pow" and reader.scalar(node.operands[1]) == (-0.5 if inverse else 0.5):
        return reader.operand(node, 0, view.dims)
    if inverse and node.op == "lax.div" and reader.scalar(node.operands[0]) == 1:
        below = reader.base(reader.operand(node, 1, view.dims))
        root = reader.node(below)
        return None if root is None else _under_root(reader, root, below, False)
    return None


def _moment(reader: Reader, view: View, dims: Dims, x: Value) -> Moment | None:
    """The moment that a value is, if it is that of x (of y, for x = y - mean(y))."""
    view, eps = _without_eps(reader, reader.base(view, rounding=True))
    source = _centred(reader, x, dims)
    if source is not None and _is_variance(reader, view, dims, source):
        return Moment(source, eps, centred=True)
    squared = _mean_of_square(reader, view, dims)
    if squared is None or origin(reader.define, squared) is not origin(reader.define, x):
        return None
    return Moment(x, eps, centred=False)


def _without_eps(reader: Reader, view: View) -> tuple[View, float]:
    node = reader.node(view)
    if node is not None and node.op == "lax.add":
        for side in (0, 1):
            number = reader.scalar(node.operands[side])
            if number is not None and number >= 0:
                rest = reader.operand(node, 1 - side, view.dims)
                return reader.base(rest, rounding=True), number
    return view, 0.0


@dataclasses.dataclass(frozen=True)
class Mean:
    """The mean of `operand` over its dimension `reduced`."""

    operand: View
    reduced: Dims


def read_mean(reader: Reader, view: View) -> Mean | None:
    """sum / n or sum * (1 / n), over one dimension of size n."""
    view = reader.base(view, rounding=True)
    node = reader.node(view)
    if node is None or node.op not in ("lax.div", "lax.mul"):
        return None
    for side in (0, 1) if node.op == "lax.mul" else (1,):
        number = reader.scalar(node.operands[side])
        if not number:
            continue
        found = read_sum(reader, reader.operand(node, 1 - side, view.dims))
        if found is None or len(found[1]) != 1 or len(found[1][0]) != 1:
            return None
        size = found[1][0][0].size
        wanted = size if node.op == "lax.div" else 1 / size
        held = rounded(wanted, node.operands[side].type)  # 1 / n as a short float holds it
        return Mean(*found) if near(number, wanted) or number == held else None
    return None


def _mean_of_square(reader: Reader, view: View, dims: Dims) -> Value | None:
    """x if the view is the mean of x * x over the last of `dims`."""
    mean = read_mean(reader, view)
    if mean is None or not reduces_last(mean.operand, mean.reduced, dims):
        return None
    product = reader.base(mean.operand, rounding=True)
    node = reader.node(product)
    if node is None or product.dims != mean.operand.dims:
        return None
    is_pow = node.op == "lax.pow" and reader.scalar(node.operands[1]) == 2
    is_product = node.op == "lax.mul" and node.operands[0] is node.operands[1]
    is_square = node.op == "lax.square" or is_pow or is_product
    if not is_square and not (node.op == "lax.integer_pow" and node.attribute("y") == 2):
        return None
    return node.operands[0]


def _centred(reader: Reader, x: Value, dims: Dims) -> Value | None:
    """y if x is y - mean(y) over the last axis."""
    node = reader.define(origin(reader.define, x))
    if node is None or node.op != "lax.sub" or node.operands[0].type.shape != x.type.shape:
        return None
    y = node.operands[0]
    mean = read_mean(reader, reader.operand(node, 1, dims))
    return y if mean is not None and _is_mean_of(reader, mean, dims, y) else None


def _is_mean_of(reader: Reader, mean: Mean, dims: Dims, y: Value) -> bool:
    operand = reader.base(mean.operand, widening=True)
    same = origin(reader.define, operand.value) is origin(reader.define, y)
    return same and operand.dims[:-1] == dims[:-1] and operand.dims[-1:] == mean.reduced


def _is_variance(reader: Reader, view: View, dims: Dims, y: Value) -> bool:
    """mean((y - mean(y)) ** 2), or mean(y * y) - mean(y) ** 2 with perhaps max(0, .) around it."""
    squared = _mean_of_square(reader, view, dims)
    if squared is not None:
        source = _centred(reader, squared, dims)
        return source is not None and origin(reader.define, source) is origin(reader.define, y)
    return _is_fast_variance(reader, view, dims, y)


def _is_fast_variance(reader: Reader, view: View, dims: Dims, y: Value) -> bool:
    view = reader.base(_without_clamp(reader, view), rounding=True)
    node = reader.node(view)
    if node is None or node.op != "lax.sub":
        return False
    left, right = reader.operands(node, view.dims)
    squared = _mean_of_square(reader, left, dims)
    product = reader.base(right, rounding=True)
    square = reader.node(product)
    if squared is None or square is None or square.op != "lax.mul":
        return False
    means = [read_mean(reader, operand) for operand in reader.operands(square, product.dims)]
    return origin(reader.define, squared) is origin(reader.define, y) and all(
        mean is not None and _is_mean_of(reader, mean, dims, y) for mean in means
    )


def _without_clamp(reader: Reader, view: View) -> View:
    node = reader.node(view)
    if node is not None and node.op == "lax.max":
        for side in (0, 1):
            if reader.scalar(node.operands[side]) == 0:
                return reader.operand(node, 1 - side, view.dims)
    return view
