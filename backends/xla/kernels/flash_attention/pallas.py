"""flash_attention as one Pallas kernel for the TPU (Dao et al. 2022, "FlashAttention").

Grid (batch, key heads, query blocks, key blocks), the last fastest. A step multiplies one block of
queries, of all query heads that share a key head, with one block of keys; scores never leave VMEM,
and the running softmax stays there too. Bounds of what each block of queries sees are prefetched as
scalars: key blocks that no query of the block sees are neither moved nor computed, and those that
every query sees whole are not masked. Heads go before queries first, a copy that XLA makes of q and
the result, and of k and v unless their layout is "bhsd".
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

from tkcc.backends.xla.kernels import online_softmax
from tkcc.backends.xla.kernels.attention import Layout, Sizes, check_visibility, visible_range
from tkcc.backends.xla.kernels.flash_attention.base import NAME, check
from tkcc.backends.xla.kernels.operands import Operand, dtype_refusal
from tkcc.backends.xla.kernels.platforms import memory_refusal, platform_refusal, vmem_limit
from tkcc.backends.xla.kernels.schedule import STEP_PRODUCTS, Traffic, cheapest_first
from tkcc.backends.xla.kernels.tiling import (
    LANES,
    MASKED,
    ROWS,
    ceil_div,
    clip,
    keep_below,
    padded_bytes,
    product,
    product_bytes,
    require_multiple,
)

BOUNDS = 4
"""Scalars per block of queries; see `_block_bounds`."""

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
class _Tiles:
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


def _tiles(sizes: Sizes, config: Config) -> _Tiles:
    queries = clip(config.block_t, sizes.queries, ROWS)
    return _Tiles(sizes, queries, clip(config.block_s, sizes.keys, LANES))


def vmem_bytes(
    q: Operand, k: Operand, v: Operand, *, layout: Layout = "bshd", config: Config
) -> int:
    """Upper estimate of the VMEM that one TensorCore needs, in bytes.

    Blocks of q, k, v, ranges and the result are double-buffered; the running softmax, scores and
    the compiler's copies around the two products come on top.
    """
    return _vmem_bytes(_tiles(check(q, k, v, layout=layout), config), k.dtype)


def _vmem_bytes(tiles: _Tiles, dtype: Any) -> int:
    row_block, key_block = (tiles.rows, tiles.sizes.width), (tiles.keys, tiles.sizes.width)
    score_block = (tiles.rows, tiles.keys)
    ranges = padded_bytes((tiles.queries, 2), jnp.int32)
    buffers = 4 * (padded_bytes(row_block, dtype) + padded_bytes(key_block, dtype)) + 2 * ranges
    scores = padded_bytes(score_block, jnp.float32)
    copies = product_bytes(row_block, key_block, score_block, dtype)
    copies += product_bytes(score_block, key_block, row_block, dtype) + scores
    return buffers + online_softmax.scratch_bytes(1, *row_block) + copies


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
    tiles = _tiles(check(q, k, v, layout=layout), config)
    return (
        platform_refusal(platform)
        or dtype_refusal(q=q, k=k, v=v)
        or _scalar_refusal(tiles)
        or memory_refusal(_vmem_bytes(tiles, k.dtype), platform)
    )


def _scalar_refusal(tiles: _Tiles) -> str | None:
    needed = 4 * BOUNDS * tiles.sizes.batch * tiles.query_blocks
    if needed <= SCALAR_BYTES:
        return None
    return (
        f"the bounds of {tiles.sizes.batch} x {tiles.query_blocks} query blocks need {needed} bytes "
        f"of scalar memory, and may take {SCALAR_BYTES}; use a larger block_t or a smaller batch"
    )


def schedules(
    q: Operand, k: Operand, v: Operand, *, layout: Layout = "bshd", platform: str
) -> list[Config]:
    """Configurations worth trying that the platform holds, the likeliest first.

    Different entries give different blocks for this case. Empty if the kernel refuses it anyhow.
    """
    sizes = check(q, k, v, layout=layout)
    found: dict[_Tiles, Config] = {}
    for block_t, block_s in itertools.product((128, 256, 512, 64, 32, 1024), (512, 1024, 256, 128)):
        config = Config(block_t, block_s)
        if refuses(q, k, v, layout=layout, config=config, platform=platform) is None:
            found.setdefault(_tiles(sizes, config), config)
    dtype = jnp.dtype(k.dtype)
    limit = STEP_PRODUCTS[dtype.name]
    quick = [tiles for tiles in found if tiles.rows * tiles.keys * sizes.width <= limit]
    order = cheapest_first(quick, lambda tiles: _traffic(tiles, dtype.itemsize))
    return [found[tiles] for tiles in order]


def _traffic(tiles: _Tiles, itemsize: int) -> Traffic:
    """Of queries that see every key: what they see is not known when a schedule is chosen."""
    batch, key_heads, query_blocks, key_blocks = tiles.grid
    row_bytes = 2 * tiles.sizes.width * itemsize
    first = (tiles.rows + tiles.keys) * row_bytes
    per_block = (tiles.rows + key_blocks * tiles.keys) * row_bytes
    blocks = batch * key_heads * query_blocks
    return Traffic(blocks * per_block, first, blocks * key_blocks)


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    lengths: jax.Array | None = None,
    *,
    layout: Layout = "bshd",
    causal: bool = True,
    window: int | None = None,
    scale: float,
    config: Config,
    interpret: bool,
) -> jax.Array:
    """Attention of many queries per sequence in one kernel; `reference` says what is computed.

    q [B, T, H, D], k and v [B, S, KH, D] ([B, KH, S, D] for layout "bhsd"), all float32 or all
    bfloat16, positions int32 [B, T], lengths int32 [B] -> [B, T, H, D] in q's dtype. Raises
    ValueError for arguments that do not belong together, NotImplementedError for what the kernel
    does not hold. interpret runs it without a TPU, slowly.
    """
    sizes = check(q, k, v, layout=layout)
    check_visibility(NAME, sizes, positions, lengths, window)
    reason = refuses(q, k, v, layout=layout, config=config, platform="cpu")
    if reason is not None:
        raise NotImplementedError(f"{NAME}: {reason}")
    tiles = _tiles(sizes, config)
    first, stop = visible_range(sizes, positions, lengths, causal=causal, window=window)
    if layout == "bshd":
        k, v = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
    call = _call(tiles, scale, q.dtype, interpret)
    bounds = _block_bounds(first, stop, tiles)
    out = call(bounds, _heads_first(q, sizes), jnp.stack([first, stop], axis=-1), k, v)
    return jnp.moveaxis(out, 3, 1).reshape(q.shape)


def _heads_first(q: jax.Array, sizes: Sizes) -> jax.Array:
    """q as [batch, key heads, group, queries, width]."""
    grouped = q.reshape(sizes.batch, sizes.queries, sizes.key_heads, sizes.group, sizes.width)
    return jnp.moveaxis(grouped, 1, 3)


def _block_bounds(first: jax.Array, stop: jax.Array, tiles: _Tiles) -> jax.Array:
    """BOUNDS numbers per block of queries, flat, batch slowest: the range of keys that any query
    of the block sees, and the range that all see."""
    padding = ((0, 0), (0, tiles.query_blocks * tiles.queries - tiles.sizes.queries))
    blocks = (tiles.sizes.batch, tiles.query_blocks, tiles.queries)
    first, stop = (jnp.pad(edge, padding, mode="edge").reshape(blocks) for edge in (first, stop))
    any_sees = jnp.min(first, axis=-1), jnp.max(stop, axis=-1)
    all_see = jnp.max(first, axis=-1), jnp.min(stop, axis=-1)
    return jnp.stack([*any_sees, *all_see], axis=-1).reshape(-1)


def _call(tiles: _Tiles, scale: float, dtype: Any, interpret: bool) -> Any:
    sizes = tiles.sizes
    rows_spec = pl.BlockSpec(
        (1, 1, sizes.group, tiles.queries, sizes.width), lambda b, h, t, s, bounds: (b, h, 0, t, 0)
    )
    ranges_spec = pl.BlockSpec((1, tiles.queries, 2), lambda b, h, t, s, bounds: (b, t, 0))
    keys_spec = pl.BlockSpec((1, 1, tiles.keys, sizes.width), _key_index(tiles))
    shape = (sizes.batch, sizes.key_heads, sizes.group, sizes.queries, sizes.width)
    return pl.pallas_call(
        functools.partial(_kernel, tiles=tiles, scale=scale),
        name=NAME,
        out_shape=jax.ShapeDtypeStruct(shape, dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=tiles.grid,
            in_specs=[rows_spec, ranges_spec, keys_spec, keys_spec],
            out_specs=rows_spec,
            scratch_shapes=online_softmax.scratch(sizes.group, tiles.queries, sizes.width),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit(_vmem_bytes(tiles, dtype)),
        ),
        cost_estimate=_cost(tiles, dtype),
        interpret=interpret,
    )


def _cost(tiles: _Tiles, dtype: Any) -> pl.CostEstimate:
    sizes = tiles.sizes
    scores = sizes.batch * sizes.heads * sizes.queries * sizes.keys
    return pl.CostEstimate(
        flops=4 * scores * sizes.width,
        transcendentals=scores,
        bytes_accessed=_traffic(tiles, jnp.dtype(dtype).itemsize).moved,
    )


def _bounds(bounds_ref: Any, b: Any, t: Any, tiles: _Tiles) -> list[Any]:
    at = (b * tiles.query_blocks + t) * BOUNDS
    return [bounds_ref[at + i] for i in range(BOUNDS)]


def _key_index(tiles: _Tiles) -> Any:
    """Which block of keys a step reads: past the visible range, the last one again, which moves
    nothing."""

    def index(b: Any, h: Any, t: Any, s: Any, bounds_ref: Any) -> tuple[Any, ...]:
        first, stop, _, _ = _bounds(bounds_ref, b, t, tiles)
        last = lax.div(jnp.maximum(stop - 1, 0), tiles.keys)
        return b, h, jnp.minimum(lax.div(first, tiles.keys) + s, last), 0

    return index


def _kernel(
    bounds_ref: Any,
    q_ref: Any,
    range_ref: Any,
    k_ref: Any,
    v_ref: Any,
    out_ref: Any,
    *state_refs: Any,
    tiles: _Tiles,
    scale: float,
) -> None:
    step = pl.program_id(3)
    state = online_softmax.State(*state_refs)
    bounds = _bounds(bounds_ref, pl.program_id(0), pl.program_id(2), tiles)
    any_first, any_stop, all_first, all_stop = bounds
    start = (lax.div(any_first, tiles.keys) + step) * tiles.keys
    seen = (start < any_stop) & (any_first < any_stop)
    whole = (start >= all_first) & (start + tiles.keys <= all_stop)

    @pl.when(step == 0)
    def _clear() -> None:
        online_softmax.clear(state)

    @pl.when(seen & whole)
    def _add_whole() -> None:
        _add_block(q_ref, k_ref, v_ref, state, tiles, scale, None)

    @pl.when(seen & ~whole)
    def _add_masked() -> None:
        visible = _visible(range_ref, start, tiles)
        _add_block(q_ref, k_ref, v_ref, state, tiles, scale, (start, visible))

    @pl.when(step == tiles.key_blocks - 1)
    def _store() -> None:
        out_ref[0, 0] = online_softmax.result(state, out_ref.dtype)


def _add_block(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    state: online_softmax.State,
    tiles: _Tiles,
    scale: float,
    masked: tuple[Any, jax.Array] | None,
) -> None:
    """Take a block of keys into the running softmax, one head of the group after another.

    The loop keeps the compiled step small. masked has the block's first key and `_visible`.
    """

    def add_head(head: Any, carry: None) -> None:
        one = pl.ds(head, 1)
        scores = product(q_ref[0, 0, one], k_ref[0], -1) * scale
        values = v_ref[0]
        if masked is not None:
            start, visible = masked
            scores = jnp.where(visible, scores, MASKED)
            if tiles.sizes.keys % tiles.keys:
                values = keep_below(values, tiles.sizes.keys - start, -2)
        head_state = online_softmax.State(*(ref.at[one] for ref in state))
        online_softmax.add(head_state, scores, values)
        return carry

    lax.fori_loop(0, tiles.sizes.group, add_head, None)


def _visible(range_ref: Any, start: Any, tiles: _Tiles) -> jax.Array:
    """Which query of the block sees which key, [1, queries, keys]; start is the first key."""
    key = start + lax.broadcasted_iota(jnp.int32, (1, tiles.queries, tiles.keys), 2)
    return (key >= range_ref[:, :, 0:1]) & (key < range_ref[:, :, 1:2])
