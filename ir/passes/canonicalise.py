"""One spelling for what JAX programs spell in many ways. Every step keeps the bits of the result.

Steps: ops that do nothing are dropped (copies, stop_gradient, conversions to the same dtype, times
one, and with true); scalar arithmetic on constants is done; squares are written `x * x`; squeezes,
broadcasts and transposes that only move dimensions of size 1 are reshapes; chains of layout ops
are as short as they can be; the negative-index fix of indices that cannot be negative is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tkcc.ir.attributes import Dense
from tkcc.ir.graph import Function, Module, Node, Value
from tkcc.ir.op import build
from tkcc.ir.passes.clean import each_function, remove_dead, share_common, with_operands
from tkcc.ir.reading.axes import Dims, flat
from tkcc.ir.reading.scalars import scalar
from tkcc.ir.reading.views import Reader, View, holds_all
from tkcc.ir.types import dtype_name

_Definitions = dict[Value, Node]
# What a node becomes: a value that exists already, or one that new nodes make (the last's result).
_Result = Value | list[Node] | None
_Step = Callable[[Node, _Definitions], _Result]


def canonicalise(module: Module) -> Module:
    """The module with one spelling; dead nodes are dropped and equal nodes shared."""
    return each_function(module, lambda f: remove_dead(share_common(canonical_function(f))))


def tidy(module: Module) -> Module:
    """As `canonicalise`, without sharing equal nodes."""
    return each_function(module, lambda f: remove_dead(canonical_function(f)))


def canonical_function(function: Function) -> Function:
    """One pass over the nodes, regions first."""
    replaced: dict[Value, Value] = {}
    made: _Definitions = {}
    nodes: list[Node] = []
    for node in function.nodes:
        current = _with_regions(with_operands(node, replaced))
        result = _simplified(current, made)
        if isinstance(result, Value):
            replaced[node.results[0]] = result
            continue
        kept = [current] if result is None else _renamed(result, current)
        for item in kept:
            made.update(dict.fromkeys(item.results, item))
        nodes += kept
    outputs = tuple(replaced.get(value, value) for value in function.outputs)
    return function.replace(nodes=tuple(nodes), outputs=outputs)


def _with_regions(node: Node) -> Node:
    if not node.regions or node.op.startswith("lax.") or node.op == "group":
        return node
    return node.replace(regions=tuple(canonical_function(region) for region in node.regions))


def _renamed(nodes: list[Node], original: Node) -> list[Node]:
    """The last node defines the original's results."""
    last = nodes[-1]
    assert [v.type for v in last.results] == [v.type for v in original.results]
    return [*nodes[:-1], last.replace(results=original.results, source=original.source)]


def _simplified(node: Node, made: _Definitions) -> _Result:
    step = _STEPS.get(node.op)
    if step is not None:
        result = step(node, made)
        if result is not None:
            return result
    return _folded(node, made) if node.op in _FOLDED else None


def _only_operand(node: Node, made: _Definitions) -> _Result:
    return node.operands[0]


def _conversion(node: Node, made: _Definitions) -> _Result:
    """Drop a conversion to the same dtype; two in a row are one if the first loses nothing."""
    value = node.operands[0]
    if value.type == node.results[0].type:
        return value
    before = made.get(value)
    if before is None or before.op != "lax.convert_element_type":
        return None
    first = before.operands[0]
    if not (first.type.is_float and holds_all(value.type.dtype, first.type.dtype)):
        return None
    if first.type == node.results[0].type:
        return first
    return [build(node.op, first, attributes=dict(node.attributes))]


def _square(node: Node, made: _Definitions) -> _Result:
    if node.op == "lax.integer_pow" and node.attribute("y") != 2:
        return node.operands[0] if node.attribute("y") == 1 else None
    value = node.operands[0]
    return [build("lax.mul", value, value, attributes={"out_dtype": None})]


def _neutral(number: float, sides: tuple[int, ...]) -> _Step:
    """Drop an operation with a number that changes nothing, if it stands on one of `sides`."""

    def step(node: Node, made: _Definitions) -> _Result:
        dtype = node.results[0].type.dtype
        if node.op == "lax.add" and dtype[0] not in "iu":
            return None  # -0.0 + 0.0 is 0.0
        if node.op == "lax.and" and dtype != "bool":
            return None
        for side in sides:
            other = node.operands[1 - side]
            same = other.type == node.results[0].type
            if same and scalar(made.get, node.operands[side]) == number:
                return other
        return None

    return step


