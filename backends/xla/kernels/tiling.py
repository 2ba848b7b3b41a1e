"""Block arithmetic and matrix products that every kernel here shares."""

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Parameters = ParamSpec("Parameters")
Shape = tuple[int, ...]

LANES = 128
ROWS = 16
"""Rows of a bfloat16 tile; a float32 tile has 8, so a multiple of 16 suits both."""

MASKED = -0.7 * float(np.finfo(np.float32).max)
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


def itemsize_of(dtype: Any) -> int:
    """Bytes of one element."""
    return int(jnp.dtype(dtype).itemsize)


def struct(shape: Shape, dtype: Any) -> Any:
    """The shape and dtype of a result, for pallas_call."""
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def padded_bytes(shape: Shape, dtype: Any) -> int:
    """Bytes that an array takes in VMEM, where its last two dimensions fill whole tiles.

    A tile has 128 lanes and 8 rows of 32 bits, or 2 or 4 rows if there are no more.
    """
    *leading, rows, lanes = shape
    itemsize = itemsize_of(dtype)
    tile_rows = next((few for few in (2, 4) if rows <= few), 8 * max(1, 4 // itemsize))
    return math.prod(leading) * round_up(rows, tile_rows) * round_up(lanes, LANES) * itemsize


def product_bytes(left: Shape, right: Shape, out: Shape, dtype: Any) -> int:
    """Bytes that the compiler holds around one `product`.

    Operands, the float32 result, and for float32 operands the bfloat16 parts of them.
    """
    operands = padded_bytes(left, dtype) + padded_bytes(right, dtype)
    split = 2 if jnp.dtype(dtype) == jnp.float32 else 1
    return split * operands + padded_bytes(out, jnp.float32)


def require_multiple(name: str, block: int, multiple: int) -> None:
    """Raise ValueError unless block is a positive multiple of `multiple`."""
    if block < multiple or block % multiple:
        raise ValueError(f"Config: {name} is {block}, but must be {multiple} or a multiple of it")


def narrow_integers(
    kernel: Callable[Parameters, jax.Array],
) -> Callable[Parameters, jax.Array]:
    """Trace a kernel with 32-bit integers, also where the caller has set jax_enable_x64.

    Mosaic's scalars have 32 bits, and loop counters would get 64.
    """

    @functools.wraps(kernel)
    def call(*operands: Parameters.args, **keywords: Parameters.kwargs) -> jax.Array:
        with jax.enable_x64(False):
            return kernel(*operands, **keywords)

    return call


def product(left: jax.Array, right: jax.Array, right_axis: int) -> jax.Array:
    """Contract left's last axis with right's right_axis (-2 or -1), leading axes paired.

    Accumulates in float32 and gives float32. Operands that are float32 are multiplied in full: the
    TPU would otherwise round them to bfloat16.
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

    Past the end of an array anything may lie, NaN included, so it is replaced, not multiplied.
    """
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis % block.ndim)
    return jnp.where(index < limit, block, jnp.zeros((), block.dtype))
