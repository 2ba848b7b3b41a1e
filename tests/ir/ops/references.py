"""What the named ops compute, written once more in plain float64 numpy, loop by loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def wide(x: Any) -> Array:
    """Any array as float64 (integers and booleans as they are)."""
    array = np.asarray(x)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def linear(x: Array, w: Array, bias: Array | None = None, transposed: bool = False) -> Array:
    y = wide(x) @ (wide(w).T if transposed else wide(w))
    return y if bias is None else y + wide(bias)


def rms_norm(x: Array, w: Array, eps: float, plus_one: bool = False) -> Array:
    x = wide(x)
    scale = wide(w) + 1 if plus_one else wide(w)
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * scale


def layer_norm(x: Array, w: Array, bias: Array | None, eps: float) -> Array:
    x = wide(x)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    y = (x - mean) / np.sqrt(variance + eps) * wide(w)
    return y if bias is None else y + wide(bias)


def softmax(x: Array) -> Array:
    e = np.exp(wide(x) - np.max(wide(x), axis=-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-wide(x)))


def activation(kind: str, x: Array) -> Array:
    x = wide(x)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    kinds = {
        "silu": lambda: x * sigmoid(x),
        "gelu": lambda: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
        "gelu_tanh": lambda: 0.5 * x * (1 + np.tanh(inner)),
        "relu": lambda: np.maximum(x, 0),
        "sigmoid": lambda: sigmoid(x),
        "tanh": lambda: np.tanh(x),
    }
    return kinds[kind]()


def rope(x: Array, positions: Array, inv_freq: Array, interleaved: bool, scale: float) -> Array:
    """Rotate each pair of channels as a complex number."""
    y, half = wide(x).copy(), len(inv_freq)
    for b, t, h in np.ndindex(*x.shape[:3]):
        for i, frequency in enumerate(wide(inv_freq)):
            first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
            pair = complex(y[b, t, h, first], y[b, t, h, second])
            angle = int(positions[b, t]) * frequency
            turned = pair * complex(math.cos(angle), math.sin(angle)) * scale
            y[b, t, h, first], y[b, t, h, second] = turned.real, turned.imag
    return y


def visible(j: int, p: int, causal: bool, window: int | None, length: int | None) -> bool:
    """Whether the query at position p sees key j."""
    if causal and j > p:
        return False
    if window is not None and j <= p - window:
        return False
    return length is None or j < length


def attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    layout: str = "bshd",
    positions: Array | None = None,
    lengths: Array | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """One query at a time; hidden keys are left out of the softmax."""
    q, k, v = wide(q), wide(k), wide(v)
    if layout == "bhsd":
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    (batch, t, heads, _), s = q.shape, k.shape[1]
    shape = (batch, heads, t, s)
    seen = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
    extra = np.zeros(shape) if bias is None else np.broadcast_to(wide(bias), shape)
    out = np.zeros((batch, t, heads, v.shape[-1]))
    for b, i, h in np.ndindex(batch, t, heads):
        group = h // (heads // k.shape[2])
        p = s - t + i if positions is None else int(positions[b, i])
        length = None if lengths is None else int(lengths[b])
        keys = [j for j in range(s) if visible(j, p, causal, window, length) and seen[b, h, i, j]]
        scores = k[b, keys, group] @ q[b, i, h] * scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        weights = np.exp(scores + extra[b, h, i, keys])
        sink = 0.0 if sinks is None else math.exp(float(sinks[h]))
        if keys:
            out[b, i, h] = weights @ v[b, keys, group] / (weights.sum() + sink)
    return out


def linear_attention(
    q: Array, k: Array, v: Array, decay: Array, state: Array
) -> tuple[Array, Array]:
    q, k, v, decay, state = map(wide, (q, k, v, decay, state))
    state, out = state.copy(), np.zeros(v.shape)
    for b, h in np.ndindex(*state.shape[:2]):
        for t in range(q.shape[1]):
            state[b, h] = decay[b, t, h] * state[b, h] + np.outer(k[b, t, h], v[b, t, h])
            out[b, t, h] = q[b, t, h] @ state[b, h]
    return out, state


def moe_route(
    logits: Array,
    k: int,
    bias: Array | None = None,
    scoring: str = "softmax",
    normalize: bool = True,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
) -> tuple[Array, Array]:
    """One token at a time, by sorting."""
    rows = [
        _route_one(row, k, bias, scoring, normalize, groups, top_groups) for row in wide(logits)
    ]
    weights, ids = zip(*rows, strict=True)
    return np.array(weights) * scale, np.array(ids, np.int32)


def _route_one(
    row: Array,
    k: int,
    bias: Array | None,
    scoring: str,
    normalize: bool,
    groups: int,
    top_groups: int,
) -> tuple[Array, list[int]]:
    scores = {"softmax": softmax, "sigmoid": sigmoid, "softmax_topk": wide}[scoring](row)
    choice = scores if bias is None else scores + wide(bias)
    size = len(row) // groups
    strength = [sum(sorted(choice[g * size : (g + 1) * size])[-2:]) for g in range(groups)]
    kept = sorted(range(groups), key=lambda g: -strength[g])[:top_groups]
    allowed = [e for e in range(len(row)) if groups == 1 or e // size in kept]
    ids = sorted(allowed, key=lambda e: -choice[e])[:k]
    weights = scores[ids]
    if scoring == "softmax_topk":
        weights = softmax(weights)
    elif normalize:
        weights = weights / weights.sum()
    return weights, ids


def moe_experts(
    x: Array,
    weights: Array,
    ids: Array,
    w_gate: Array,
    w_up: Array,
    w_down: Array,
    /,
    kind: str = "silu",
    gate_bias: Array | None = None,
    up_bias: Array | None = None,
    down_bias: Array | None = None,
) -> Array:
    x, out = wide(x), np.zeros(x.shape)

    def affine(row: Array, matrices: Array, bias: Array | None, expert: int) -> Array:
        return row @ wide(matrices[expert]) + (0 if bias is None else wide(bias[expert]))

    for n, slot in np.ndindex(*ids.shape):
        e = int(ids[n, slot])
        hidden = gated(kind, affine(x[n], w_gate, gate_bias, e), affine(x[n], w_up, up_bias, e))
        out[n] += float(weights[n, slot]) * affine(hidden, w_down, down_bias, e)
    return out


def gated(kind: str, gate: Array, up: Array) -> Array:
    if kind != "clamped_swiglu":
        return activation(kind, gate) * up
    gate, up = np.where(gate > 7, 7, gate), np.where(abs(up) > 7, 7 * np.sign(up), up)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def update_cache(cache: Array, new: Array, start: Array, layout: str = "bshd") -> Array:
    cache = np.array(cache)
    rows = cache if layout == "bshd" else cache.swapaxes(1, 2)  # a view: [b, s, h, d]
    t = new.shape[1]
    for b, begin in enumerate(start):
        at = min(max(int(begin), 0), rows.shape[1] - t)
        rows[b, at : at + t] = np.asarray(new[b]).astype(cache.dtype)
    return cache
