"""Blocks of swiglu_mlp: what fits, what it needs, what to try. Arithmetic only."""

import itertools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from tkcc.backends.xla.kernels.operands import Operand, dtype_refusal
from tkcc.backends.xla.kernels.platforms import memory_refusal, platform_refusal
from tkcc.backends.xla.kernels.schedule import Traffic, cheapest_first, quick_to_compile
from tkcc.backends.xla.kernels.swiglu_mlp.base import Sizes, check
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
    """Block sizes along M, F, K and N. A block larger than its dimension is cut to it."""

    block_m: int = 128
    block_f: int = 512
    block_k: int = 512
    block_n: int = 512

    def __post_init__(self) -> None:
        require_multiple("block_m", self.block_m, ROWS)
        require_multiple("block_f", self.block_f, LANES)
        require_multiple("block_k", self.block_k, LANES)
        require_multiple("block_n", self.block_n, LANES)


@dataclass(frozen=True)
class Tiles:
    """Config's blocks cut to the sizes of one call."""

    sizes: Sizes
    transposed: bool
    activation: str
    rows: int
    hidden: int
    inner: int
    columns: int

    @property
    def row_blocks(self) -> int:
        return ceil_div(self.sizes.rows, self.rows)

    @property
    def hidden_blocks(self) -> int:
        return ceil_div(self.sizes.hidden, self.hidden)

    @property
    def inner_blocks(self) -> int:
        return ceil_div(self.sizes.inner, self.inner)

    @property
    def column_blocks(self) -> int:
        return ceil_div(self.sizes.columns, self.columns)

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.row_blocks, self.hidden_blocks, self.inner_blocks + self.column_blocks

    @property
    def into_block(self) -> tuple[int, int]:
        """The block of w_gate and w_up."""
        return (self.hidden, self.inner) if self.transposed else (self.inner, self.hidden)

    @property
    def down_block(self) -> tuple[int, int]:
        """The block of w_down."""
        return (self.columns, self.hidden) if self.transposed else (self.hidden, self.columns)

    @property
    def contracted(self) -> int:
        """The axis of each weight that a product sums over."""
        return -1 if self.transposed else -2


def tiles_of(sizes: Sizes, activation: str, transposed: bool, config: Config) -> Tiles:
    """The blocks of a call."""
    return Tiles(
        sizes,
        transposed,
        activation,
        rows=clip(config.block_m, sizes.rows, ROWS),
        hidden=clip(config.block_f, sizes.hidden, LANES),
        inner=clip(config.block_k, sizes.inner, LANES),
        columns=clip(config.block_n, sizes.columns, LANES),
    )


def vmem_bytes(
    x: Operand,
    w_gate: Operand,
    w_up: Operand,
    w_down: Operand,
    *,
    transposed: bool = False,
    config: Config,
) -> int:
    """Upper estimate of the VMEM that one TensorCore needs, in bytes.

    Inputs and the result are double-buffered; gate, up, the hidden block, the sum of whole result
    rows and the compiler's copies around a product come on top.
    """
    sizes = check(x, w_gate, w_up, w_down, activation="silu", transposed=transposed)
    return vmem_of(tiles_of(sizes, "silu", transposed, config), x.dtype)


def vmem_of(tiles: Tiles, dtype: Any) -> int:
    """`vmem_bytes` of tiles."""
    x_block, out_block = (tiles.rows, tiles.inner), (tiles.rows, tiles.columns)
    hidden_block = (tiles.rows, tiles.hidden)
    blocks = [x_block, tiles.into_block, tiles.into_block, tiles.down_block, out_block]
    buffers = 2 * sum(padded_bytes(block, dtype) for block in blocks)
    wide_hidden = padded_bytes(hidden_block, jnp.float32)
    sums = tiles.column_blocks * padded_bytes(out_block, jnp.float32)
    scratch = 2 * wide_hidden + padded_bytes(hidden_block, dtype) + sums
    into = product_bytes(x_block, tiles.into_block, hidden_block, dtype)
    down = product_bytes(hidden_block, tiles.down_block, out_block, dtype)
    return buffers + scratch + max(2 * into, down)


def refuses(
    x: Operand,
    w_gate: Operand,
    w_up: Operand,
    w_down: Operand,
    *,
    activation: str = "silu",
    transposed: bool = False,
    config: Config,
    platform: str,
) -> str | None:
    """Why the kernel cannot hold this case on platform, in one sentence, or None if it can.

    Raises ValueError where the arguments do not belong together or the platform is unknown.
    """
    sizes = check(x, w_gate, w_up, w_down, activation=activation, transposed=transposed)
    needed = vmem_of(tiles_of(sizes, activation, transposed, config), x.dtype)
    return (
        platform_refusal(platform)
        or dtype_refusal(x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
        or memory_refusal(needed, platform)
    )


def schedules(
    x: Operand,
    w_gate: Operand,
    w_up: Operand,
    w_down: Operand,
    *,
    activation: str = "silu",
    transposed: bool = False,
    platform: str,
) -> list[Config]:
    """Configurations worth trying that the platform holds, the likeliest first.

    Different entries give different blocks for this case. Empty if the kernel refuses it anyhow.
    """
    operands = (x, w_gate, w_up, w_down)
    sizes = check(*operands, activation=activation, transposed=transposed)
    found: dict[Tiles, Config] = {}
    for block_m, block_f, block_k in itertools.product(
        (512, 256, 128, 16), (512, 1024, 256), (512, 1024, 2048, 4096)
    ):
        config = Config(block_m, block_f, block_k, block_n=block_k)
        if refuses(*operands, transposed=transposed, config=config, platform=platform) is None:
            found.setdefault(tiles_of(sizes, activation, transposed, config), config)
    quick = quick_to_compile(found, _step_products, x.dtype)
    order = cheapest_first(quick, lambda tiles: traffic_of(tiles, itemsize_of(x.dtype)))
    return [found[tiles] for tiles in order]


def _step_products(tiles: Tiles) -> int:
    return tiles.rows * tiles.hidden * max(2 * tiles.inner, tiles.columns)


def traffic_of(tiles: Tiles, itemsize: int) -> Traffic:
    """What tiles move, with weights read once per block of rows."""
    sizes, passes = tiles.sizes, tiles.hidden_blocks if tiles.inner_blocks > 1 else 1
    weights = tiles.row_blocks * sizes.hidden * (2 * sizes.inner + sizes.columns)
    activations = sizes.rows * (passes * sizes.inner + sizes.columns)
    first = tiles.inner * (tiles.rows + 2 * tiles.hidden) + tiles.hidden * tiles.columns
    steps = tiles.grid[0] * tiles.grid[1] * tiles.grid[2]
    return Traffic((weights + activations) * itemsize, first * itemsize, steps)