def _selection(node: Node, made: _Definitions) -> _Result:
    """A choice that is known, or between one and the same; a negative index that cannot be."""
    which, *cases = node.operands
    number = scalar(made.get, which)
    if number is not None and cases[int(number)].type == node.results[0].type:
        return cases[int(number)]
    if all(case is cases[0] for case in cases):
        return cases[0]
    test = made.get(which)
    if test is not None and test.op == "lax.lt" and scalar(made.get, test.operands[1]) == 0:
        return cases[0] if _not_negative(test.operands[0], made) else None
    return None


def _not_negative(value: Value, made: _Definitions) -> bool:
    """Whether an integer value is certainly >= 0: counts, ranks, and layouts of them."""
    node = made.get(value)
    while node is not None and node.op in ("lax.reshape", "lax.broadcast_in_dim", "lax.transpose"):
        value = node.operands[0]
        node = made.get(value)
    if node is None:
        return False
    if node.op == "lax.top_k":
        return value is node.results[1]
    if node.op == "lax.sort":
        return _not_negative(node.operands[node.results.index(value)], made)
    if node.op in ("lax.max", "lax.select_n"):
        numbers = [scalar(made.get, operand) for operand in node.operands]
        return node.op == "lax.max" and any(n is not None and n >= 0 for n in numbers)
    return node.op in ("lax.iota", "lax.argmax", "lax.argmin")


def _layout(node: Node, made: _Definitions) -> _Result:
    """The shortest chain of layout ops with the same meaning."""
    if node.op == "lax.reshape" and node.attribute("dimensions") is not None:
        return None
    before = made.get(node.operands[0])
    if before is None or before.op not in _LAYOUT:
        return _alone(node)
    if node.op == "lax.reshape" and before is not None and before.op == "lax.reshape":
        return _reshaped(before, node) if before.attribute("dimensions") is None else None
    return _by_axes(node, made)


def _alone(node: Node) -> _Result:
    """A layout op of something else: a reshape (or nothing), if elements keep their order."""
    value, shape = node.operands[0], node.results[0].type.shape
    if node.op == "lax.transpose":
        moved = [i for i in node.attribute("permutation") if value.type.shape[i] != 1]
        if moved != sorted(moved):
            return None
    if value.type.size != node.results[0].type.size:
        return None
    if value.type.shape == shape:
        return value
    return None if node.op == "lax.reshape" else [_reshape(value, shape)]


def _reshaped(before: Node, node: Node) -> Value | list[Node]:
    first, shape = before.operands[0], node.results[0].type.shape
    return first if first.type.shape == shape else [_reshape(first, shape)]


def _by_axes(node: Node, made: _Definitions) -> _Result:
    """One op from as far back as named axes can be followed."""
    result = node.results[0]
    reader = Reader(lambda value: node if value is result else made.get(value))
    whole = reader.view(result)
    best: _Result = None
    view = reader.back(whole)
    first = True
    while view is not None:
        shortest = _shortest(view, reader.axes.resolve(whole.dims), node)
        if shortest is not None and not (first and _is(shortest, node)):
            best = shortest
        view, first = reader.back(view), False
    return best


def _is(result: Value | list[Node], node: Node) -> bool:
    return not isinstance(result, Value) and len(result) == 1 and result[0].op == node.op


def _shortest(view: View, dims: Dims, node: Node) -> Value | list[Node] | None:
    """One op (or none) from the view to `dims`, in the shape of the node's result."""
    value, shape = view.value, node.results[0].type.shape
    if flat(view.dims) == flat(dims):
        if value.type.shape == shape:
            return value
        return [_reshape(value, shape)]
    if value.type.size == node.results[0].type.size:
        order = _permutation(view.dims, dims)
        attributes: dict[str, Any] = {"permutation": order}
        return None if order is None else [build("lax.transpose", value, attributes=attributes)]
    places = _places(view.dims, dims)
    if places is None:
        return None
    attributes = {"shape": shape, "broadcast_dimensions": places, "sharding": None}
    return [build("lax.broadcast_in_dim", value, attributes=attributes)]


def _reshape(value: Value, shape: Sequence[int]) -> Node:
    attributes = {"new_sizes": tuple(shape), "dimensions": None, "sharding": None}
    return build("lax.reshape", value, attributes=attributes)


