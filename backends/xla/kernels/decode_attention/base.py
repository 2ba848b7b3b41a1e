"""decode_attention in plain JAX, and the checks of its arguments."""

import jax
import jax.numpy as jnp

from tkcc.backends.xla.kernels import attention
from tkcc.backends.xla.kernels.attention import Layout, Sizes, plain_attention, visible_keys
from tkcc.backends.xla.kernels.operands import Operand, require

NAME = "decode_attention"


def check(q: Operand, k: Operand, v: Operand, *, layout: str) -> Sizes:
    """The sizes of a well-formed call; ValueError for shapes that do not belong together."""
    sizes = attention.check(NAME, q, k, v, layout)
    message = f"q has {sizes.queries} queries per sequence, but must have 1"
    require(NAME, sizes.queries == 1, message)
    return sizes


def reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    lengths: jax.Array | None = None,
    *,
    layout: Layout = "bshd",
    window: int | None = None,
    scale: float,
) -> jax.Array:
    """Attention of one query per sequence in plain JAX.

    q [B, 1, H, D], k and v [B, S, KH, D] ([B, KH, S, D] for layout "bhsd"), positions int32 [B, 1],
    lengths int32 [B] -> [B, 1, H, D] in q's dtype. The query at position p sees key s if s <= p,
    s < its length, and s > p - window; one that sees none gives zeros. H must be a multiple of KH.
    """
    sizes = check(q, k, v, layout=layout)
    attention.check_visibility(NAME, sizes, positions, lengths, window)
    if layout == "bhsd":
        k, v = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
    visible = visible_keys(sizes, positions, lengths, causal=True, window=window)
    return plain_attention(q, k, v, visible, scale)
