"""What decoder layers of several families are made of.

Shapes: B batch, T tokens, S cache length, M hidden size, H heads, KH key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tkcc.ir import functional as F
from tkcc.models.weights import Weight, expert_matrices, matrix, norm


def heads(x: jax.Array, size: int) -> jax.Array:
    """[B, T, H * size] -> [B, T, H, size]."""
    return x.reshape(*x.shape[:2], -1, size)


def cached_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    k_cache: jax.Array,
    v_cache: jax.Array,
    *,
    scale: float,
    sinks: jax.Array | None = None,
    window: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Write k and v into the caches, then attend to all of them.

    q [B, T, H, D], k and v [B, T, KH, D], caches [B, S, KH, D] -> [B, T, H * D] and the caches.
    """
    k_cache = F.update_cache(k_cache, k, positions[:, 0])
    v_cache = F.update_cache(v_cache, v, positions[:, 0])
    options: dict[str, Any] = {"scale": scale, "sinks": sinks, "window": window}
    attended = F.attention(q, k_cache, v_cache, positions=positions, **options)
    return attended.reshape(*attended.shape[:2], -1), k_cache, v_cache


def gated_mlp(h: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """silu(h @ gate) * (h @ up) @ down."""
    out: jax.Array = F.linear(F.swiglu(F.linear(h, gate), F.linear(h, up)), down)
    return out


def routed_mlp(h: jax.Array, logits: jax.Array, experts: Any, **route: Any) -> jax.Array:
    """The chosen experts' MLPs over h [B, T, M], routed by logits [B, T, experts].

    `experts(x, weights, ids)` runs them over x [B * T, M]; `route` is what `F.moe_route` takes.
    """
    weights, ids = F.moe_route(logits.reshape(-1, logits.shape[-1]), **route)
    out: jax.Array = experts(h.reshape(-1, h.shape[-1]), weights, ids)
    return out.reshape(h.shape)


def attention_weights(
    hidden: int, num_heads: int, num_kv_heads: int, size: int
) -> dict[str, Weight]:
    """Both norms of a layer and grouped-query attention without biases."""
    query, key = num_heads * size, num_kv_heads * size
    return {
        "attention_norm": norm(hidden, "input_layernorm.weight"),
        "query": matrix(hidden, query, "self_attn.q_proj.weight"),
        "key": matrix(hidden, key, "self_attn.k_proj.weight"),
        "value": matrix(hidden, key, "self_attn.v_proj.weight"),
        "output": matrix(query, hidden, "self_attn.o_proj.weight"),
        "mlp_norm": norm(hidden, "post_attention_layernorm.weight"),
    }


def mlp_weights(hidden: int, inner: int, place: str = "mlp", prefix: str = "") -> dict[str, Weight]:
    """A gated MLP of `inner` channels."""
    return {
        f"{prefix}gate": matrix(hidden, inner, f"{place}.gate_proj.weight"),
        f"{prefix}up": matrix(hidden, inner, f"{place}.up_proj.weight"),
        f"{prefix}down": matrix(inner, hidden, f"{place}.down_proj.weight"),
    }


def expert_weights(experts: int, hidden: int, inner: int) -> dict[str, Weight]:
    """Gated MLPs stored one by one, as `expert_gate`, `expert_up` and `expert_down`."""
    place = "mlp.experts.{e}"
    return {
        "expert_gate": expert_matrices(experts, hidden, inner, f"{place}.gate_proj.weight"),
        "expert_up": expert_matrices(experts, hidden, inner, f"{place}.up_proj.weight"),
        "expert_down": expert_matrices(experts, inner, hidden, f"{place}.down_proj.weight"),
    }


def frequencies(rope: Any) -> jax.Array:
    """The rope's frequencies as a constant of the program."""
    return jnp.asarray(rope.frequencies())
