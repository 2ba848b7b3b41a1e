"""Blocks of flash_attention: what fits, what it needs, what to try. Arithmetic only."""

import itertools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from tkcc.backends.xla.kernels import online_softmax
from tkcc.backends.xla.kernels.attention import Layout, Sizes
from tkcc.backends.xla.kernels.flash_attention.base import check
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

BOUNDS = 4
"""Scalars per block of queries; see `block_bounds` in pallas.py."""

SCALAR_BYTES = 512 * 1024
"""The share of a TensorCore's 1 MiB of scalar memory that the bounds may take."""


@dataclass(frozen=True)
class Config:
    """Queries per block (of each head) and keys per block; larger than there are, they are cut."""

    block_t: int = 128
    block_s: int = 512

    def __post_init__(self) -> None:
        require_multiple("block_t", self.block_t, ROWS)
        require_multiple("block_s", self.block_s, LANES)


@dataclass(frozen=True)
class Tiles:
    """Config's blocks cut to the sizes of one call."""

    sizes: Sizes
    queries: int
    keys: int

    @property
    def query_blocks(self) -> int:
        return ceil_div(self.sizes.queries, self.queries)

    @property
    def key_blocks(self) -> int:
        return ceil_div(self.sizes.keys, self.keys)

    @property
    def grid(self) -> tuple[int, int, int, int]:
        return self.sizes.batch, self.sizes.key_heads, self.query_blocks, self.key_blocks

    @property
    def rows(self) -> int:
        """Queries of a block, of all heads that share a key head."""
        return self.sizes.group * self.queries


def tiles_of(sizes: Sizes, config: Config) -> Tiles:
    """The blocks of a call."""
    queries = clip(config.block_t, sizes.queries, ROWS)
    return Tiles(sizes, queries, clip(config.block_s, sizes.keys, LANES))


def vmem_bytes(
    q: Operand, k: Operand, v: Operand, *, layout: Layout = "bshd", config: Config
) -> int:
    """Upper estimate of the VMEM that one TensorCore needs, in bytes.

    Blocks of q, k, v, ranges and the result are double-buffered; the running softmax, scores and
    the compiler's copies around the two products come on top.
    """
    return vmem_of(tiles_of(check(q, k, v, layout=layout), config), k.dtype)


def vmem_of(tiles: Tiles, dtype: Any) -> int:
    """`vmem_bytes` of tiles."""
    group, width = tiles.sizes.group, tiles.sizes.width
    head_block, key_block = (tiles.queries, width), (tiles.keys, width)
    score_block = (tiles.queries, tiles.keys)
    ranges = padded_bytes((tiles.queries, 2), jnp.int32)
    buffers = 4 * (group * padded_bytes(head_block, dtype) + padded_bytes(key_block, dtype))
    scores = product_bytes(head_block, key_block, score_block, dtype)
    mixed = product_bytes(score_block, key_block, head_block, dtype)
    visible = padded_bytes(score_block, jnp.float32)
    scratch = online_softmax.scratch_bytes(group, *head_block)
    return buffers + 2 * ranges + scratch + scores + mixed + visible


def refuses(
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    layout: Layout = "bshd",
    config: Config,
    platform: str,
) -> str | None:
    """Why the kernel cannot hold this case on platform, in one sentence, or None if it can.

    Raises ValueError where the shapes do not belong together or the platform is unknown.
    """
    tiles = tiles_of(check(q, k, v, layout=layout), config)
    return (
        platform_refusal(platform)
        or dtype_refusal(q=q, k=k, v=v)
        or _scalar_refusal(tiles)
        or memory_refusal(vmem_of(tiles, k.dtype), platform)
    )


def _scalar_refusal(tiles: Tiles) -> str | None:
    needed = 4 * BOUNDS * tiles.sizes.batch * tiles.query_blocks
    if needed <= SCALAR_BYTES:
        return None
    return (
        f"the bounds of {tiles.sizes.batch} x {tiles.query_blocks} query blocks need {needed} "
        f"bytes of scalar memory and may take {SCALAR_BYTES}; use a larger block_t or fewer "
        "sequences"
    )


def schedules(
    q: Operand, k: Operand, v: Operand, *, layout: Layout = "bshd", platform: str
) -> list[Config]:
    """Configurations worth trying that the platform holds, the likeliest first.

    Different entries give different blocks for this case. Empty if the kernel refuses it anyhow.
    """
    sizes = check(q, k, v, layout=layout)
    found: dict[Tiles, Config] = {}
    for block_t, block_s in itertools.product((128, 256, 512, 64, 32, 1024), (512, 1024, 256, 128)):
        config = Config(block_t, block_s)
        if refuses(q, k, v, layout=layout, config=config, platform=platform) is None:
            found.setdefault(tiles_of(sizes, config), config)
    quick = quick_to_compile(found, _step_products, k.dtype)
    order = cheapest_first(quick, lambda tiles: traffic_of(tiles, itemsize_of(k.dtype)))
    return [found[tiles] for tiles in order]


def _step_products(tiles: Tiles) -> int:
    """Of one head: the others go through the same code, in a loop."""
    return tiles.queries * tiles.keys * tiles.sizes.width


def traffic_of(tiles: Tiles, itemsize: int) -> Traffic:
    """Of queries that see every key: what they see is not known when a schedule is chosen."""
    batch, key_heads, query_blocks, key_blocks = tiles.grid
    row_bytes = 2 * tiles.sizes.width * itemsize
    first = (tiles.rows + tiles.keys) * row_bytes
    per_block = (tiles.rows + key_blocks * tiles.keys) * row_bytes
    blocks = batch * key_heads * query_blocks
    return Traffic(blocks * per_block, first, blocks * key_blocks)
