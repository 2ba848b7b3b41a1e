"""decode_attention as one Pallas kernel for the TPU.

Grid (batch, key blocks), the last fastest. A step holds one block of keys and values of all key
heads; the running softmax of all query heads stays in VMEM. The range of visible keys is prefetched
as scalars: step i takes the i-th block of that range, and steps past it neither move nor compute.

A "bshd" cache is used in one of two ways (`Config.merge_heads`). Merged, a block [keys, key heads,
width] is read as it lies and taken as keys * key_heads rows; every query head is multiplied with
all of them, and those of other heads are masked: the matrix unit has rows to spare. Otherwise key
heads are brought before keys by XLA, which costs nothing where it keeps the cache in that order in
HBM anyway, as it does where the number of key heads fills no tile, and else a copy of the cache.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tkcc.backends.xla.kernels import online_softmax
from tkcc.backends.xla.kernels.attention import Layout, Sizes, check_visibility, visible_range
from tkcc.backends.xla.kernels.decode_attention.base import NAME, check
from tkcc.backends.xla.kernels.operands import Operand, dtype_refusal
from tkcc.backends.xla.kernels.platforms import memory_refusal, platform_refusal, vmem_limit
from tkcc.backends.xla.kernels.schedule import Traffic, cheapest_first
from tkcc.backends.xla.kernels.tiling import (
    LANES,
    MASKED,
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
    """Keys per block, and whether a "bshd" block is used with its key heads merged.

    A block larger than the cache is cut to it. Merged is better wherever it is not refused.
    """

    block_s: int = 512
    merge_heads: bool = False

    def __post_init__(self) -> None:
        require_multiple("block_s", self.block_s, LANES)


@dataclass(frozen=True)
class _Tiles:
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


def _tiles(sizes: Sizes, config: Config) -> _Tiles:
    return _Tiles(sizes, config.merge_heads, clip(config.block_s, sizes.keys, LANES))


def vmem_bytes(
    q: Operand, k: Operand, v: Operand, *, layout: Layout = "bshd", config: Config
) -> int:
    """Upper estimate of the VMEM that one TensorCore needs, in bytes.

    Blocks of k, v, q and the result are double-buffered; the running softmax, rearranged keys and
    values, and the compiler's copies around the two products come on top.
    """
    return _vmem_bytes(_tiles(check(q, k, v, layout=layout), config), k.dtype)


def _vmem_bytes(tiles: _Tiles, dtype: Any) -> int:
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
        or memory_refusal(_vmem_bytes(_tiles(sizes, config), k.dtype), platform)
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
    found: dict[_Tiles, Config] = {}
    merge = _merge_refusal(sizes, layout) is None
    for block_s in (512, 256, 1024, 128, 2048, 4096):
        config = Config(block_s, merge)
        if refuses(q, k, v, layout=layout, config=config, platform=platform) is None:
            found.setdefault(_tiles(sizes, config), config)
    order = cheapest_first(found, lambda tiles: _traffic(tiles, jnp.dtype(k.dtype).itemsize))
    return [found[tiles] for tiles in order]


def _traffic(tiles: _Tiles, itemsize: int) -> Traffic:
    """Of a full cache: how much of it is visible is not known when a schedule is chosen."""
    sizes = tiles.sizes
    key_bytes = 2 * sizes.key_heads * sizes.width * itemsize
    moved = sizes.batch * tiles.key_blocks * tiles.keys * key_bytes
    return Traffic(moved, tiles.keys * key_bytes, sizes.batch * tiles.key_blocks)


def decode_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    lengths: jax.Array | None = None,
    *,
    layout: Layout = "bshd",
    window: int | None = None,
    scale: float,
    config: Config,
    interpret: bool,
) -> jax.Array:
    """Attention of one query per sequence in one kernel; `reference` says what is computed.

    q [B, 1, H, D], k and v [B, S, KH, D] ([B, KH, S, D] for layout "bhsd"), all float32 or all
    bfloat16, positions int32 [B, 1], lengths int32 [B] -> [B, 1, H, D] in q's dtype. Raises
    ValueError for arguments that do not belong together, NotImplementedError for what the kernel
    does not hold. interpret runs it without a TPU, slowly.
    """
    sizes = check(q, k, v, layout=layout)
    check_visibility(NAME, sizes, positions, lengths, window)
    reason = refuses(q, k, v, layout=layout, config=config, platform="cpu")
    if reason is not None:
        raise NotImplementedError(f"{NAME}: {reason}")
    if layout == "bshd" and not config.merge_heads:
        k, v = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
    tiles = _tiles(sizes, config)
    first, stop = visible_range(sizes, positions, lengths, causal=True, window=window)
    grouped = q.reshape(sizes.batch, *tiles.rows, sizes.width)
    out = _call(tiles, scale, q.dtype, interpret)(first[:, 0], stop[:, 0], grouped, k, v)
    return out.reshape(q.shape)


def _call(tiles: _Tiles, scale: float, dtype: Any, interpret: bool) -> Any:
    sizes = tiles.sizes
    shape = (*tiles.rows, sizes.width)
    rows_spec = pl.BlockSpec((1, *shape), lambda b, step, first, stop: (b, 0, 0, 0))
    cache_spec = pl.BlockSpec(tiles.cache_block, _cache_index(tiles))
    return pl.pallas_call(
        functools.partial(_kernel, tiles=tiles, scale=scale),
        name=NAME,
        out_shape=jax.ShapeDtypeStruct((sizes.batch, *shape), dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(sizes.batch, tiles.key_blocks),
            in_specs=[rows_spec, cache_spec, cache_spec],
            out_specs=rows_spec,
            scratch_shapes=online_softmax.scratch(*shape),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit(_vmem_bytes(tiles, dtype)),
        ),
        cost_estimate=_cost(tiles, dtype),
        interpret=interpret,
    )


def _cost(tiles: _Tiles, dtype: Any) -> pl.CostEstimate:
    sizes = tiles.sizes
    scores = sizes.batch * sizes.heads * sizes.keys
    return pl.CostEstimate(
        flops=4 * scores * sizes.width,
        transcendentals=scores,
        bytes_accessed=_traffic(tiles, jnp.dtype(dtype).itemsize).moved,
    )


def _cache_index(tiles: _Tiles) -> Any:
    """Which block of keys a step reads: past the visible range, the last one again, which moves
    nothing."""

    def index(b: Any, step: Any, first: Any, stop: Any) -> tuple[Any, ...]:
        last = lax.div(jnp.maximum(stop[b] - 1, 0), tiles.keys)
        block = jnp.minimum(lax.div(first[b], tiles.keys) + step, last)
        return (b, block, 0, 0) if tiles.merged else (b, 0, block, 0)

    return index


def _kernel(
    first_ref: Any,
    stop_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    out_ref: Any,
    *state_refs: Any,
    tiles: _Tiles,
    scale: float,
) -> None:
    b, step = pl.program_id(0), pl.program_id(1)
    state = online_softmax.State(*state_refs)
    first, stop = first_ref[b], stop_ref[b]
    start = (lax.div(first, tiles.keys) + step) * tiles.keys

    @pl.when(step == 0)
    def _clear() -> None:
        online_softmax.clear(state)

    @pl.when((start < stop) & (first < stop))
    def _add() -> None:
        scores = product(q_ref[0], _by_head(k_ref[0], tiles), -1) * scale
        scores = jnp.where(_visible(scores.shape, first - start, stop - start, tiles), scores, MASKED)
        values = _by_head(v_ref[0], tiles)
        if tiles.ragged:
            values = keep_below(values, _rows_of(tiles.sizes.keys - start, tiles), -2)
        online_softmax.add(state, scores, values)

    @pl.when(step == tiles.key_blocks - 1)
    def _store() -> None:
        out_ref[0] = online_softmax.result(state, out_ref.dtype)


def _by_head(block: jax.Array, tiles: _Tiles) -> jax.Array:
    """A block of the cache as [products side by side, keys, width]."""
    return block.reshape(tiles.rows[0], tiles.keys_per_row, tiles.sizes.width)


def _rows_of(keys: Any, tiles: _Tiles) -> Any:
    """Keys as a number of rows of what `_by_head` gives."""
    return keys * tiles.sizes.key_heads if tiles.merged else keys


def _visible(shape: tuple[int, ...], first: Any, stop: Any, tiles: _Tiles) -> jax.Array:
    """Which scores count: keys from first to below stop, and of the query's own key head."""
    row = lax.broadcasted_iota(jnp.int32, shape, 2)
    visible = (row >= _rows_of(first, tiles)) & (row < _rows_of(stop, tiles))
    if tiles.merged:
        head = lax.broadcasted_iota(jnp.int32, shape, 1)
        visible &= lax.rem(row, tiles.sizes.key_heads) == lax.div(head, tiles.sizes.group)
    return visible
