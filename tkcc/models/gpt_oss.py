"""gpt-oss: sliding and full attention in turn with sink logits, and experts with biases.

Architecture: "gpt-oss-120b & gpt-oss-20b Model Card", arXiv 2508.10925.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tkcc.ir import functional as F
from tkcc.models.causal import Layer
from tkcc.models.fields import Fields
from tkcc.models.parts import attention_weights, cached_attention, frequencies, heads, routed_mlp
from tkcc.models.rope import Rope, read_rope
from tkcc.models.weights import Weight, matrix, part, vector

SLIDING, FULL = "sliding", "full"
_KINDS = {"sliding_attention": SLIDING, "full_attention": FULL}


@dataclass(frozen=True)
class GptOssConfig:
    """The shape of a gpt-oss model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of one expert
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    sliding_window: int  # tokens that a query sees, itself among them
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope: Rope
    kinds: tuple[str, ...]


def read_config(fields: Fields) -> GptOssConfig:
    """The config in the fields of a `config.json`. Raises ModelError."""
    fields.only("attention_bias", True)
    fields.only("hidden_act", "silu")
    fields.only("swiglu_alpha", 1.702)
    fields.only("swiglu_limit", 7.0)
    fields.without_effect("initial_context_length")  # the rope's own field says the same
    num_heads, head_dim = fields.count("num_attention_heads"), fields.count("head_dim", default=64)
    kv_heads = fields.count("num_key_value_heads", default=num_heads)
    if num_heads % kv_heads:
        fields.refuse(f"num_attention_heads ({num_heads}) is no multiple of {kv_heads} kv heads")
    experts = fields.count("num_local_experts", "num_experts")
    return GptOssConfig(
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        intermediate_size=fields.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        num_experts=experts,
        num_experts_per_tok=fields.count("num_experts_per_tok", "experts_per_token", most=experts),
        sliding_window=fields.count("sliding_window"),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-5),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        rope=read_rope(fields, head_dim),
        kinds=_kinds(fields),
    )


def _kinds(fields: Fields) -> tuple[str, ...]:
    layers = fields.count("num_hidden_layers", most=10_000)
    given = fields.items("layer_types", str)
    if given is None:
        return tuple(FULL if i % 2 else SLIDING for i in range(layers))
    if len(given) != layers or not set(given) <= set(_KINDS):
        fields.refuse(f"layer_types must be {layers} times one of {', '.join(_KINDS)}")
    return tuple(_KINDS[kind] for kind in given)


class GptOssLayer(Layer):
    """One decoder layer, of kind `sliding` or `full`."""

    @classmethod
    def weights(cls, config: Any, kind: str) -> dict[str, Weight]:
        hidden, experts = config.hidden_size, config.num_experts
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return {
            **attention_weights(hidden, config.num_heads, config.num_kv_heads, config.head_dim),
            "query_bias": vector(query, "self_attn.q_proj.bias"),
            "key_bias": vector(key, "self_attn.k_proj.bias"),
            "value_bias": vector(key, "self_attn.v_proj.bias"),
            "output_bias": vector(hidden, "self_attn.o_proj.bias"),
            "sinks": vector(config.num_heads, "self_attn.sinks"),
            "router": matrix(hidden, experts, "mlp.router.weight"),
            "router_bias": vector(experts, "mlp.router.bias"),
            **_expert_weights(experts, hidden, config.intermediate_size),
        }

    def attention(
        self, h: jax.Array, positions: jax.Array, k_cache: Any, v_cache: Any
    ) -> tuple[jax.Array, Any, Any]:
        rope = self.config.rope
        turn = functools.partial(
            F.rope, positions=positions, inv_freq=frequencies(rope), scale=rope.scale
        )
        q, k, v = (self._projected(h, name) for name in ("query", "key", "value"))
        joined, k_cache, v_cache = cached_attention(
            *(turn(q), turn(k), v, positions, k_cache, v_cache),
            scale=self.config.head_dim**-0.5,
            sinks=self["sinks"],
            window=self.config.sliding_window if self.kind == SLIDING else None,
        )
        return F.linear(joined, self["output"], self["output_bias"]), k_cache, v_cache

    def _projected(self, h: jax.Array, name: str) -> jax.Array:
        return heads(F.linear(h, self[name], self[f"{name}_bias"]), self.config.head_dim)

    def mlp(self, h: jax.Array) -> jax.Array:
        sides = ("gate", "up", "down")
        given: dict[str, Any] = {f"w_{side}": self[f"expert_{side}"] for side in sides}
        given |= {f"{side}_bias": self[f"expert_{side}_bias"] for side in sides}
        experts = functools.partial(F.moe_experts, **given, activation="clamped_swiglu")
        logits = F.linear(h, self["router"], self["router_bias"])
        route = {"k": self.config.num_experts_per_tok, "scoring": "softmax_topk"}
        return routed_mlp(h, logits, experts, **route)


def _expert_weights(experts: int, hidden: int, inner: int) -> dict[str, Weight]:
    """Gate and up stand in turn in one stored tensor [experts, hidden, 2 * inner]."""
    place = "mlp.experts"
    both, bias = (experts, hidden, 2 * inner), (experts, 2 * inner)

    def every_second(first: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda values: values[..., first::2]

    found: dict[str, Weight] = {}
    for first, side in enumerate(("gate", "up")):
        take = every_second(first)
        shapes = (experts, hidden, inner), (experts, inner)
        found[f"expert_{side}"] = part(shapes[0], f"{place}.gate_up_proj", both, take)
        found[f"expert_{side}_bias"] = part(shapes[1], f"{place}.gate_up_proj_bias", bias, take)
    down, down_bias = (experts, inner, hidden), (experts, hidden)
    found["expert_down"] = Weight(down, f"{place}.down_proj", down)
    found["expert_down_bias"] = Weight(down_bias, f"{place}.down_proj_bias", down_bias)
    return found
