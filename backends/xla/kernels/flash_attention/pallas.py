"""flash_attention as one Pallas kernel for the TPU (Dao et al. 2022, "FlashAttention").

Grid (batch, key heads, query blocks, key blocks), the last fastest. A step multiplies one block of
queries, of each query head that shares a key head in turn, with one block of keys; scores never
leave VMEM, and the running softmax stays there too. Bounds of what each block of queries sees are
prefetched as scalars: key blocks that no query of the block sees are neither moved nor computed,
and those that every query sees whole are not masked. Heads go before queries first, a copy that XLA
makes of q and the result, and of k and v unless their layout is "bhsd".
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tkcc.backends.xla.kernels import online_softmax
from tkcc.backends.xla.kernels.attention import Layout, Sizes, check_visibility, visible_range
from tkcc.backends.xla.kernels.flash_attention.base import NAME, check
from tkcc.backends.xla.kernels.flash_attention.config import (
    BOUNDS,
    Config,
    Tiles,
    refuses,
    tiles_of,
    traffic_of,
    vmem_of,
)
from tkcc.backends.xla.kernels.platforms import vmem_limit
from tkcc.backends.xla.kernels.tiling import (
    MASKED,
    itemsize_of,
    keep_below,
    narrow_integers,
    product,
    struct,
)


@narrow_integers
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
    tiles = tiles_of(sizes, config)
    first, stop = visible_range(sizes, positions, lengths, causal=causal, window=window)
    if layout == "bshd":
        k, v = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
    call = _call(tiles, scale, q.dtype, interpret)
    bounds = block_bounds(first, stop, tiles)
    out = call(bounds, _heads_first(q, sizes), jnp.stack([first, stop], axis=-1), k, v)
    return jnp.moveaxis(out, 3, 1).reshape(q.shape)


def _heads_first(q: jax.Array, sizes: Sizes) -> jax.Array:
    """q as [batch, key heads, group, queries, width]."""
    grouped = q.reshape(sizes.batch, sizes.queries, sizes.key_heads, sizes.group, sizes.width)
    return jnp.moveaxis(grouped, 1, 3)


def block_bounds(first: jax.Array, stop: jax.Array, tiles: Tiles) -> jax.Array:
    """BOUNDS numbers per block of queries, flat, batch slowest: the range of keys that any query
    of the block sees, and the range that all see."""
    padding = ((0, 0), (0, tiles.query_blocks * tiles.queries - tiles.sizes.queries))
    blocks = (tiles.sizes.batch, tiles.query_blocks, tiles.queries)
    first, stop = (jnp.pad(edge, padding, mode="edge").reshape(blocks) for edge in (first, stop))
    any_sees = jnp.min(first, axis=-1), jnp.max(stop, axis=-1)
    all_see = jnp.max(first, axis=-1), jnp.min(stop, axis=-1)
    return jnp.stack([*any_sees, *all_see], axis=-1).reshape(-1)


def _call(tiles: Tiles, scale: float, dtype: Any, interpret: bool) -> Any:
    sizes = tiles.sizes
    rows_spec = pl.BlockSpec(
        (1, 1, sizes.group, tiles.queries, sizes.width), lambda b, h, t, s, bounds: (b, h, 0, t, 0)
    )
    ranges_spec = pl.BlockSpec((1, tiles.queries, 2), lambda b, h, t, s, bounds: (b, t, 0))
    keys_spec = pl.BlockSpec((1, 1, tiles.keys, sizes.width), key_index(tiles))
    shape = (sizes.batch, sizes.key_heads, sizes.group, sizes.queries, sizes.width)
    return pl.pallas_call(
        functools.partial(_kernel, tiles=tiles, scale=scale),
        name=NAME,
        out_shape=struct(shape, dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=tiles.grid,
            in_specs=[rows_spec, ranges_spec, keys_spec, keys_spec],
            out_specs=rows_spec,
            scratch_shapes=online_softmax.scratch(sizes.group, tiles.queries, sizes.width),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit(vmem_of(tiles, dtype)),
        ),
        cost_estimate=_cost(tiles, dtype),
        interpret=interpret,
    )


def _cost(tiles: Tiles, dtype: Any) -> pl.CostEstimate:
    sizes = tiles.sizes
    scores = sizes.batch * sizes.heads * sizes.queries * sizes.keys
    return pl.CostEstimate(
        flops=4 * scores * sizes.width,
        transcendentals=scores,
        bytes_accessed=traffic_of(tiles, itemsize_of(dtype)).moved,
    )


def _bounds(bounds_ref: Any, b: Any, t: Any, tiles: Tiles) -> list[Any]:
    at = (b * tiles.query_blocks + t) * BOUNDS
    return [bounds_ref[at + i] for i in range(BOUNDS)]


def key_index(tiles: Tiles) -> Any:
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
    tiles: Tiles,
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
    tiles: Tiles,
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

    lax.fori_loop(np.int32(0), np.int32(tiles.sizes.group), add_head, None)


def _visible(range_ref: Any, start: Any, tiles: Tiles) -> jax.Array:
    """Which query of the block sees which key, [1, queries, keys]; start is the first key."""
    key = start + lax.broadcasted_iota(jnp.int32, (1, tiles.queries, tiles.keys), 2)
    visible: jax.Array = (key >= range_ref[:, :, 0:1]) & (key < range_ref[:, :, 1:2])
    return visible
