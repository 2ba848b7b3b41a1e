"""Blocks of norm_linear: what fits, what it needs, what to try. Arithmetic only."""

import itertools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from tkcc.backends.xla.kernels.norm_linear.base import Sizes, check
from tkcc.backends.xla.kernels.operands import Operand, dtype_refusal
from tkcc.backends.xla.kernels.platforms import memory_refusal, platform_refusal
from tkcc.backends.xla.kernels.schedule import Traffic, cheapest_first, quick_to_compile
from tkcc.backends.xla.kernels.tiling import (
    LANES,
    ROWS,
    ceil_div,
    clip,
    itemsize_of,
    padded_bytes,
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
class Tiles:
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


def tiles_of(sizes: Sizes, transposed: bool, config: Config) -> Tiles:
    """The blocks of a call."""
    rows = clip(config.block_m, sizes.rows, ROWS)
    columns = clip(config.block_n, sizes.columns, LANES)
    inner = clip(config.block_k, sizes.inner, LANES)
    return Tiles(sizes, transposed, rows, columns, inner)


def vmem_bytes(
    x: Operand, w_norm: Operand, w: Operand, *, transposed: bool = False, config: Config
) -> int:
    """Upper estimate of the VMEM that one TensorCore needs, in bytes.

    Inputs and the result are double-buffered; normalised rows, the accumulator and the compiler's
    copies of the largest values come on top. x [M, K], w_norm [K], w [K, N] or [N, K].
    """
    sizes = check(x, w_norm, w, transposed=transposed)
    return vmem_of(tiles_of(sizes, transposed, config), x.dtype)


def vmem_of(tiles: Tiles, dtype: Any) -> int:
    """`vmem_bytes` of tiles."""
    out_block, x_block = (tiles.rows, tiles.columns), (tiles.rows, tiles.inner)
    out = padded_bytes(out_block, dtype)
    rows = padded_bytes((tiles.rows, tiles.padded_inner), dtype)
    weights = padded_bytes(tiles.w_block, dtype)
    norm = padded_bytes((1, tiles.padded_inner), jnp.float32)
    scratch = rows + padded_bytes(out_block, jnp.float32)
    copies = product_bytes(x_block, tiles.w_block, out_block, dtype)
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
    sizes = check(x, w_norm, w, transposed=transposed)
    return (
        platform_refusal(platform)
        or dtype_refusal(x=x, w=w)
        or dtype_refusal(w_norm=w_norm)
        or memory_refusal(vmem_of(tiles_of(sizes, transposed, config), x.dtype), platform)
    )


def schedules(
    x: Operand, w_norm: Operand, w: Operand, *, transposed: bool = False, platform: str
) -> list[Config]:
    """Configurations worth trying that the platform holds, the likeliest first.

    Different entries give different blocks for this case. Empty if the kernel refuses it anyhow.
    """
    sizes = check(x, w_norm, w, transposed=transposed)
    found: dict[Tiles, Config] = {}
    for block_m, block_n, block_k in itertools.product(
        (512, 256, 128, 16), (512, 1024, 256, 2048), (512, 1024, 2048, 256)
    ):
        config = Config(block_m, block_n, block_k)
        if refuses(x, w_norm, w, transposed=transposed, config=config, platform=platform) is None:
            found.setdefault(tiles_of(sizes, transposed, config), config)
    quick = quick_to_compile(found, _step_products, x.dtype)
    order = cheapest_first(quick, lambda tiles: traffic_of(tiles, itemsize_of(x.dtype)))
    return [found[tiles] for tiles in order]


def _step_products(tiles: Tiles) -> int:
    return tiles.rows * tiles.columns * tiles.inner


def traffic_of(tiles: Tiles, itemsize: int) -> Traffic:
    """What tiles move, with weights read once per block of rows."""
    rows, inner, columns = tiles.sizes
    row_blocks, column_blocks, inner_blocks = tiles.grid
    moved = rows * (inner + columns) + row_blocks * inner * columns
    first = tiles.rows * inner + tiles.inner * tiles.columns
    steps = row_blocks * column_blocks * inner_blocks
    return Traffic(moved * itemsize, first * itemsize, steps)
