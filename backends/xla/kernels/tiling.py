"""Block arithmetic and matrix products that every kernel here shares."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

LANES = 128
ROWS = 16
"""Rows of a bfloat16 tile; a float32 tile has 8, so a multiple of 16 suits both."""

MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)
"""The score of an invisible key: finite, so that the difference of two is no NaN."""


def ceil_div(size: int, block: int) -> int:
    """How many blocks cover size."""
    return -(-size // block)


def round_up(size: int, multiple: int) -> int:
    """The least multiple that is not below size."""
    return ceil_div(size, multiple) * multiple


def clip(block: int, size: int, multiple: int) -> int:
    """block, or less where that covers all of size; the last block may reach past the array."""
    return min(block, round_up(size, multiple))


def padded_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Bytes that an array takes in VMEM, where its last two dimensions fill whole tiles.

    A tile has 128 lanes and 8 rows of 32 bits, or 2 or 4 rows if there are no more.
    """
    *leading, rows, lanes = shape
    itemsize = jnp.dtype(dtype).itemsize
    tile_rows = next((few for few in (2, 4) if rows <= few), 8 * max(1, 4 // itemsize))
    return math.prod(leading) * round_up(rows, tile_rows) * round_up(lanes, LANES) * itemsize


def product_bytes(left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...], dtype: Any) -> int:
    """Bytes that the compiler holds around one `product`: operands, its float32 result, and for
    float32 operands also the bfloat16 parts that it splits them into."""
    operands = padded_bytes(left, dtype) + padded_bytes(right, dtype)
    split = 2 if jnp.dtype(dtype) == jnp.float32 else 1
    return split * operands + padded_bytes(out, jnp.float32)


def require_multiple(name: str, block: int, multiple: int) -> None:
    """Raise ValueError unless block is a positive multiple of `multiple`."""
    if block < multiple or block % multiple:
        raise ValueError(f"Config: {name} is {block}, but must be a positive multiple of {multiple}")


def product(left: jax.Array, right: jax.Array, right_axis: int) -> jax.Array:
    """Contract left's last axis with right's right_axis (-2 or -1), leading axes paired, in float32.

    float32 operands are multiplied in full: the TPU would otherwise round them to bfloat16.
    """
    batch = tuple(range(left.ndim - 2))
    contracted = ((left.ndim - 1,), (right.ndim + right_axis,))
    precision = lax.Precision.HIGHEST if left.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(
        left,
        right,
        (contracted, (batch, batch)),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def keep_below(block: jax.Array, limit: jax.Array | int, axis: int) -> jax.Array:
    """block with zeros where its index along axis is not below limit.

    What lies past the end of an array is undefined, NaN included, so it is replaced, not multiplied.
    """
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis % block.ndim)
    return jnp.where(index < limit, block, jnp.zeros((), block.dtype))
