"""Collectives over a mesh axis of `size` devices. Values are per device.

They evaluate inside `jax.shard_map` (or `jax.vmap` with `axis_name`), where the axis is bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from jax import lax

from tkcc.ir.factors import elementwise
from tkcc.ir.graph import Function, Node
from tkcc.ir.op import REQUIRED, Attributes, Op, register, require
from tkcc.ir.types import TensorType

_REDUCTIONS = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


class Collective(Op):
    """Base: one operand, a mesh axis and its size; types follow from the size, not from tracing."""

    operands = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"axis": REQUIRED, "size": REQUIRED}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        require(attributes["size"] >= 1, f"size is {attributes['size']}", "at least one device")
        for key in ("dimension", "split", "join"):
            if key in attributes:
                require(
                    0 <= attributes[key] < types[0].rank,
                    f"{key} is {attributes[key]}, but x is {types[0]}",
                    "name a dimension of x",
                )

    def infer(
        self,
        types: Sequence[TensorType],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: tuple[Function, ...],
    ) -> tuple[TensorType, ...]:
        return (self.result_type(types[0], attributes),)

    def result_type(self, x: TensorType, attributes: Attributes) -> TensorType:
        return x

    def flops(self, node: Node) -> int:
        return 0


def _scaled(x: TensorType, dimension: int, times: int, over: int) -> TensorType:
    shape = list(x.shape)
    require(
        shape[dimension] * times % over == 0,
        f"dimension {dimension} of {x} does not split into {over} pieces",
        "pad it, or use another number of devices",
    )
    shape[dimension] = shape[dimension] * times // over
    return x.with_shape(tuple(shape))


@register
class AllReduce(Collective):
    """Sum over the axis; every device gets the sum. `reduction` is sum, max or min."""

    name = "all_reduce"
    attributes: ClassVar[dict[str, Any]] = {**Collective.attributes, "reduction": "sum"}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        super().check(types, attributes)
        reduction = attributes["reduction"]
        require(
            reduction in _REDUCTIONS,
            f"unknown reduction {reduction!r}",
            f"use one of {list(_REDUCTIONS)}",
        )

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return _REDUCTIONS[attributes["reduction"]](operands[0], attributes["axis"])

    def factors(self, node: Node) -> Any:
        return elementwise([node.operands[0].type.rank], 1)

    def flops(self, node: Node) -> int:
        return node.operands[0].type.size


@register
class AllGather(Collective):
    """Join the devices' pieces along `dimension`."""

    name = "all_gather"
    attributes: ClassVar[dict[str, Any]] = {**Collective.attributes, "dimension": 0}

    def result_type(self, x: TensorType, attributes: Attributes) -> TensorType:
        return _scaled(x, attributes["dimension"], attributes["size"], 1)

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return lax.all_gather(
            operands[0], attributes["axis"], axis=attributes["dimension"], tiled=True
        )


@register
class ReduceScatter(Collective):
    """Sum over the axis; each device keeps its piece along `dimension`."""

    name = "reduce_scatter"
    attributes: ClassVar[dict[str, Any]] = {**Collective.attributes, "dimension": 0}

    def result_type(self, x: TensorType, attributes: Attributes) -> TensorType:
        return _scaled(x, attributes["dimension"], 1, attributes["size"])

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return lax.psum_scatter(
            operands[0], attributes["axis"], scatter_dimension=attributes["dimension"], tiled=True
        )

    def flops(self, node: Node) -> int:
        return node.operands[0].type.size


@register
class AllToAll(Collective):
    """Cut along `split`, send piece i to device i, join what arrives along `join`."""

    name = "all_to_all"
    attributes: ClassVar[dict[str, Any]] = {**Collective.attributes, "split": 0, "join": 0}

    def result_type(self, x: TensorType, attributes: Attributes) -> TensorType:
        cut = _scaled(x, attributes["split"], 1, attributes["size"])
        return _scaled(cut, attributes["join"], attributes["size"], 1)

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return lax.all_to_all(
            operands[0], attributes["axis"], attributes["split"], attributes["join"], tiled=True
        )


@register
class Permute(Collective):
    """Send x from device a to device b for each (a, b); devices that get nothing have zeros."""

    name = "collective_permute"
    attributes: ClassVar[dict[str, Any]] = {**Collective.attributes, "pairs": REQUIRED}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        super().check(types, attributes)
        size, pairs = attributes["size"], attributes["pairs"]
        require(
            all(0 <= device < size for pair in pairs for device in pair)
            and all(len({pair[end] for pair in pairs}) == len(pairs) for end in (0, 1)),
            f"pairs {pairs} do not fit {size} devices",
            "(from, to), each device at most once on each side",
        )

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        return lax.ppermute(operands[0], attributes["axis"], attributes["pairs"])
