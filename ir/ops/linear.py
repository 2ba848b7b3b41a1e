"""Matrix products with weights: linear, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import lax

from tkcc.ir.factors import WHOLE, Factors, batched
from tkcc.ir.graph import Node
from tkcc.ir.op import Attributes, Op, register, require
from tkcc.ir.types import TensorType


@register
class Linear(Op):
    """y = x @ w (+ bias). x [.., k]; w [k, n], or [n, k] if `transposed`; y [.., n] in x's dtype.

    Products are accumulated in float32 (float64 for float64 inputs). If w has another dtype than
    x, both are widened to the wider one and y has that dtype, as in JAX.
    """

    name = "linear"
    operands = ("x", "w")
    optional = ("bias",)
    attributes: ClassVar[dict[str, Any]] = {"transposed": False}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        x, w = types[:2]
        require(w.rank == 2, f"w is {w}, not a matrix", "batched products are lax.dot_general")
        depth = w.shape[1 if attributes["transposed"] else 0]
        require(
            x.rank >= 1 and x.shape[-1] == depth,
            f"w is {w}, but the last axis of x is {x.shape[-1] if x.rank else 'missing'}",
            "transpose w, or set transposed",
        )
        if len(types) == 3:
            width = w.shape[0 if attributes["transposed"] else 1]
            require(
                types[2].shape == (width,), f"bias is {types[2]}, not [{width}]", "one per output"
            )

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, w = operands
        dtype = jnp.promote_types(x.dtype, w.dtype)
        contract = 1 if attributes["transposed"] else 0
        dims = (((x.ndim - 1,), (contract,)), ((), ()))
        wide = (
            jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else dtype
        )
        y = lax.dot_general(
            x.astype(dtype), w.astype(dtype), dims, preferred_element_type=wide
        ).astype(dtype)
        bias = attributes.get("bias")
        return y if bias is None else y + bias.astype(dtype)

    def factors(self, node: Node) -> Factors:
        lead = batched(node.operands[0].type.rank - 1)
        w = ("n", "k") if node.attribute("transposed") else ("k", "n")
        bias = (("n",),) if node.keys else ()
        return Factors(((*lead, "k"), w, *bias), ((*lead, "n"),))

    def flops(self, node: Node) -> int:
        return 2 * node.results[0].type.size * node.operands[0].type.shape[-1]


@register
class Embedding(Op):
    """Rows of `table` [v, d] for integer `ids` [..] -> [.., d]; ids are clamped to the table."""

    name = "embedding"
    operands = ("table", "ids")

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        table, ids = types
        require(table.rank == 2, f"table is {table}, not [v, d]", "give a matrix")
        require(ids.dtype[0] in "iu", f"ids are {ids}, not integers", "convert them to i32")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        table, ids = operands
        return table.at[ids].get(mode="clip", wrap_negative_indices=False)

    def factors(self, node: Node) -> Factors:
        lead = batched(node.operands[1].type.rank)
        return Factors(((f"v{WHOLE}", "d"), lead), ((*lead, "d"),))

    def flops(self, node: Node) -> int:
        return 0
