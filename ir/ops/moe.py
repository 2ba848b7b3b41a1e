"""Mixture of experts: routing and the routed experts' MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from tkcc.ir.factors import WHOLE, Factors
from tkcc.ir.graph import Function, Node
from tkcc.ir.op import REQUIRED, Attributes, Op, register, require
from tkcc.ir.ops.nn import ACTIVATIONS
from tkcc.ir.types import TensorType

SCORINGS = ("softmax", "sigmoid", "softmax_topk")
CLAMPED_SWIGLU = "clamped_swiglu"
_CLAMP, _STEEPNESS = 7.0, 1.702  # gpt-oss: swiglu_limit, swiglu_alpha


def _gated(kind: str, gate: Any, up: Any) -> Any:
    """act(gate) * up; `clamped_swiglu` is gpt-oss's unit (see `MoeExperts`)."""
    if kind != CLAMPED_SWIGLU:
        return ACTIVATIONS[kind](gate) * up
    gate, up = jnp.minimum(gate, _CLAMP), jnp.clip(up, -_CLAMP, _CLAMP)
    return gate * jax.nn.sigmoid(_STEEPNESS * gate) * (up + 1)


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

    Optional gate_bias and up_bias [e, f] and down_bias [e, d] are added to the three products.
    Besides the activations, `clamped_swiglu` gates as gpt-oss does: g * sigmoid(1.702 g) * (u + 1)
    with g = min(gate, 7) and u = up cut to [-7, 7].
    """

    name = "moe_experts"
    operands = ("x", "weights", "ids", "w_gate", "w_up", "w_down")
    optional = ("gate_bias", "up_bias", "down_bias")
    attributes: ClassVar[dict[str, Any]] = {"activation": "silu"}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        x, weights, ids, gate, up, down = types[:6]
        known = [*ACTIVATIONS, CLAMPED_SWIGLU]
        kind = attributes["activation"]
        require(kind in known, f"unknown activation {kind!r}", f"use one of {known}")
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

    def infer(
        self,
        types: Sequence[TensorType],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: tuple[Function, ...],
    ) -> tuple[TensorType, ...]:
        e, d, f = types[3].shape
        for key, bias in zip(keys, types[6:], strict=True):
            wanted = (e, d) if key == "down_bias" else (e, f)
            require(bias.shape == wanted, f"{key} is {bias}, not {list(wanted)}", "one per expert")
        return super().infer(types, keys, attributes, regions)

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        x, weights, ids, *matrices = operands
        experts = matrices[0].shape[0]
        biases = [attributes.get(key) for key in self.optional]
        hit = ids[:, :, None] == jnp.arange(experts)
        share = jnp.sum(jnp.where(hit, weights[:, :, None], 0.0), axis=1)  # [n, e]

        def one(total: Any, expert: Any) -> Any:
            (gate, up, down), (gate_bias, up_bias, down_bias), part = expert
            sides = _affine(x, gate, gate_bias), _affine(x, up, up_bias)
            hidden = _gated(attributes["activation"], *sides)
            out = _affine(hidden, down, down_bias)
            return total + out.astype(jnp.float32) * part[:, None], None

        zero = jnp.zeros(x.shape, jnp.float32)
        total, _ = lax.scan(one, zero, (tuple(matrices), biases, share.T))
        return total.astype(x.dtype)

    def factors(self, node: Node) -> Factors:
        """Tokens, the hidden width (partial sums) and experts (partial sums) may be split.

        A device with the experts from number `first` on reads `ids - first`: ids outside its
        experts add nothing. With down_bias, which only one device may add, the width stays whole.
        """
        k, d, o = f"k{WHOLE}", f"d{WHOLE}", f"o{WHOLE}"
        f = f"f{WHOLE}" if "down_bias" in node.keys else "f"
        up = ("e", d, f)
        bias = [("e", o if key == "down_bias" else f) for key in node.keys]
        routing = (("n", d), ("n", k), ("n", k))
        return Factors((*routing, up, up, ("e", f, o), *bias), (("n", o),))

    def flops(self, node: Node) -> int:
        tokens, chosen = node.operands[1].type.shape
        _, d, f = node.operands[3].type.shape
        return tokens * chosen * 6 * d * f


def _affine(x: Any, w: Any, bias: Any) -> Any:
    """x @ w accumulated in float32, rounded to x's dtype, plus the bias if there is one."""
    y = jnp.matmul(x, w, preferred_element_type=jnp.float32).astype(x.dtype)
    return y if bias is None else y + bias.astype(x.dtype)
