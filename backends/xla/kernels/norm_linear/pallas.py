"""norm_linear as one Pallas kernel for the TPU.

Grid (rows, columns, inner), the last fastest. A block of whole rows of x stays in VMEM and is
normalised once, at its first grid step, into scratch; each step then multiplies one inner slice of
it by one block of w and adds to a float32 accumulator. So x is read once from HBM, and w once per
block of rows.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tkcc.backends.xla.kernels.norm_linear.base import NAME, Sizes, check
from tkcc.backends.xla.kernels.operands import Operand, dtype_refusal
from tkcc.backends.xla.kernels.platforms import memory_refusal, platform_refusal, vmem_limit
from tkcc.backends.xla.kernels.tiling import (
    LANES,
    ROWS,
    ceil_div,
    clip,
    keep_below,
    padded_bytes,
    product,
    product_bytes,
    require_multiple,
)


@dataclass(frozen=True)
class Config:
    """Block sizes along M, N and K. A block larger than its dimension is cut to it."""

    block_m: int = 128
    block_n: int = 512
    block_k: int = 512

    def __post_init__(self) -> None:
        require_multiple("block_m", self.block_m, ROWS)
        require_multiple("block_n", self.block_n, LANES)
        require_multiple("block_k", self.block_k, LANES)


@dataclass(frozen=True)
class _Tiles:
    """Config's blocks cut to the sizes of one call."""

    sizes: Sizes
    transposed: bool
    rows: int
    columns: int
    inner: int

    @property
    def grid(self) -> tuple[int, int, int]:
        blocks = (self.rows, self.columns, self.inner)
        sizes = (self.sizes.rows, self.sizes.columns, self.sizes.inner)
        row_blocks, column_blocks, inner_blocks = map(ceil_div, sizes, blocks)
        return row_blocks, column_blocks, inner_blocks

    @property
    def padded_inner(self) -> int:
        return self.grid[2] * self.inner

    @property
    def w_block(self) -> tuple[int, int]:
        return (self.columns, self.inner) if self.transposed else (self.inner, self.columns)


def _tiles(sizes: Sizes, transposed: bool, config: Config) -> _Tiles:
    rows = clip(config.block_m, sizes.rows, ROWS)
    columns = clip(config.block_n, sizes.columns, LANES)
    inner = clip(config.block_k, sizes.inner, LANES)
    return _Tiles(sizes, transposed, rows, columns, inner)


def vmem_bytes(
    x: Operand, w_norm: Operand, w: Operand, *, transposed: bool = False, config: Config
) -> int:
    """Upper estimate of the VMEM that one TensorCore needs, in bytes.

    Inputs and the result are double-buffered; normalised rows, the accumulator and the compiler's
    copies of the largest values come on top. x [M, K], w_norm [K], w [K, N] or [N, K].
    """
    tiles = _tiles(check(x, w_norm, w, transposed=transposed), transposed, config)
    out_block, x_block = (tiles.rows, tiles.columns), (tiles.rows, tiles.inner)
    out = padded_bytes(out_block, x.dtype)
    rows = padded_bytes((tiles.rows, tiles.padded_inner), x.dtype)
    weights = padded_bytes(tiles.w_block, w.dtype)
    norm = padded_bytes((1, tiles.padded_inner), w_norm.dtype)
    scratch = rows + padded_bytes(out_block, jnp.float32)
    copies = product_bytes(x_block, tiles.w_block, out_block, x.dtype)
    return 2 * (rows + weights + norm + out) + scratch + copies


def refuses(
    x: Operand,
    w_norm: Operand,
    w: Operand,
    *,
    transposed: bool = False,
    config: Config,
    platform: str,
) -> str | None:
    """Why the kernel cannot hold this case on platform, in one sentence, or None if it can.

    Raises ValueError where the shapes do not belong together or the platform is unknown.
    """
    check(x, w_norm, w, transposed=transposed)
    return (
        platform_refusal(platform)
        or dtype_refusal(x=x, w=w)
        or dtype_refusal(w_norm=w_norm)
        or memory_refusal(
            vmem_bytes(x, w_norm, w, transposed=transposed, config=config), platform
        )
    )


def schedules(
    x: Operand, w_norm: Operand, w: Operand, *, transposed: bool = False, platform: str
) -> list[Config]:
    """Configurations worth trying that the platform holds, the likeliest first.

    Different entries give different blocks for this case. Empty if the kernel refuses it anyhow.
    """
    sizes = check(x, w_norm, w, transposed=transposed)
    found: dict[_Tiles, Config] = {}
    for block_m, block_n, block_k in itertools.product(
        (256, 128, 512, 16), (512, 256, 1024, 2048), (512, 1024, 2048, 256)
    ):
        config = Config(block_m, block_n, block_k)
        if refuses(x, w_norm, w, transposed=transposed, config=config, platform=platform) is None:
            found.setdefault(_tiles(sizes, transposed, config), config)
    return list(found.values())


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
    tiles = _tiles(sizes, transposed, config)
    return pl.pallas_call(
        functools.partial(_kernel, tiles=tiles, eps=eps),
        name=NAME,
        grid=tiles.grid,
        in_specs=_input_specs(tiles),
        out_specs=pl.BlockSpec((tiles.rows, tiles.columns), lambda m, n, k: (m, n)),
        out_shape=jax.ShapeDtypeStruct((sizes.rows, sizes.columns), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((tiles.grid[2], tiles.rows, tiles.inner), x.dtype),
            pltpu.VMEM((tiles.rows, tiles.columns), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=vmem_limit(
                vmem_bytes(x, w_norm, w, transposed=transposed, config=config)
            ),
        ),
        cost_estimate=_cost(sizes, x, w_norm, w),
        interpret=interpret,
    )(x, w_norm.reshape(1, -1), w)


def _input_specs(tiles: _Tiles) -> list[pl.BlockSpec]:
    def w_index(m: Any, n: Any, k: Any) -> tuple[Any, Any]:
        return (n, k) if tiles.transposed else (k, n)

    return [
        pl.BlockSpec((tiles.rows, tiles.padded_inner), lambda m, n, k: (m, 0)),
        pl.BlockSpec((1, tiles.padded_inner), lambda m, n, k: (0, 0)),
        pl.BlockSpec(tiles.w_block, w_index),
    ]


def _cost(sizes: Sizes, x: Operand, w_norm: Operand, w: Operand) -> pl.CostEstimate:
    elements = sizes.rows * (sizes.inner + sizes.columns) + sizes.inner * sizes.columns
    return pl.CostEstimate(
        flops=2 * sizes.rows * sizes.inner * sizes.columns + 4 * sizes.rows * sizes.inner,
        transcendentals=sizes.rows,
        bytes_accessed=elements * jnp.dtype(x.dtype).itemsize,
    )


def _kernel(
    x_ref: Any,
    norm_ref: Any,
    w_ref: Any,
    out_ref: Any,
    normed_ref: Any,
    sum_ref: Any,
    *,
    tiles: _Tiles,
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


def _normalise_rows(
    x_ref: Any, norm_ref: Any, normed_ref: Any, tiles: _Tiles, eps: float
) -> None:
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

    lax.fori_loop(0, tiles.rows // ROWS, normalise, None)


def _wide_block(ref: Any, rows: Any, block: int, tiles: _Tiles) -> jax.Array:
    """Inner block `block` of ref's rows in float32, with zeros past the end of the array."""
    start = block * tiles.inner
    wide = ref[rows, start : start + tiles.inner].astype(jnp.float32)
    if start + tiles.inner > tiles.sizes.inner:
        return keep_below(wide, tiles.sizes.inner - start, -1)
    return wide
