"""A Llama-like model in plain JAX, without any tag: what a user brings. Scanned or unrolled."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Arrays = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    layers: int
    width: int = 512
    hidden: int = 1536
    heads: int = 8
    kv_heads: int = 8
    vocabulary: int = 8192
    context: int = 512

    @property
    def head(self) -> int:
        return self.width // self.heads


def layer_shapes(s: Shape) -> dict[str, tuple[int, ...]]:
    """Weights of one layer, stored [in, out]."""
    kv = s.kv_heads * s.head
    return {
        "norm1": (s.width,),
        "q": (s.width, s.width),
        "k": (s.width, kv),
        "v": (s.width, kv),
        "o": (s.width, s.width),
        "norm2": (s.width,),
        "gate": (s.width, s.hidden),
        "up": (s.width, s.hidden),
        "down": (s.hidden, s.width),
    }


def parameters(s: Shape, *, stacked: bool, abstract: bool = False) -> Arrays:
    """Random (or abstract) weights; layers stacked, or a list of layers."""
    generator = np.random.default_rng(0)

    def make(*shape: int) -> Any:
        if abstract:
            return jax.ShapeDtypeStruct(shape, jnp.float32)
        return jnp.asarray(generator.standard_normal(shape, np.float32) * 0.02)

    shapes = layer_shapes(s)
    if stacked:
        layers: Any = {k: make(s.layers, *v) for k, v in shapes.items()}
    else:
        layers = [{k: make(*v) for k, v in shapes.items()} for _ in range(s.layers)]
    return {"embedding": make(s.vocabulary, s.width), "layers": layers, "norm": make(s.width)}


def caches(s: Shape, batch: int, *, stacked: bool, abstract: bool = False) -> Any:
    """Zeroed (or abstract) caches: two arrays [layers, ...], or a list of pairs."""
    shape = (batch, s.context, s.kv_heads, s.head)

    def make(*lead: int) -> Any:
        full = (*lead, *shape)
        return jax.ShapeDtypeStruct(full, jnp.float32) if abstract else jnp.zeros(full)

    if stacked:
        return make(s.layers), make(s.layers)
    return [(make(), make()) for _ in range(s.layers)]


def rms_norm(x: Any, w: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * w


def rotate(x: Any, positions: Any) -> Any:
    half = x.shape[-1] // 2
    inv_freq = 1.0 / 10000.0 ** (jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None].astype(jnp.float32) * inv_freq
    cos, sin = jnp.cos(angles)[:, :, None, :], jnp.sin(angles)[:, :, None, :]
    x1, x2 = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


def attend(s: Shape, q: Any, k: Any, v: Any, positions: Any) -> Any:
    b, t = q.shape[:2]
    groups = s.heads // s.kv_heads
    q = q.reshape(b, t, s.kv_heads, groups, s.head)
    scores = jnp.einsum("btgrd,bsgd->bgrts", q, k) / jnp.sqrt(jnp.float32(s.head))
    visible = jnp.arange(k.shape[1])[None, None, :] <= positions[:, :, None]
    scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bgrts,bsgd->btgrd", weights, v).reshape(b, t, s.width)


def layer(s: Shape, w: Arrays, x: Any, positions: Any, k_cache: Any, v_cache: Any) -> Any:
    b, t = x.shape[:2]
    h = rms_norm(x, w["norm1"])
    q = rotate((h @ w["q"]).reshape(b, t, s.heads, s.head), positions)
    k = rotate((h @ w["k"]).reshape(b, t, s.kv_heads, s.head), positions)
    v = (h @ w["v"]).reshape(b, t, s.kv_heads, s.head)
    zero = jnp.int32(0)
    at = (zero, positions[0, 0], zero, zero)
    k_cache = lax.dynamic_update_slice(k_cache, k, at)
    v_cache = lax.dynamic_update_slice(v_cache, v, at)
    x = x + attend(s, q, k_cache, v_cache, positions) @ w["o"]
    h = rms_norm(x, w["norm2"])
    return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], k_cache, v_cache


def scanned(s: Shape) -> Any:
    """step(parameters, tokens [b, t], position, k, v) -> (logits of the last token, k, v)."""

    def step(p: Arrays, tokens: Any, position: Any, k: Any, v: Any) -> Any:
        positions = position + jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)

        def body(x: Any, inputs: Any) -> Any:
            w, k, v = inputs
            x, k, v = layer(s, w, x, positions, k, v)
            return x, (k, v)

        x, (k, v) = lax.scan(body, p["embedding"][tokens], (p["layers"], k, v))
        return rms_norm(x[:, -1], p["norm"]) @ p["embedding"].T, k, v

    return step


def unrolled(s: Shape) -> Any:
    """The same as a Python loop over layers: step(parameters, tokens, position, caches)."""

    def step(p: Arrays, tokens: Any, position: Any, caches: Any) -> Any:
        positions = position + jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        x, new = p["embedding"][tokens], []
        for w, (k, v) in zip(p["layers"], caches, strict=True):
            x, k, v = layer(s, w, x, positions, k, v)
            new.append((k, v))
        return rms_norm(x[:, -1], p["norm"]) @ p["embedding"].T, new

    return step
