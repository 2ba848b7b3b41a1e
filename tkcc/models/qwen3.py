"""Qwen3, dense: grouped-query attention whose queries and keys are normalised per head.

Architecture: "Qwen3 Technical Report", arXiv 2505.09388.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from tkcc.ir import functional as F
from tkcc.models.causal import Layer
from tkcc.models.fields import Fields
from tkcc.models.parts import (
    attention_weights,
    cached_attention,
    frequencies,
    gated_mlp,
    heads,
    mlp_weights,
)
from tkcc.models.rope import Rope, read_rope
from tkcc.models.weights import Weight, norm


@dataclass(frozen=True)
class Qwen3Config:
    """The shape of a dense Qwen3 model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope: Rope
    kinds: tuple[str, ...]


def read_attention(fields: Fields) -> dict[str, Any]:
    """The fields that dense models and mixtures share. Raises ModelError."""
    num_heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", default=num_heads)
    if num_heads % kv_heads:
        fields.refuse(f"num_attention_heads ({num_heads}) is no multiple of {kv_heads} kv heads")
    head_dim = fields.count("head_dim", default=128)
    fields.only("attention_bias", False)
    fields.only("hidden_act", "silu")
    fields.only("use_sliding_window", False)
    fields.without_effect("sliding_window", "max_window_layers")  # without use_sliding_window
    for kind in fields.items("layer_types", str) or ():
        if kind != "full_attention":
            fields.refuse(f"layer_types has {kind!r}; only 'full_attention' is implemented")
    return {
        "vocab_size": fields.count("vocab_size"),
        "hidden_size": fields.count("hidden_size"),
        "num_heads": num_heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": fields.number("rms_norm_eps", default=1e-6),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", False),
        "rope": read_rope(fields, head_dim),
    }


def read_config(fields: Fields) -> Qwen3Config:
    """The config in the fields of a `config.json`. Raises ModelError."""
    return Qwen3Config(
        **read_attention(fields),
        intermediate_size=fields.count("intermediate_size"),
        kinds=("layer",) * fields.count("num_hidden_layers", most=10_000),
    )


class Qwen3Layer(Layer):
    """One decoder layer."""

    @classmethod
    def weights(cls, config: Any, kind: str) -> dict[str, Weight]:
        sizes = (config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim)
        return {
            **attention_weights(*sizes),
            "query_norm": norm(config.head_dim, "self_attn.q_norm.weight"),
            "key_norm": norm(config.head_dim, "self_attn.k_norm.weight"),
            **mlp_weights(config.hidden_size, config.intermediate_size),
        }

    def attention(
        self, h: jax.Array, positions: jax.Array, k_cache: Any, v_cache: Any
    ) -> tuple[jax.Array, Any, Any]:
        q = self._turned(h, "query", positions)
        k = self._turned(h, "key", positions)
        v = heads(F.linear(h, self["value"]), self.config.head_dim)
        scale = self.config.head_dim**-0.5
        joined, k_cache, v_cache = cached_attention(
            q, k, v, positions, k_cache, v_cache, scale=scale
        )
        return F.linear(joined, self["output"]), k_cache, v_cache

    def _turned(self, h: jax.Array, name: str, positions: jax.Array) -> jax.Array:
        """Queries or keys: projected, normalised per head, rotated."""
        projected = heads(F.linear(h, self[name]), self.config.head_dim)
        normed = F.rms_norm(projected, self[f"{name}_norm"], eps=self.config.rms_norm_eps)
        rope = self.config.rope
        turned: jax.Array = F.rope(normed, positions, frequencies(rope), scale=rope.scale)
        return turned

    def mlp(self, h: jax.Array) -> jax.Array:
        return gated_mlp(h, self["gate"], self["up"], self["down"])
