"""Rank-independent data movement, used by rewrites (a negative axis counts from the end)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from tkcc.ir.factors import WHOLE, Factors
from tkcc.ir.graph import Node
from tkcc.ir.op import REQUIRED, Attributes, Op, register, require
from tkcc.ir.types import TensorType


class _Move(Op):
    def flops(self, node: Node) -> int:
        return 0


def _require_axis(type_: TensorType, axis: int) -> None:
    require(
        -type_.rank <= axis < type_.rank, f"axis {axis} is not in {type_}", "use an axis in range"
    )


def _whole_axis(rank: int, axis: int) -> tuple[str, ...]:
    return tuple(f"d{i}{WHOLE}" if i == axis % rank else f"d{i}" for i in range(rank))


@register
class Concat(_Move):
    """Join arrays along `axis`: [.., a, ..], [.., b, ..] -> [.., a + b, ..]."""

    name = "concat"
    operands = ("x",)
    variadic = True
    attributes: ClassVar[dict[str, Any]] = {"axis": -1}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        _require_axis(types[0], attributes["axis"])
        require(
            len({t.dtype for t in types}) == 1, "operands have different dtypes", "convert them"
        )

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return jnp.concatenate(operands, axis=attributes["axis"])

    def factors(self, node: Node) -> Factors:
        names = _whole_axis(node.operands[0].type.rank, node.attribute("axis"))
        return Factors((names,) * len(node.operands), (names,))


@register
class Split(_Move):
    """Cut `x` along `axis` into pieces of the given sizes."""

    name = "split"
    operands = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"axis": -1, "sizes": REQUIRED}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        axis, sizes = attributes["axis"], attributes["sizes"]
        _require_axis(types[0], axis)
        require(
            sum(sizes) == types[0].shape[axis],
            f"sizes {sizes} do not add up to {types[0].shape[axis]}",
            "they must cover the axis",
        )

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, axis = operands[0], attributes["axis"] % operands[0].ndim
        return tuple(lax.split(x, attributes["sizes"], axis=axis))

    def factors(self, node: Node) -> Factors:
        names = _whole_axis(node.operands[0].type.rank, node.attribute("axis"))
        return Factors((names,), (names,) * len(node.results))


@register
class Stack(_Move):
    """Join arrays along a new axis 0: [..] n times -> [n, ..]."""

    name = "stack"
    operands = ("x",)
    variadic = True

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        require(len(set(types)) == 1, "operands have different types", "stack equal types")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return jnp.stack(operands)

    def factors(self, node: Node) -> Factors:
        names = tuple(f"d{i}" for i in range(node.operands[0].type.rank))
        return Factors((names,) * len(node.operands), ((f"n{WHOLE}", *names),))


@register
class TakeRow(_Move):
    """Row `index` (an i32 scalar, clamped) of x along its first axis: [n, ..] -> [..]."""

    name = "take_row"
    operands = ("x", "index")

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        x, index = types
        require(x.rank > 0 and x.shape[0] > 0, f"x is {x}, which has no rows", "stack it first")
        require(index == TensorType("i32", ()), f"index is {index}, not i32[]", "convert it")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, index = operands
        return lax.dynamic_index_in_dim(
            x, index, axis=0, keepdims=False, allow_negative_indices=False
        )

    def factors(self, node: Node) -> Factors:
        names = tuple(f"d{i}" for i in range(node.operands[0].type.rank - 1))
        return Factors(((f"n{WHOLE}", *names), ()), (names,))


@register
class Transpose(_Move):
    """Permute dimensions; leading ones may be left out: (1, 0) swaps the last two."""

    name = "transpose"
    operands = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"permutation": (1, 0)}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        permutation = attributes["permutation"]
        require(
            sorted(permutation) == list(range(len(permutation)))
            and len(permutation) <= types[0].rank,
            f"permutation {permutation} does not fit {types[0]}",
            "permute the last dimensions, numbered from 0",
        )

    @staticmethod
    def full(rank: int, permutation: tuple[int, ...]) -> tuple[int, ...]:
        lead = rank - len(permutation)
        return (*range(lead), *(lead + p for p in permutation))

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x = operands[0]
        return lax.transpose(x, self.full(x.ndim, attributes["permutation"]))

    def factors(self, node: Node) -> Factors:
        rank = node.operands[0].type.rank
        names = tuple(f"d{i}" for i in range(rank))
        order = self.full(rank, node.attribute("permutation"))
        return Factors((names,), (tuple(names[i] for i in order),))


@register
class Reshape(_Move):
    """Give the dimensions after the first `keep` a new shape: [a, b, c] -> [a, *shape]."""

    name = "reshape"
    operands = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"keep": 0, "shape": REQUIRED}

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, keep = operands[0], attributes["keep"]
        keep = keep if keep >= 0 else x.ndim + keep
        return x.reshape(*x.shape[:keep], *attributes["shape"])

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        keep, x = attributes["keep"], types[0]
        require(-x.rank <= keep <= x.rank, f"keep is {keep}, but x is {x}", "at most x's rank")

    def factors(self, node: Node) -> Factors:
        rank, keep = node.operands[0].type.rank, node.attribute("keep")
        keep = keep if keep >= 0 else rank + keep
        lead = tuple(f"d{i}" for i in range(keep))
        left = tuple(f"i{i}{WHOLE}" for i in range(keep, rank))
        right = tuple(f"o{i}{WHOLE}" for i in range(keep, node.results[0].type.rank))
        return Factors((lead + left,), (lead + right,))


@register
class Prepared(_Move):
    """x itself. Says that x, computed from parameters, is to be kept as a parameter.

    Hoisting otherwise keeps the smaller form and widens in every step.
    """

    name = "prepared"
    operands = ("x",)

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return operands[0]

    def factors(self, node: Node) -> Factors:
        names = tuple(f"d{i}" for i in range(node.operands[0].type.rank))
        return Factors((names,), (names,))


@register
class ScaleAxis(Op):
    """x times a vector `s` along `axis`: one factor per row (axis 0) or column (axis 1)."""

    name = "scale_axis"
    operands = ("x", "s")
    attributes: ClassVar[dict[str, Any]] = {"axis": -1, "plus_one": False}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        x, s = types
        _require_axis(x, attributes["axis"])
        size = x.shape[attributes["axis"]]
        require(s.shape == (size,), f"s is {s}, not [{size}]", "give one factor per slice")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, s = operands
        wide = jnp.promote_types(x.dtype, jnp.float32)
        shape = [1] * x.ndim
        shape[attributes["axis"]] = -1
        factor = s.astype(wide) + 1.0 if attributes["plus_one"] else s.astype(wide)
        return (x.astype(wide) * factor.reshape(shape)).astype(x.dtype)

    def factors(self, node: Node) -> Factors:
        names = tuple(f"d{i}" for i in range(node.operands[0].type.rank))
        return Factors((names, (names[node.attribute("axis")],)), (names,))

    def flops(self, node: Node) -> int:
        return node.operands[0].type.size


@register
class Cast(_Move):
    """Convert to another dtype, rounding to nearest even where it narrows."""

    name = "cast"
    operands = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"dtype": REQUIRED}

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return operands[0].astype(attributes["dtype"])

    def factors(self, node: Node) -> Factors:
        names = tuple(f"d{i}" for i in range(node.operands[0].type.rank))
        return Factors((names,), (names,))
