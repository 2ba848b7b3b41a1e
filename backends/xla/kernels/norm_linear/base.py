"""norm_linear in plain JAX, and the checks of its arguments."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tkcc.backends.xla.kernels.operands import Operand, require, require_shape
from tkcc.backends.xla.kernels.tiling import product

NAME = "norm_linear"


class Sizes(NamedTuple):
    """x is [rows, inner], the result [rows, columns]."""

    rows: int
    inner: int
    columns: int


def check(x: Operand, w_norm: Operand, w: Operand, *, transposed: bool) -> Sizes:
    """The sizes of a well-formed call; ValueError for shapes that do not belong together."""
    require_shape(NAME, "x", x, {"M": None, "K": None})
    rows, inner = x.shape
    require_shape(NAME, "w_norm", w_norm, {"K": inner})
    dims = {"N": None, "K": inner} if transposed else {"K": inner, "N": None}
    require_shape(NAME, "w", w, dims)
    floating = jnp.issubdtype(w_norm.dtype, jnp.floating)
    require(NAME, floating, f"w_norm is {w_norm.dtype}, but must be a floating type")
    return Sizes(rows, inner, w.shape[0 if transposed else 1])


def reference(
    x: jax.Array, w_norm: jax.Array, w: jax.Array, *, eps: float, transposed: bool = False
) -> jax.Array:
    """rms_norm(x, w_norm) @ w in plain JAX.

    x [M, K], w_norm [K], w [K, N] ([N, K] if transposed) -> [M, N] in x's dtype. The norm (Zhang
    and Sennrich 2019, "Root Mean Square Layer Normalization") is taken in float32 and rounded to
    x's dtype; the product accumulates in float32.
    """
    check(x, w_norm, w, transposed=transposed)
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    normed = (wide * w_norm.astype(jnp.float32)).astype(x.dtype)
    return product(normed, w, -1 if transposed else -2).astype(x.dtype)
