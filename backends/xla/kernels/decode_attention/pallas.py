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
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tkcc.backends.xla.kernels import online_softmax
from tkcc.backends.xla.kernels.attention import Layout, check_visibility, visible_range
from tkcc.backends.xla.kernels.decode_attention.base import NAME, check
from tkcc.backends.xla.kernels.decode_attention.config import (
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
    tiles = tiles_of(sizes, config)
    first, stop = visible_range(sizes, positions, lengths, causal=True, window=window)
    grouped = q.reshape(sizes.batch, *tiles.rows, sizes.width)
    out: jax.Array = _call(tiles, scale, q.dtype, interpret)(first[:, 0], stop[:, 0], grouped, k, v)
    return out.reshape(q.shape)


def _call(tiles: Tiles, scale: float, dtype: Any, interpret: bool) -> Any:
    sizes = tiles.sizes
    shape = (*tiles.rows, sizes.width)
    rows_spec = pl.BlockSpec((1, *shape), lambda b, step, first, stop: (b, 0, 0, 0))
    cache_spec = pl.BlockSpec(tiles.cache_block, cache_index(tiles))
    return pl.pallas_call(
        functools.partial(_kernel, tiles=tiles, scale=scale),
        name=NAME,
        out_shape=struct((sizes.batch, *shape), dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(sizes.batch, tiles.key_blocks),
            in_specs=[rows_spec, cache_spec, cache_spec],
            out_specs=rows_spec,
            scratch_shapes=online_softmax.scratch(*shape),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit(vmem_of(tiles, dtype)),
        ),
        cost_estimate=_cost(tiles, dtype),
        interpret=interpret,
    )


def _cost(tiles: Tiles, dtype: Any) -> pl.CostEstimate:
    sizes = tiles.sizes
    scores = sizes.batch * sizes.heads * sizes.keys
    return pl.CostEstimate(
        flops=4 * scores * sizes.width,
        transcendentals=scores,
        bytes_accessed=traffic_of(tiles, itemsize_of(dtype)).moved,
    )


def cache_index(tiles: Tiles) -> Any:
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
    tiles: Tiles,
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
        visible = _visible(scores.shape, first - start, stop - start, tiles)
        scores = jnp.where(visible, scores, MASKED)
        values = _by_head(v_ref[0], tiles)
        if tiles.ragged:
            values = keep_below(values, _rows_of(tiles.sizes.keys - start, tiles), -2)
        online_softmax.add(state, scores, values)

    @pl.when(step == tiles.key_blocks - 1)
    def _store() -> None:
        out_ref[0] = online_softmax.result(state, out_ref.dtype)


def _by_head(block: jax.Array, tiles: Tiles) -> jax.Array:
    """A block of the cache as [products side by side, keys, width]."""
    return block.reshape(tiles.rows[0], tiles.keys_per_row, tiles.sizes.width)


def _rows_of(keys: Any, tiles: Tiles) -> Any:
    """Keys as a number of rows of what `_by_head` gives."""
    return keys * tiles.sizes.key_heads if tiles.merged else keys


def _visible(shape: tuple[int, ...], first: Any, stop: Any, tiles: Tiles) -> jax.Array:
    """Which scores count: keys from first to below stop, and of the query's own key head."""
    row = lax.broadcasted_iota(jnp.int32, shape, 2)
    visible: jax.Array = (row >= _rows_of(first, tiles)) & (row < _rows_of(stop, tiles))
    if tiles.merged:
        head = lax.broadcasted_iota(jnp.int32, shape, 1)
        visible &= lax.rem(row, tiles.sizes.key_heads) == lax.div(head, tiles.sizes.group)
    return visible
