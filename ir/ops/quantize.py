"""Weight-only quantisation: symmetric int8 and float8, one scale per output channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp

from tkcc.ir.factors import WHOLE, Factors, batched
from tkcc.ir.graph import Node
from tkcc.ir.op import REQUIRED, Attributes, Op, register, require
from tkcc.ir.ops.linear import Linear
from tkcc.ir.types import TensorType, dtype_name, jax_dtype

QUANTIZED = ("i8", "i4", "f8e4m3fn", "f8e5m2")


def largest(dtype: str) -> float:
    """The largest magnitude that quantised values use."""
    if dtype in ("i8", "i4"):
        return 127.0 if dtype == "i8" else 7.0
    return float(jnp.finfo(jax_dtype(dtype)).max)


@register
class Quantize(Op):
    """Symmetric quantisation with one float32 scale per slice along `axis`.

    x [.., ] -> (q in `dtype`, same shape; scale f32, x's shape with `axis` reduced to 1) with
    scale = max|x| / largest value of dtype, so x ~ q * scale. An all-zero slice has scale 1.
    """

    name = "quantize"
    operands = ("x",)
    attributes: ClassVar[dict[str, Any]] = {"dtype": REQUIRED, "axis": 0}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        name = dtype_name(attributes["dtype"])
        require(name in QUANTIZED, f"cannot quantise to {name}", f"use one of {QUANTIZED}")
        require(types[0].is_float, f"x is {types[0]}, not floating", "quantise weights only")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, dtype = operands[0].astype(jnp.float32), attributes["dtype"]
        name = dtype_name(dtype)
        top = jnp.max(jnp.abs(x), axis=attributes["axis"], keepdims=True)
        scale = jnp.where(top == 0, 1.0, top / largest(name))
        y = x / scale
        if name in ("i8", "i4"):
            y = jnp.clip(jnp.round(y), -largest(name), largest(name))
        return y.astype(dtype), scale

    def factors(self, node: Node) -> Factors:
        rank = node.operands[0].type.rank
        axis = node.attribute("axis") % rank
        names = tuple(f"d{i}{WHOLE}" if i == axis else f"d{i}" for i in range(rank))
        return Factors((names,), (names, names))

    def flops(self, node: Node) -> int:
        return 4 * node.operands[0].type.size


@register
class Dequantize(Op):
    """q * scale in `dtype` (scale broadcasts)."""

    name = "dequantize"
    operands = ("q", "scale")
    attributes: ClassVar[dict[str, Any]] = {"dtype": REQUIRED}

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        q, scale = operands
        return (q.astype(jnp.float32) * scale).astype(attributes["dtype"])

    def flops(self, node: Node) -> int:
        return node.results[0].type.size


@register
class QuantizedLinear(Op):
    """linear(x, q * scale): the product uses q widened to x's dtype, then scales each output.

    x [.., k]; q [k, n] with scale [1, n], or [n, k] with scale [n, 1] if `transposed`.
    """

    name = "quantized_linear"
    operands = ("x", "q", "scale")
    optional = ("bias",)
    attributes: ClassVar[dict[str, Any]] = {"transposed": False}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        x, q, scale = types[:3]
        Linear().check([x, q, *types[3:]], attributes)
        wanted = (q.shape[0], 1) if attributes["transposed"] else (1, q.shape[1])
        require(scale.shape == wanted, f"scale is {scale}, not {wanted}", "one scale per output")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, q, scale = operands
        bias = attributes.pop("bias", None)
        wide = jnp.promote_types(x.dtype, jnp.float32)
        y = Linear().reference(x.astype(wide), q.astype(x.dtype).astype(wide), **attributes)
        y = (y * scale.reshape(-1)).astype(x.dtype)
        return y if bias is None else y + bias.astype(x.dtype)

    def factors(self, node: Node) -> Factors:
        lead, whole = batched(node.operands[0].type.rank - 1), f"one{WHOLE}"
        transposed = node.attribute("transposed")
        q, scale = (("n", "k"), ("n", whole)) if transposed else (("k", "n"), (whole, "n"))
        bias = (("n",),) if node.keys else ()
        return Factors(((*lead, "k"), q, scale, *bias), ((*lead, "n"),))

    def flops(self, node: Node) -> int:
        return 2 * node.results[0].type.size * node.operands[0].type.shape[-1]
