"""norm_linear as one Pallas kernel for the TPU.

Grid (rows, columns, inner), the last fastest. A block of whole rows of x stays in VMEM and is
normalised once, at its first grid step, into scratch; each step then multiplies one inner slice of
it by one block of w and adds to a float32 accumulator. So x is read once from HBM, and w once per
block of rows.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tkcc.backends.xla.kernels.norm_linear.base import NAME, check
from tkcc.backends.xla.kernels.norm_linear.config import (
    Config,
    Tiles,
    refuses,
    tiles_of,
    traffic_of,
    vmem_of,
)
from tkcc.backends.xla.kernels.platforms import vmem_limit
from tkcc.backends.xla.kernels.tiling import (
    ROWS,
    itemsize_of,
    keep_below,
    narrow_integers,
    product,
    struct,
)


@narrow_integers
def norm_linear(
    x: jax.Array,
    w_norm: jax.Array,
    w: jax.Array,
    *,
    eps: float,
    transposed: bool = False,
    config: Config,
    interpret: bool,
) -> jax.Array:
    """rms_norm(x, w_norm) @ w in one kernel; `reference` says exactly what is computed.

    x [M, K], w_norm [K], w [K, N] ([N, K] if transposed), float32 or bfloat16 -> [M, N] in x's
    dtype. Raises ValueError for shapes that do not belong together, NotImplementedError for dtypes
    that the kernel does not hold. interpret runs it without a TPU, slowly.
    """
    sizes = check(x, w_norm, w, transposed=transposed)
    reason = refuses(x, w_norm, w, transposed=transposed, config=config, platform="cpu")
    if reason is not None:
        raise NotImplementedError(f"{NAME}: {reason}")
    tiles = tiles_of(sizes, transposed, config)
    call = pl.pallas_call(
        functools.partial(_kernel, tiles=tiles, eps=eps),
        name=NAME,
        grid=tiles.grid,
        in_specs=_input_specs(tiles),
        out_specs=pl.BlockSpec((tiles.rows, tiles.columns), lambda m, n, k: (m, n)),
        out_shape=struct((sizes.rows, sizes.columns), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((tiles.grid[2], tiles.rows, tiles.inner), x.dtype),
            pltpu.VMEM((tiles.rows, tiles.columns), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=vmem_limit(vmem_of(tiles, x.dtype)),
        ),
        cost_estimate=_cost(tiles, x.dtype),
        interpret=interpret,
    )
    result: jax.Array = call(x, w_norm.reshape(1, -1), w)
    return result


def _input_specs(tiles: Tiles) -> list[pl.BlockSpec]:
    def w_index(m: Any, n: Any, k: Any) -> tuple[Any, Any]:
        return (n, k) if tiles.transposed else (k, n)

    return [
        pl.BlockSpec((tiles.rows, tiles.padded_inner), lambda m, n, k: (m, 0)),
        pl.BlockSpec((1, tiles.padded_inner), lambda m, n, k: (0, 0)),
        pl.BlockSpec(tiles.w_block, w_index),
    ]


def _cost(tiles: Tiles, dtype: Any) -> pl.CostEstimate:
    rows, inner, columns = tiles.sizes
    return pl.CostEstimate(
        flops=2 * rows * inner * columns + 4 * rows * inner,
        transcendentals=rows,
        bytes_accessed=traffic_of(tiles, itemsize_of(dtype)).moved,
    )


def _kernel(
    x_ref: Any,
    norm_ref: Any,
    w_ref: Any,
    out_ref: Any,
    normed_ref: Any,
    sum_ref: Any,
    *,
    tiles: Tiles,
    eps: float,
) -> None:
    column, inner = pl.program_id(1), pl.program_id(2)

    @pl.when((column == 0) & (inner == 0))
    def _normalise() -> None:
        _normalise_rows(x_ref, norm_ref, normed_ref, tiles, eps)

    @pl.when(inner == 0)
    def _clear() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)

    inner_axis = -1 if tiles.transposed else -2
    weights = w_ref[...]
    if tiles.padded_inner != tiles.sizes.inner:
        weights = keep_below(weights, tiles.sizes.inner - inner * tiles.inner, inner_axis)
    sum_ref[...] += product(normed_ref[inner], weights, inner_axis)

    @pl.when(inner == tiles.grid[2] - 1)
    def _store() -> None:
        out_ref[...] = sum_ref[...].astype(out_ref.dtype)


def _normalise_rows(x_ref: Any, norm_ref: Any, normed_ref: Any, tiles: Tiles, eps: float) -> None:
    """Fill normed_ref [inner blocks, rows, inner] from x_ref [rows, padded inner].

    A few rows at a time, so that their float32 copies stay in registers or close to them.
    """

    def normalise(step: jax.Array, carry: None) -> None:
        rows = pl.ds(pl.multiple_of(step * ROWS, ROWS), ROWS)
        squares = jnp.zeros((ROWS, 1), jnp.float32)
        for block in range(tiles.grid[2]):
            wide = _wide_block(x_ref, rows, block, tiles)
            squares += jnp.sum(wide * wide, axis=-1, keepdims=True)
        scale = lax.rsqrt(squares / tiles.sizes.inner + eps)
        for block in range(tiles.grid[2]):
            weight = _wide_block(norm_ref, pl.ds(0, 1), block, tiles)
            wide = _wide_block(x_ref, rows, block, tiles) * scale * weight
            normed_ref[block, rows, :] = wide.astype(normed_ref.dtype)
        return carry

    lax.fori_loop(np.int32(0), np.int32(tiles.rows // ROWS), normalise, None)


def _wide_block(ref: Any, rows: Any, block: int, tiles: Tiles) -> jax.Array:
    """Inner block `block` of ref's rows in float32, with zeros past the end of the array."""
    start = block * tiles.inner
    wide: jax.Array = ref[rows, start : start + tiles.inner].astype(jnp.float32)
    if start + tiles.inner > tiles.sizes.inner:
        return keep_below(wide, tiles.sizes.inner - start, -1)
    return wide
