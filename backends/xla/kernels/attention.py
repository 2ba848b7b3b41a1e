"""What the two attention kernels share outside their kernels: sizes, visibility, plain attention.

Query head h reads key head h // (heads // key_heads). A query at position p sees the keys from
`first` on and below `stop`: one range, which causality, a window and a length only narrow. A query
that sees no key gives zeros.
"""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax

from tkcc.backends.xla.kernels.operands import (
    Dimensions,
    Operand,
    require,
    require_integers,
    require_shape,
)

Layout = Literal["bshd", "bhsd"]
"""Order of a cache's axes: [batch, key, key head, width] or [batch, key head, key, width]."""


class Sizes(NamedTuple):
    """q is [batch, queries, heads, width]; k and v hold keys * key_heads rows per batch entry."""

    batch: int
    queries: int
    heads: int
    key_heads: int
    keys: int
    width: int

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.key_heads


def check(kernel: str, q: Operand, k: Operand, v: Operand, layout: str) -> Sizes:
    """The sizes of a well-formed call; ValueError for shapes that do not belong together."""
    layouts = get_args(Layout)
    require(kernel, layout in layouts, f"layout {layout!r} is none of {', '.join(layouts)}")
    require_shape(kernel, "q", q, {"B": None, "T": None, "H": None, "D": None})
    batch, queries, heads, width = q.shape
    cache: Dimensions = {"B": batch, "S": None, "KH": None, "D": width}
    if layout == "bhsd":
        cache = {dim: cache[dim] for dim in ("B", "KH", "S", "D")}
    require_shape(kernel, "k", k, cache)
    keys, key_heads = (k.shape[list(cache).index(dim)] for dim in ("S", "KH"))
    require_shape(kernel, "v", v, {**cache, "S": keys, "KH": key_heads})
    divides = f"q has {heads} heads, which is no multiple of the {key_heads} heads of k"
    require(kernel, heads % key_heads == 0, divides)
    return Sizes(batch, queries, heads, key_heads, keys, width)


def check_visibility(
    kernel: str, sizes: Sizes, positions: Operand, lengths: Operand | None, window: int | None
) -> None:
    """ValueError unless positions is int32 [B, T], lengths int32 [B] and window 1 or more."""
    require_shape(kernel, "positions", positions, {"B": sizes.batch, "T": sizes.queries})
    require_integers(kernel, "positions", positions)
    if lengths is not None:
        require_shape(kernel, "lengths", lengths, {"B": sizes.batch})
        require_integers(kernel, "lengths", lengths)
    enough = window is None or window >= 1
    require(kernel, enough, f"window is {window}, but must be 1 or more, or None for no window")


def visible_range(
    sizes: Sizes,
    positions: jax.Array,
    lengths: jax.Array | None,
    *,
    causal: bool,
    window: int | None,
) -> tuple[jax.Array, jax.Array]:
    """The first key that each query sees and the one after the last, int32 [B, T], in 0..keys."""
    stop = positions + 1 if causal else jnp.full_like(positions, sizes.keys)
    if lengths is not None:
        stop = jnp.minimum(stop, lengths[:, None])
    first = jnp.zeros_like(positions) if window is None else positions - window + 1
    return jnp.clip(first, 0, sizes.keys), jnp.clip(stop, 0, sizes.keys)


def plain_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array, scale: float
) -> jax.Array:
    """Attention with softmax in float32 (Vaswani et al. 2017, "Attention Is All You Need").

    q [B, T, H, D], k and v [B, S, KH, D], visible bool [B, T, S] -> [B, T, H, D] in q's dtype.
    Both products accumulate in float32; the probabilities are rounded to v's dtype in between.
    """
    batch, queries, heads, width = q.shape
    grouped = q.reshape(batch, queries, k.shape[2], -1, width)
    scores = _einsum("btkgd,bskd->bkgts", grouped, k) * scale
    scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
    peak = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isneginf(peak), 0.0, peak))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0.0, 1.0, total)
    mixed = _einsum("bkgts,bskd->btkgd", weights.astype(v.dtype), v)
    return mixed.reshape(batch, queries, heads, width).astype(q.dtype)


def _einsum(formula: str, left: jax.Array, right: jax.Array) -> jax.Array:
    # Products of bfloat16 are exact in float32, and XLA's CPU compiler has no such product of
    # bfloat16 operands where batch axes do not lead.
    left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    return jnp.einsum(formula, left, right, precision=lax.Precision.HIGHEST)


def visible_keys(
    sizes: Sizes,
    positions: jax.Array,
    lengths: jax.Array | None,
    *,
    causal: bool,
    window: int | None,
) -> jax.Array:
    """Which keys each query sees, bool [B, T, S], straight from the definition."""
    key = jnp.arange(sizes.keys, dtype=jnp.int32)[None, None, :]
    position = positions[:, :, None]
    visible = jnp.ones((sizes.batch, sizes.queries, sizes.keys), bool)
    if causal:
        visible &= key <= position
    if window is not None:
        visible &= key > position - window
    if lengths is not None:
        visible &= key < lengths[:, None, None]
    return visible
