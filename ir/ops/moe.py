"""Mixture of experts: routing and the routed experts' MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from tkcc.ir.factors import WHOLE, Factors
from tkcc.ir.graph import Node
from tkcc.ir.op import REQUIRED, Attributes, Op, register, require
from tkcc.ir.ops.nn import ACTIVATIONS, require_activation
from tkcc.ir.types import TensorType

SCORINGS = ("softmax", "sigmoid", "softmax_topk")


@register
class MoeRoute(Op):
    """Choose `k` experts per token: logits [n, e] -> (weights [n, k] f32, ids [n, k] i32).

    `scoring`: `softmax` over all experts, `sigmoid` of each, or `softmax_topk` (softmax over the
    chosen logits only). `bias` [e] is added for choosing, not for weighing (DeepSeek-V3). With
    `groups` > 1 only the best `top_groups` groups of experts stay (a group's score is the sum of
    its two best). `normalize` divides the weights by their sum; `scale` multiplies them.
    """

    name = "moe_route"
    operands = ("logits",)
    optional = ("bias",)
    attributes: ClassVar[dict[str, Any]] = {
        "k": REQUIRED,
        "scoring": "softmax",
        "normalize": True,
        "scale": 1.0,
        "groups": 1,
        "top_groups": 1,
    }

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        logits = types[0]
        require(logits.rank == 2, f"logits are {logits}, not [tokens, experts]", "flatten tokens")
        experts, groups, top = (logits.shape[1], attributes["groups"], attributes["top_groups"])
        require(
            attributes["scoring"] in SCORINGS,
            f"unknown scoring {attributes['scoring']!r}",
            f"use one of {SCORINGS}",
        )
        require(
            groups >= 1 and experts % groups == 0 and 1 <= top <= groups,
            f"{experts} experts, groups={groups}, top_groups={top}",
            "groups divide the experts, and at most all groups stay",
        )
        left = experts // groups * top if groups > 1 else experts
        k = attributes["k"]
        require(0 < k <= left, f"k={k} of {left} experts", "choose 1 or more of them")
        for bias in types[1:]:
            require(bias.shape == (experts,), f"bias is {bias}, not [{experts}]", "one per expert")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        logits = operands[0].astype(jnp.float32)
        scores = self._scores(logits, attributes["scoring"])
        bias = attributes.get("bias")
        choice = scores if bias is None else scores + bias.astype(jnp.float32)
        if attributes["groups"] > 1:
            choice = self._best_groups(choice, attributes["groups"], attributes["top_groups"])
        _, ids = lax.top_k(choice, attributes["k"])
        weights = jnp.take_along_axis(scores, ids, axis=1)
        if attributes["scoring"] == "softmax_topk":
            weights = jax.nn.softmax(weights, axis=-1)
        elif attributes["normalize"]:
            weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
        return weights * attributes["scale"], ids.astype(jnp.int32)

    @staticmethod
    def _scores(logits: Any, scoring: str) -> Any:
        if scoring == "softmax":
            return jax.nn.softmax(logits, axis=-1)
        return jax.nn.sigmoid(logits) if scoring == "sigmoid" else logits

    @staticmethod
    def _best_groups(choice: Any, groups: int, top_groups: int) -> Any:
        n, e = choice.shape
        split = choice.reshape(n, groups, e // groups)
        best = jnp.sum(lax.top_k(split, min(2, e // groups))[0], axis=-1)
        _, kept = lax.top_k(best, top_groups)
        keep = jnp.any(kept[:, :, None] == jnp.arange(groups), axis=1)
        return jnp.where(keep[:, :, None], split, -jnp.inf).reshape(n, e)

    def factors(self, node: Node) -> Factors:
        bias = ((f"e{WHOLE}",),) if node.keys else ()
        out = ("n", f"k{WHOLE}")
        return Factors((("n", f"e{WHOLE}"), *bias), (out, out))

    def flops(self, node: Node) -> int:
        return 6 * node.operands[0].type.size


@register
class MoeExperts(Op):
    """Routed gated MLPs: sum over the chosen experts of weight * down(act(gate(x)) * up(x)).

    x [n, d], weights [n, k] f32, ids [n, k] i32, w_gate and w_up [e, d, f], w_down [e, f, d] ->
    [n, d] in x's dtype. Every expert is applied to every token and masked, so cost is counted for
    the chosen ones only: backends are expected to group tokens by expert.
    """

    name = "moe_experts"
    operands = ("x", "weights", "ids", "w_gate", "w_up", "w_down")
    attributes: ClassVar[dict[str, Any]] = {"activation": "silu"}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        x, weights, ids, gate, up, down = types
        require_activation(attributes["activation"])
        require(
            x.rank == 2 and weights.rank == 2 and weights.shape == ids.shape,
            f"x is {x}, weights are {weights}, ids are {ids}",
            "x is [n, d], weights and ids are [n, k]",
        )
        fits = weights.shape[0] == x.shape[0]
        require(fits, f"weights are {weights}, but x is {x}", "one row per token")
        require(ids.dtype[0] in "iu", f"ids are {ids}, not integers", "convert them to i32")
        require(gate == up and gate.rank == 3, f"w_gate is {gate}, but w_up is {up}", "equal types")
        e, d, f = gate.shape
        fits = x.shape[1] == d and down.shape == (e, f, d)
        require(fits, f"x is {x}, w_gate {gate}, w_down {down}", f"w_down is [{e}, {f}, {d}]")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, weights, ids, w_gate, w_up, w_down = operands
        act = ACTIVATIONS[attributes["activation"]]
        experts = w_gate.shape[0]
        hit = ids[:, :, None] == jnp.arange(experts)
        share = jnp.sum(jnp.where(hit, weights[:, :, None], 0.0), axis=1)  # [n, e]

        def one(total: Any, expert: Any) -> Any:
            gate, up, down, part = expert
            hidden = act(_matmul(x, gate)) * _matmul(x, up)
            return total + _matmul(hidden, down).astype(jnp.float32) * part[:, None], None

        zero = jnp.zeros(x.shape, jnp.float32)
        total, _ = lax.scan(one, zero, (w_gate, w_up, w_down, share.T))
        return total.astype(x.dtype)

    def factors(self, node: Node) -> Factors:
        """Tokens, the hidden width (partial sums) and experts (partial sums) may be split.

        A device with the experts from number `first` on reads `ids - first`: ids outside its
        experts add nothing.
        """
        k, d, o = f"k{WHOLE}", f"d{WHOLE}", f"o{WHOLE}"
        up = ("e", d, "f")
        return Factors((("n", d), ("n", k), ("n", k), up, up, ("e", "f", o)), (("n", o),))

    def flops(self, node: Node) -> int:
        tokens, chosen = node.operands[1].type.shape
        _, d, f = node.operands[3].type.shape
        return tokens * chosen * 6 * d * f


def _matmul(x: Any, w: Any) -> Any:
    return jnp.matmul(x, w, preferred_element_type=jnp.float32).astype(x.dtype)
