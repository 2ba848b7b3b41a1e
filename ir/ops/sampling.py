"""Choosing the next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from tkcc.ir.factors import WHOLE, Factors
from tkcc.ir.graph import Node
from tkcc.ir.op import Attributes, Op, register, require
from tkcc.ir.types import TensorType


@register
class Sample(Op):
    """The next token of each row: logits [b, v] -> ids [b] i32.

    `method` `greedy` takes the first largest logit; `categorical` draws from
    softmax(logits / temperature) with a PRNG `key` [] and `temperature` [b].
    """

    name = "sample"
    operands = ("logits",)
    optional = ("key", "temperature")
    attributes: ClassVar[dict[str, Any]] = {"method": "greedy"}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        method = attributes["method"]
        require(types[0].rank == 2, f"logits are {types[0]}, not [b, v]", "flatten the batch")
        require(
            method in ("greedy", "categorical"),
            f"unknown method {method!r}",
            "use greedy or categorical",
        )
        wanted = 3 if method == "categorical" else 1
        require(
            len(types) == wanted,
            f"{method} takes {wanted} operands, got {len(types)}",
            "categorical needs key and temperature, greedy neither",
        )
        if method == "categorical":
            self._check_draw(*types)

    @staticmethod
    def _check_draw(logits: TensorType, key: TensorType, temperature: TensorType) -> None:
        fits = key.dtype.startswith("key<") and key.shape == ()
        require(fits, f"key is {key}, not one PRNG key", "pass jax.random.key(seed)")
        fits = temperature.shape == logits.shape[:1] and temperature.is_float
        require(fits, f"temperature is {temperature}, but logits are {logits}", "one per row")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        logits = operands[0].astype(jnp.float32)
        if attributes["method"] == "greedy":
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        scaled = logits / attributes["temperature"][:, None]
        return jax.random.categorical(attributes["key"], scaled, axis=-1).astype(jnp.int32)

    def factors(self, node: Node) -> Factors | None:
        if node.attribute("method") != "greedy":
            return None
        return Factors((("b", f"v{WHOLE}"),), (("b",),))
