"""Blocks of decode_attention: what fits, what it needs, what to try. Arithmetic only."""

import itertools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from tkcc.backends.xla.kernels import online_softmax
from tkcc.backends.xla.kernels.attention import Layout, Sizes
from tkcc.backends.xla.kernels.decode_attention.base import check
from tkcc.backends.xla.kernels.operands import Operand, dtype_refusal
from tkcc.backends.xla.kernels.platforms import memory_refusal, platform_refusal
from tkcc.backends.xla.kernels.schedule import Traffic, cheapest_first
from tkcc.backends.xla.kernels.tiling import (
    LANES,
    ceil_div,
    clip,
    itemsize_of,
    padded_bytes,
    product_bytes,
    require_multiple,
)


@dataclass(frozen=True)
class Config:
    """Keys per block, and whether a "bshd" block is used with its key heads merged.

    A block larger than the cache is cut to it. Merged is better wherever it is not refused.
    """

    block_s: int = 512
    merge_heads: bool = False

    def __post_init__(self) -> None:
        require_multiple("block_s", self.block_s, LANES)


@dataclass(frozen=True)
class Tiles:
    """Config's block cut to the sizes of one call."""

    sizes: Sizes
    merged: bool
    keys: int

    @property
    def key_blocks(self) -> int:
        return ceil_div(self.sizes.keys, self.keys)

    @property
    def cache_block(self) -> tuple[int, int, int, int]:
        sizes = self.sizes
        if self.merged:
            return 1, self.keys, sizes.key_heads, sizes.width
        return 1, sizes.key_heads, self.keys, sizes.width

    @property
    def rows(self) -> tuple[int, int]:
        """Products done side by side, and query heads in each."""
        return (1, self.sizes.heads) if self.merged else (self.sizes.key_heads, self.sizes.group)

    @property
    def keys_per_row(self) -> int:
        return self.keys * self.sizes.key_heads if self.merged else self.keys

    @property
    def ragged(self) -> bool:
        """Whether the last block reaches past the cache."""
        return self.sizes.keys % self.keys != 0


def tiles_of(sizes: Sizes, config: Config) -> Tiles:
    """The blocks of a call."""
    return Tiles(sizes, config.merge_heads, clip(config.block_s, sizes.keys, LANES))


def vmem_bytes(
    q: Operand, k: Operand, v: Operand, *, layout: Layout = "bshd", config: Config
) -> int:
    """Upper estimate of the VMEM that one TensorCore needs, in bytes.

    Blocks of k, v, q and the result are double-buffered; the running softmax, rearranged keys and
    values, and the compiler's copies around the two products come on top.
    """
    return vmem_of(tiles_of(check(q, k, v, layout=layout), config), k.dtype)


def vmem_of(tiles: Tiles, dtype: Any) -> int:
    """`vmem_bytes` of tiles."""
    heads, rows = tiles.rows
    width, keys = tiles.sizes.width, tiles.keys_per_row
    buffers = 4 * padded_bytes(tiles.cache_block, dtype)
    buffers += 4 * padded_bytes((heads, rows, width), dtype)
    row_block, key_block = (heads, rows, width), (heads, keys, width)
    scores = padded_bytes((heads, rows, keys), jnp.float32)
    copies = product_bytes(row_block, key_block, (heads, rows, keys), dtype) + 2 * scores
    return buffers + online_softmax.scratch_bytes(heads, rows, width) + copies


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
    sizes = check(q, k, v, layout=layout)
    return (
        platform_refusal(platform)
        or dtype_refusal(q=q, k=k, v=v)
        or (_merge_refusal(sizes, layout) if config.merge_heads else None)
        or memory_refusal(vmem_of(tiles_of(sizes, config), k.dtype), platform)
    )


def _merge_refusal(sizes: Sizes, layout: Layout) -> str | None:
    if layout == "bhsd":
        return 'merge_heads is for layout "bshd"; in "bhsd" the keys of a head lie together already'
    if sizes.key_heads in (2, 4) or sizes.key_heads % 8 == 0:
        return None
    return (
        f"merge_heads needs 2, 4 or a multiple of 8 key heads, which fill whole tiles, but there "
        f"{'is' if sizes.key_heads == 1 else 'are'} {sizes.key_heads}"
    )


def schedules(
    q: Operand, k: Operand, v: Operand, *, layout: Layout = "bshd", platform: str
) -> list[Config]:
    """Configurations worth trying that the platform holds, the likeliest first.

    Different entries give different blocks for this case. Empty if the kernel refuses it anyhow.
    """
    sizes = check(q, k, v, layout=layout)
    found: dict[Tiles, Config] = {}
    for block_s, merge in itertools.product((512, 256, 1024, 128, 2048, 4096), (True, False)):
        config = Config(block_s, merge)
        if refuses(q, k, v, layout=layout, config=config, platform=platform) is None:
            found.setdefault(tiles_of(sizes, config), config)
    order = cheapest_first(found, lambda tiles: traffic_of(tiles, itemsize_of(k.dtype)))
    # Where merging is held, XLA copies the cache for the others.
    return [found[tiles] for tiles in sorted(order, key=lambda tiles: not tiles.merged)]


def traffic_of(tiles: Tiles, itemsize: int) -> Traffic:
    """Of a full cache: how much of it is visible is not known when a schedule is chosen."""
    sizes = tiles.sizes
    key_bytes = 2 * sizes.key_heads * sizes.width * itemsize
    moved = sizes.batch * tiles.key_blocks * tiles.keys * key_bytes
    return Traffic(moved, tiles.keys * key_bytes, sizes.batch * tiles.key_blocks)
