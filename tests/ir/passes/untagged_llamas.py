"""Llama-like models in plain JAX without any tags, in two styles of writing.

`einsum_*`: [b, t, h, d] einsums over 3-d weights, split rotary halves, grouped queries, masks by
position with `where`, layers as a Python loop, caches as a list.
`torch_*`: a port of the usual PyTorch code: [b, h, t, d], weights stored [out, in], rotate_half,
repeated key heads, additive masks, weight times the rounded norm, one `lax.scan` over layers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

VOCABULARY, WIDTH, HEADS, GROUPS, HEAD, HIDDEN, LAYERS, LENGTH = 50, 32, 4, 2, 8, 48, 2, 12


# --- einsum style ---------------------------------------------------------------------------------


def einsum_parameters(dtype: Any, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)

    def matrix(*shape: int) -> jax.Array:
        return jnp.asarray(0.3 * generator.normal(size=shape), dtype)

    layers = [
        {
            "attention_norm": 1 + matrix(WIDTH),
            "q": matrix(WIDTH, HEADS, HEAD),
            "k": matrix(WIDTH, GROUPS, HEAD),
            "v": matrix(WIDTH, GROUPS, HEAD),
            "o": matrix(HEADS, HEAD, WIDTH),
            "mlp_norm": 1 + matrix(WIDTH),
            "gate": matrix(WIDTH, HIDDEN),
            "up": matrix(WIDTH, HIDDEN),
            "down": matrix(HIDDEN, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {
        "embedding": matrix(VOCABULARY, WIDTH),
        "layers": layers,
        "norm": 1 + matrix(WIDTH),
        "head": matrix(WIDTH, VOCABULARY),
    }


def einsum_caches(dtype: Any, batch: int) -> list[tuple[jax.Array, jax.Array]]:
    shape = (batch, LENGTH, GROUPS, HEAD)
    return [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(LAYERS)]


def einsum_norm(x: Any, weight: Any) -> Any:
    h = x.astype(jnp.float32)
    h = h * jax.lax.rsqrt(jnp.mean(jnp.square(h), axis=-1, keepdims=True) + 1e-5)
    return (h * weight.astype(jnp.float32)).astype(x.dtype)


def einsum_rope(x: Any, positions: Any) -> Any:
    frequencies = 1.0 / (10000.0 ** (jnp.arange(0, HEAD, 2) / HEAD))
    angles = jnp.einsum("bt,f->btf", positions, frequencies)[:, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def einsum_attention(q: Any, k: Any, v: Any, positions: Any) -> Any:
    b, t = q.shape[:2]
    q = q.reshape(b, t, GROUPS, HEADS // GROUPS, HEAD)
    scores = jnp.einsum("btgrd,bsgd->bgrts", q, k, preferred_element_type=jnp.float32)
    scores = scores * HEAD**-0.5
    seen = jnp.arange(k.shape[1])[None, None, :] <= positions[:, :, None]
    scores = jnp.where(seen[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bgrts,bsgd->btgrd", weights, v).reshape(b, t, HEADS, HEAD)


def einsum_layer(p: Any, x: Any, positions: Any, cache: Any) -> Any:
    h = einsum_norm(x, p["attention_norm"])
    q = einsum_rope(jnp.einsum("btd,dhk->bthk", h, p["q"]), positions)
    k = einsum_rope(jnp.einsum("btd,dhk->bthk", h, p["k"]), positions)
    v = jnp.einsum("btd,dhk->bthk", h, p["v"])
    write = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice(row, new, (at, 0, 0)))
    cache = write(cache[0], k, positions[:, 0]), write(cache[1], v, positions[:, 0])
    x = x + jnp.einsum("bthk,hkd->btd", einsum_attention(q, *cache, positions), p["o"])
    h = einsum_norm(x, p["mlp_norm"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], cache


def einsum_step(p: Any, tokens: Any, positions: Any, caches: Any) -> Any:
    """tokens, positions i32[b, t] -> logits [b, t, v] and the new caches."""
    x = p["embedding"][tokens]
    new = []
    for layer, cache in zip(p["layers"], caches, strict=True):
        x, cache = einsum_layer(layer, x, positions, cache)
        new.append(cache)
    return einsum_norm(x, p["norm"]) @ p["head"], new


# --- port of PyTorch code -------------------------------------------------------------------------


def torch_parameters(dtype: Any, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)

    def matrix(*shape: int) -> jax.Array:
        return jnp.asarray(0.3 * generator.normal(size=shape), dtype)

    return {
        "embed_tokens": matrix(VOCABULARY, WIDTH),
        "layers": {
            "input_layernorm": 1 + matrix(LAYERS, WIDTH),
            "q_proj": matrix(LAYERS, HEADS * HEAD, WIDTH),
            "k_proj": matrix(LAYERS, GROUPS * HEAD, WIDTH),
            "v_proj": matrix(LAYERS, GROUPS * HEAD, WIDTH),
            "o_proj": matrix(LAYERS, WIDTH, HEADS * HEAD),
            "post_attention_layernorm": 1 + matrix(LAYERS, WIDTH),
            "gate_proj": matrix(LAYERS, HIDDEN, WIDTH),
            "up_proj": matrix(LAYERS, HIDDEN, WIDTH),
            "down_proj": matrix(LAYERS, WIDTH, HIDDEN),
        },
        "norm": 1 + matrix(WIDTH),
    }


def torch_caches(dtype: Any, batch: int) -> tuple[jax.Array, jax.Array]:
    shape = (LAYERS, batch, GROUPS, LENGTH, HEAD)
    return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)


def torch_norm(x: Any, weight: Any) -> Any:
    hidden = x.astype(jnp.float32)
    variance = jnp.mean(hidden**2, axis=-1, keepdims=True)
    hidden = hidden * jax.lax.rsqrt(variance + 1e-6)
    return weight * hidden.astype(x.dtype)


def torch_linear(x: Any, weight: Any) -> Any:
    return x @ weight.T


def rotate_half(x: Any) -> Any:
    half = x.shape[-1] // 2
    return jnp.concatenate((-x[..., half:], x[..., :half]), axis=-1)


def torch_rotary(positions: Any, dtype: Any) -> Any:
    frequencies = 1.0 / (10000.0 ** (jnp.arange(0, HEAD, 2, dtype=jnp.float32) / HEAD))
    expanded = jnp.broadcast_to(frequencies[None, :, None], (positions.shape[0], HEAD // 2, 1))
    angles = jnp.swapaxes(expanded @ positions[:, None, :].astype(jnp.float32), 1, 2)
    embedded = jnp.concatenate((angles, angles), axis=-1)
    return jnp.cos(embedded).astype(dtype), jnp.sin(embedded).astype(dtype)


def repeat_kv(x: Any, times: int) -> Any:
    b, g, s, d = x.shape
    wide = jnp.broadcast_to(x[:, :, None, :, :], (b, g, times, s, d))
    return wide.reshape(b, g * times, s, d)


def torch_attention(p: Any, x: Any, rotary: Any, mask: Any, start: Any, cache: Any) -> Any:
    b, t, _ = x.shape
    q = torch_linear(x, p["q_proj"]).reshape(b, t, HEADS, HEAD).transpose(0, 2, 1, 3)
    k = torch_linear(x, p["k_proj"]).reshape(b, t, GROUPS, HEAD).transpose(0, 2, 1, 3)
    v = torch_linear(x, p["v_proj"]).reshape(b, t, GROUPS, HEAD).transpose(0, 2, 1, 3)
    cos, sin = rotary[0][:, None], rotary[1][:, None]
    q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
    keys = jax.lax.dynamic_update_slice(cache[0], k, (0, 0, start, 0))
    values = jax.lax.dynamic_update_slice(cache[1], v, (0, 0, start, 0))
    wide_keys, wide_values = (repeat_kv(c, HEADS // GROUPS) for c in (keys, values))
    weights = q @ wide_keys.transpose(0, 1, 3, 2) / np.sqrt(HEAD) + mask
    weights = jax.nn.softmax(weights.astype(jnp.float32), axis=-1).astype(q.dtype)
    out = (weights @ wide_values).transpose(0, 2, 1, 3).reshape(b, t, HEADS * HEAD)
    return torch_linear(out, p["o_proj"]), (keys, values)


def torch_step(p: Any, tokens: Any, start: Any, caches: Any) -> Any:
    """tokens i32[b, t] at positions start, start + 1, ... -> logits [b, v] of the last token."""
    b, t = tokens.shape
    positions = jnp.broadcast_to(start + jnp.arange(t), (b, t))
    x = jnp.take(p["embed_tokens"], tokens, axis=0)
    rotary = torch_rotary(positions, x.dtype)
    seen = jnp.arange(LENGTH)[None, None, None, :] <= positions[:, None, :, None]
    mask = jnp.where(seen, 0.0, jnp.finfo(x.dtype).min).astype(x.dtype)

    def layer(x: Any, inputs: Any) -> Any:
        q, cache = inputs
        h = torch_norm(x, q["input_layernorm"])
        attended, cache = torch_attention(q, h, rotary, mask, start, cache)
        x = x + attended
        h = torch_norm(x, q["post_attention_layernorm"])
        gated = jax.nn.silu(torch_linear(h, q["gate_proj"])) * torch_linear(h, q["up_proj"])
        return x + torch_linear(gated, q["down_proj"]), cache

    x, caches = jax.lax.scan(layer, x, (p["layers"], caches))
    last = torch_norm(x, p["norm"])[:, -1]
    return torch_linear(last, p["embed_tokens"]).astype(jnp.float32), caches