def _permutation(before: Dims, after: Dims) -> tuple[int, ...] | None:
    if len(before) != len(after):
        return None
    left = list(range(len(before)))
    order = []
    for dim in after:
        place = next((p for p in left if before[p] == dim), None)
        if place is None:
            return None
        left.remove(place)
        order.append(place)
    return tuple(order)


def _places(before: Dims, after: Dims) -> tuple[int, ...] | None:
    """Where each dimension of a value goes in a broadcast; None if no broadcast does it."""
    places: list[int] = []
    for i, dim in enumerate(before):
        lowest = places[-1] + 1 if places else 0
        last = len(after) - (len(before) - i) + 1
        found = next((p for p in range(lowest, last) if after[p] == dim or not dim), None)
        if found is None:
            return None
        places.append(found)
    return tuple(places)


def _folded(node: Node, made: _Definitions) -> _Result:
    """Evaluate an op that numpy rounds as XLA does, on constants of one element.

    (Larger ones are often counts, whose arithmetic says more than its result.)
    """
    result = node.results[0].type
    defined = [made.get(value) for value in node.operands]
    if result.size != 1 or any(d is None or d.op != "constant" for d in defined):
        return None
    arrays = [d.attribute("value").array() for d in defined if d is not None]
    with np.errstate(all="ignore"):
        computed = _FOLDED[node.op](node, arrays)
    if computed is None:
        return None
    array = np.asarray(computed)
    if array.shape != result.shape or dtype_name(array.dtype) != result.dtype:
        return None
    return [build("constant", attributes={"value": Dense.of(array)})]


def _to_dtype(node: Node, arrays: list[Any]) -> Any:
    result = node.results[0].type
    from_float = node.operands[0].type.is_float and result.dtype[0] in "iu"
    if from_float and not np.all(np.abs(arrays[0].astype(np.float64)) < 2 ** (result.bits - 1)):
        return None  # XLA clamps where numpy wraps
    return arrays[0].astype(result.struct().dtype)


def _divide(node: Node, arrays: list[Any]) -> Any:
    left, right = arrays
    if left.dtype.kind not in "iu":
        return left / right
    if np.any(right == 0):
        return None
    return (np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right))).astype(left.dtype)


_FOLDED: dict[str, Callable[[Node, list[Any]], Any]] = {
    "lax.convert_element_type": _to_dtype,
    "lax.add": lambda _, a: a[0] + a[1],
    "lax.sub": lambda _, a: a[0] - a[1],
    "lax.mul": lambda _, a: a[0] * a[1],
    "lax.div": _divide,
    "lax.neg": lambda _, a: -a[0],
    "lax.sign": lambda _, a: np.sign(a[0]),
    "lax.max": lambda _, a: np.maximum(a[0], a[1]),
    "lax.min": lambda _, a: np.minimum(a[0], a[1]),
    "lax.lt": lambda _, a: a[0] < a[1],
    "lax.le": lambda _, a: a[0] <= a[1],
    "lax.gt": lambda _, a: a[0] > a[1],
    "lax.ge": lambda _, a: a[0] >= a[1],
    "lax.eq": lambda _, a: a[0] == a[1],
    "lax.ne": lambda _, a: a[0] != a[1],
    "lax.reshape": lambda node, a: a[0].reshape(node.results[0].type.shape),
}

_LAYOUT = ("lax.reshape", "lax.squeeze", "lax.transpose", "lax.broadcast_in_dim", "lax.tile")
_STEPS: dict[str, _Step] = {
    "lax.copy": _only_operand,
    "lax.copy_p": _only_operand,
    "lax.stop_gradient": _only_operand,
    "lax.name": _only_operand,
    "lax.convert_element_type": _conversion,
    "lax.square": _square,
    "lax.integer_pow": _square,
    "lax.mul": _neutral(1.0, (0, 1)),
    "lax.div": _neutral(1.0, (1,)),
    "lax.sub": _neutral(0.0, (1,)),
    "lax.add": _neutral(0.0, (0, 1)),
    "lax.max": _neutral(-math.inf, (0, 1)),
    "lax.min": _neutral(math.inf, (0, 1)),
    "lax.and": _neutral(1.0, (0, 1)),
    "lax.or": _neutral(0.0, (0, 1)),
    "lax.select_n": _selection,
    "lax.reshape": _layout,
    "lax.squeeze": _layout,
    "lax.transpose": _layout,
    "lax.broadcast_in_dim": _layout,
}
