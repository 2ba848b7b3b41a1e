"""swiglu_mlp as one Pallas kernel for the TPU.

Grid (rows, hidden, step), the last fastest. For one block of the hidden dimension, the first steps
go through the inner dimension and gather gate and up; the last of them applies the activation; the
other steps go through the columns of w_down and add to a float32 sum of whole result rows. The
hidden activations stay in VMEM, and each weight is read once from HBM per block of rows. Block
indices stand still in the phase that does not use them, which moves nothing.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tkcc.backends.xla.kernels.platforms import vmem_limit
from tkcc.backends.xla.kernels.swiglu_mlp.base import NAME, check, gated
from tkcc.backends.xla.kernels.swiglu_mlp.config import (
    Config,
    Tiles,
    refuses,
    tiles_of,
    traffic_of,
    vmem_of,
)
from tkcc.backends.xla.kernels.tiling import (
    itemsize_of,
    keep_below,
    narrow_integers,
    product,
    struct,
)


@narrow_integers
def swiglu_mlp(
    x: jax.Array,
    w_gate: jax.Array,
    w_up: jax.Array,
    w_down: jax.Array,
    *,
    activation: str = "silu",
    transposed: bool = False,
    config: Config,
    interpret: bool,
) -> jax.Array:
    """(act(x @ w_gate) * (x @ w_up)) @ w_down in one kernel; `reference` says what is computed.

    x [M, K], w_gate and w_up [K, F], w_down [F, N] ([F, K] and [N, F] if transposed), all float32
    or all bfloat16 -> [M, N] in x's dtype. Raises ValueError for arguments that do not belong
    together, NotImplementedError for dtypes that the kernel does not hold. interpret runs it
    without a TPU, slowly.
    """
    operands = (x, w_gate, w_up, w_down)
    sizes = check(*operands, activation=activation, transposed=transposed)
    reason = refuses(*operands, transposed=transposed, config=config, platform="cpu")
    if reason is not None:
        raise NotImplementedError(f"{NAME}: {reason}")
    tiles = tiles_of(sizes, activation, transposed, config)
    call = pl.pallas_call(
        functools.partial(_kernel, tiles=tiles),
        name=NAME,
        grid=tiles.grid,
        in_specs=_input_specs(tiles),
        out_specs=pl.BlockSpec((tiles.rows, tiles.columns), _out_index(tiles)),
        out_shape=struct((sizes.rows, sizes.columns), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((tiles.rows, tiles.hidden), jnp.float32),
            pltpu.VMEM((tiles.rows, tiles.hidden), jnp.float32),
            pltpu.VMEM((tiles.rows, tiles.hidden), x.dtype),
            pltpu.VMEM((tiles.column_blocks, tiles.rows, tiles.columns), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=vmem_limit(vmem_of(tiles, x.dtype)),
        ),
        cost_estimate=_cost(tiles, x.dtype),
        interpret=interpret,
    )
    result: jax.Array = call(*operands)
    return result


def _cost(tiles: Tiles, dtype: Any) -> pl.CostEstimate:
    sizes = tiles.sizes
    return pl.CostEstimate(
        flops=2 * sizes.rows * sizes.hidden * (2 * sizes.inner + sizes.columns),
        transcendentals=sizes.rows * sizes.hidden,
        bytes_accessed=traffic_of(tiles, itemsize_of(dtype)).moved,
    )


def _input_specs(tiles: Tiles) -> list[pl.BlockSpec]:
    def inner_index(step: Any) -> Any:
        return jnp.minimum(step, tiles.inner_blocks - 1)

    def into_index(m: Any, f: Any, step: Any) -> tuple[Any, Any]:
        k = inner_index(step)
        return (f, k) if tiles.transposed else (k, f)

    def down_index(m: Any, f: Any, step: Any) -> tuple[Any, Any]:
        n = _column(tiles, step)
        return (n, f) if tiles.transposed else (f, n)

    return [
        pl.BlockSpec((tiles.rows, tiles.inner), lambda m, f, step: (m, inner_index(step))),
        pl.BlockSpec(tiles.into_block, into_index),
        pl.BlockSpec(tiles.into_block, into_index),
        pl.BlockSpec(tiles.down_block, down_index),
    ]


def _column(tiles: Tiles, step: Any) -> Any:
    return jnp.maximum(step - tiles.inner_blocks, 0)


def _out_index(tiles: Tiles) -> Any:
    """Only the last hidden block moves the output block: an earlier visit would write rubbish."""

    def index(m: Any, f: Any, step: Any) -> tuple[Any, Any]:
        return m, jnp.where(f == tiles.hidden_blocks - 1, _column(tiles, step), 0)

    return index


def _kernel(
    x_ref: Any,
    gate_w_ref: Any,
    up_w_ref: Any,
    down_w_ref: Any,
    out_ref: Any,
    gate_ref: Any,
    up_ref: Any,
    hidden_ref: Any,
    sum_ref: Any,
    *,
    tiles: Tiles,
) -> None:
    f, step = pl.program_id(1), pl.program_id(2)

    @pl.when(step < tiles.inner_blocks)
    def _into_hidden() -> None:
        _add_gate_and_up(x_ref, gate_w_ref, up_w_ref, gate_ref, up_ref, step, tiles)

    @pl.when(step == tiles.inner_blocks - 1)
    def _activate() -> None:
        hidden = gated(gate_ref[...], up_ref[...], tiles.activation, hidden_ref.dtype)
        hidden_ref[...] = _cut_hidden(hidden, f, -1, tiles)

    @pl.when(step >= tiles.inner_blocks)
    def _out_of_hidden() -> None:
        _add_down(hidden_ref, down_w_ref, sum_ref, out_ref, f, _column(tiles, step), tiles)


def _add_gate_and_up(
    x_ref: Any, gate_w_ref: Any, up_w_ref: Any, gate_ref: Any, up_ref: Any, k: Any, tiles: Tiles
) -> None:
    @pl.when(k == 0)
    def _clear() -> None:
        gate_ref[...] = jnp.zeros_like(gate_ref)
        up_ref[...] = jnp.zeros_like(up_ref)

    x = _cut_inner(x_ref[...], k, -1, tiles)
    for weight_ref, total_ref in ((gate_w_ref, gate_ref), (up_w_ref, up_ref)):
        weight = _cut_inner(weight_ref[...], k, tiles.contracted, tiles)
        total_ref[...] += product(x, weight, tiles.contracted)


def _add_down(
    hidden_ref: Any, weight_ref: Any, sum_ref: Any, out_ref: Any, f: Any, n: Any, tiles: Tiles
) -> None:
    weight = _cut_hidden(weight_ref[...], f, tiles.contracted, tiles)
    part = product(hidden_ref[...], weight, tiles.contracted)

    @pl.when(f == 0)
    def _begin() -> None:
        sum_ref[n] = part

    @pl.when(f > 0)
    def _add() -> None:
        sum_ref[n] += part

    @pl.when(f == tiles.hidden_blocks - 1)
    def _store() -> None:
        out_ref[...] = sum_ref[n].astype(out_ref.dtype)


def _cut_inner(block: jax.Array, k: Any, axis: int, tiles: Tiles) -> jax.Array:
    if tiles.sizes.inner % tiles.inner == 0:
        return block
    return keep_below(block, tiles.sizes.inner - k * tiles.inner, axis)


def _cut_hidden(block: jax.Array, f: Any, axis: int, tiles: Tiles) -> jax.Array:
    if tiles.sizes.hidden % tiles.hidden == 0:
        return block
    return keep_below(block, tiles.sizes.hidden - f * tiles.hidden, axis)
