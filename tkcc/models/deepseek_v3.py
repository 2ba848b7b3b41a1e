"""DeepSeek-V3: latent attention (MLA), first dense layers, then routed and shared experts.

Architecture: "DeepSeek-V3 Technical Report", arXiv 2412.19437, sections 2.1.1 and 2.1.2. The cache
holds one vector per token, shared by all heads: the normalised latent (`kv_lora_rank` channels)
and the rotated key (`qk_rope_head_dim`). Attention runs over it as over one key head: the
matrices that expand the latent into keys and values act on queries and results instead
("absorbed", DeepSeek-V2, arXiv 2405.04434, section 2.1.2). That is the cheap way while decoding;
for long prompts alone, expanding would need fewer operations.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tkcc.ir import functional as F
from tkcc.models.causal import CacheDims, Layer
from tkcc.models.fields import Fields
from tkcc.models.parts import (
    expert_weights,
    frequencies,
    gated_mlp,
    heads,
    mlp_weights,
    routed_mlp,
)
from tkcc.models.rope import Rope, YarnScaling, read_rope, yarn_magnitude
from tkcc.models.weights import Weight, matrix, norm, part, vector

DENSE, MIXTURE = "dense", "moe"
_LATENT_EPS = 1e-6  # of the norms inside attention, whatever rms_norm_eps is


@dataclass(frozen=True)
class DeepseekV3Config:
    """The shape of a DeepSeek-V3 model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of dense layers
    moe_intermediate_size: int  # of one expert
    num_heads: int
    q_lora_rank: int | None  # None projects queries in one step
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    num_experts: int
    num_shared_experts: int
    num_experts_per_tok: int
    num_groups: int
    top_groups: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope: Rope
    rope_interleave: bool
    num_draft_layers: int  # further layers in the checkpoint, which this model does not have
    kinds: tuple[str, ...]

    @property
    def cached_channels(self) -> int:
        """Of each token, in each layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def attention_scale(self) -> float:
        """1 / sqrt(query channels), times YaRN's magnitude for `mscale_all_dim`, squared."""
        scale = float((self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5)
        yarn = self.rope.scaling
        if not isinstance(yarn, YarnScaling) or not yarn.mscale_all_dim:
            return scale
        return scale * yarn_magnitude(yarn.factor, yarn.mscale_all_dim) ** 2


def read_config(fields: Fields) -> DeepseekV3Config:
    """The config in the fields of a `config.json`. Raises ModelError."""
    num_heads = fields.count("num_attention_heads")
    turned, plain = fields.count("qk_rope_head_dim"), fields.count("qk_nope_head_dim")
    _refuse_what_others_have(fields, num_heads, turned, plain)
    layers = fields.count("num_hidden_layers", most=10_000)
    dense = fields.count("first_k_dense_replace", default=0, least=0, most=layers)
    return DeepseekV3Config(
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        intermediate_size=fields.count("intermediate_size"),
        moe_intermediate_size=fields.count("moe_intermediate_size"),
        num_heads=num_heads,
        q_lora_rank=fields.count("q_lora_rank") if fields.given("q_lora_rank") else None,
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_head_dim=plain,
        qk_rope_head_dim=turned,
        v_head_dim=fields.count("v_head_dim"),
        **_read_routing(fields),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        rope=read_rope(fields, turned),
        rope_interleave=fields.flag("rope_interleave", True),
        num_draft_layers=fields.count("num_nextn_predict_layers", default=0, least=0),
        kinds=(DENSE,) * dense + (MIXTURE,) * (layers - dense),
    )


def _refuse_what_others_have(fields: Fields, num_heads: int, turned: int, plain: int) -> None:
    fields.only("attention_bias", False)
    fields.only("hidden_act", "silu")
    fields.only("scoring_func", "sigmoid")
    fields.only("topk_method", "noaux_tc")
    fields.only("moe_layer_freq", 1)
    fields.only("num_key_value_heads", num_heads, None)
    fields.only("head_dim", turned, None)
    fields.only("qk_head_dim", turned + plain, None)
    fields.without_effect("ep_size")


def _read_routing(fields: Fields) -> dict[str, Any]:
    experts, groups = fields.count("n_routed_experts", "num_local_experts"), fields.count("n_group")
    if experts % groups:
        fields.refuse(f"n_routed_experts ({experts}) is no multiple of n_group ({groups})")
    top_groups = fields.count("topk_group", most=groups)
    return {
        "num_experts": experts,
        "num_shared_experts": fields.count("n_shared_experts"),
        "num_experts_per_tok": fields.count(
            "num_experts_per_tok", most=experts // groups * top_groups
        ),
        "num_groups": groups,
        "top_groups": top_groups,
        "norm_topk_prob": fields.flag("norm_topk_prob", True),
        "routed_scaling_factor": fields.number("routed_scaling_factor", default=1.0),
    }


class DeepseekV3Layer(Layer):
    """One decoder layer, of kind `dense` or `moe`."""

    @classmethod
    def weights(cls, config: Any, kind: str) -> dict[str, Weight]:
        hidden, experts = config.hidden_size, config.num_experts
        found = {**_attention_weights(config), **_latent_weights(config)}
        if kind == DENSE:
            return {**found, **mlp_weights(hidden, config.intermediate_size)}
        inner = config.moe_intermediate_size
        shared = inner * config.num_shared_experts
        return {
            **found,
            "router": matrix(hidden, experts, "mlp.gate.weight", wide=True),
            "router_bias": vector(experts, "mlp.gate.e_score_correction_bias", wide=True),
            **expert_weights(experts, hidden, inner),
            **mlp_weights(hidden, shared, "mlp.shared_experts"),
        }

    @classmethod
    def cache_dims(cls, config: Any, kind: str) -> CacheDims:
        return (1, config.cached_channels), None

    def attention(
        self, h: jax.Array, positions: jax.Array, k_cache: Any, v_cache: Any
    ) -> tuple[jax.Array, Any, Any]:
        config = self.config
        plain, turned = jnp.split(self._queries(h), [config.qk_nope_head_dim], axis=-1)
        in_latent = _per_head("bthn,hnr->bthr", plain, self["key_up"])
        q = jnp.concatenate([in_latent, self._turn(turned, positions)], axis=-1)
        k_cache = F.update_cache(k_cache, self._latent(h, positions), positions[:, 0])
        # The values are the latent channels of the keys. Reading the whole cache twice and
        # dropping the rest of the result spares a copy of the cache in every layer and step.
        options = {"positions": positions, "scale": config.attention_scale}
        attended = F.attention(q, k_cache, k_cache, **options)[..., : config.kv_lora_rank]
        values = _per_head("bthr,hrv->bthv", attended, self["value_up"])
        joined = values.reshape(*values.shape[:2], -1)
        return F.linear(joined, self["output"]), k_cache, v_cache

    def _queries(self, h: jax.Array) -> jax.Array:
        """[B, T, H, qk_nope_head_dim + qk_rope_head_dim]."""
        if self.config.q_lora_rank is not None:
            h = F.rms_norm(F.linear(h, self["query_down"]), self["query_norm"], eps=_LATENT_EPS)
        size = self.config.qk_nope_head_dim + self.config.qk_rope_head_dim
        return heads(F.linear(h, self["query"]), size)

    def _latent(self, h: jax.Array, positions: jax.Array) -> jax.Array:
        """What the cache holds of each token: [B, T, 1, kv_lora_rank + qk_rope_head_dim]."""
        both = heads(F.linear(h, self["latent_down"]), self.config.cached_channels)
        latent, turned = jnp.split(both, [self.config.kv_lora_rank], axis=-1)
        latent = F.rms_norm(latent, self["latent_norm"], eps=_LATENT_EPS)
        return jnp.concatenate([latent, self._turn(turned, positions)], axis=-1)

    def _turn(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        rope, interleaved = self.config.rope, self.config.rope_interleave
        turned: jax.Array = F.rope(x, positions, frequencies(rope), interleaved, rope.scale)
        return turned

    def mlp(self, h: jax.Array) -> jax.Array:
        always = gated_mlp(h, self["gate"], self["up"], self["down"])
        return always if self.kind == DENSE else self._routed(h) + always

    def _routed(self, h: jax.Array) -> jax.Array:
        config = self.config
        matrices: dict[str, Any] = {
            f"w_{side}": self[f"expert_{side}"] for side in ("gate", "up", "down")
        }
        route = {
            "k": config.num_experts_per_tok,
            "bias": self["router_bias"],
            "scoring": "sigmoid",
            "normalize": config.norm_topk_prob,
            "scale": config.routed_scaling_factor,
            "groups": config.num_groups,
            "top_groups": config.top_groups,
        }
        logits = F.linear(h.astype(jnp.float32), self["router"])
        return routed_mlp(h, logits, functools.partial(F.moe_experts, **matrices), **route)


def _per_head(subscripts: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """A product for each head, accumulated in float32, in x's dtype.

    The operands are widened first: XLA's CPU compiler refuses batched bfloat16 products with a
    float32 result, and with a bfloat16 one some of its versions accumulate in bfloat16.
    """
    wide = jnp.einsum(subscripts, x.astype(jnp.float32), w.astype(jnp.float32))
    return wide.astype(x.dtype)


def _attention_weights(config: DeepseekV3Config) -> dict[str, Weight]:
    hidden, rank = config.hidden_size, config.q_lora_rank
    query = config.num_heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
    found = {
        "attention_norm": norm(hidden, "input_layernorm.weight"),
        "output": matrix(config.num_heads * config.v_head_dim, hidden, "self_attn.o_proj.weight"),
        "mlp_norm": norm(hidden, "post_attention_layernorm.weight"),
    }
    if rank is None:
        return {**found, "query": matrix(hidden, query, "self_attn.q_proj.weight")}
    return {
        **found,
        "query_down": matrix(hidden, rank, "self_attn.q_a_proj.weight"),
        "query_norm": norm(rank, "self_attn.q_a_layernorm.weight"),
        "query": matrix(rank, query, "self_attn.q_b_proj.weight"),
    }


def _latent_weights(config: DeepseekV3Config) -> dict[str, Weight]:
    """The latent's projection, and kv_b_proj cut into the keys' and the values' part by head."""
    rank, plain, value = config.kv_lora_rank, config.qk_nope_head_dim, config.v_head_dim
    stored = (config.num_heads * (plain + value), rank)

    def by_head(values: np.ndarray) -> np.ndarray:
        return values.reshape(config.num_heads, plain + value, rank)

    source = "self_attn.kv_b_proj.weight"
    down, up = config.cached_channels, (config.num_heads, plain, rank)
    back = (config.num_heads, rank, value)
    return {
        "latent_down": matrix(config.hidden_size, down, "self_attn.kv_a_proj_with_mqa.weight"),
        "latent_norm": norm(rank, "self_attn.kv_a_layernorm.weight"),
        "key_up": part(up, source, stored, lambda w: by_head(w)[:, :plain]),
        "value_up": part(back, source, stored, lambda w: by_head(w)[:, plain:].swapaxes(1, 2)),
    }
