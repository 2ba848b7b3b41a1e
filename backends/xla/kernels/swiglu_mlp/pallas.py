"""swiglu_mlp as one Pallas kernel for the TPU.

Grid (rows, hidden, step), the last fastest. For one block of the hidden dimension, the first steps
go through the inner dimension and gather gate and up; the last of them applies the activation; the
other steps go through the columns of w_down and add to a float32 sum of whole result rows. The
hidden activations stay in VMEM, and each weight is read once from HBM per block of rows. Block
indices stand still in the phase that does not use them, which moves nothing.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tkcc.backends.xla.kernels.operands import Operand, dtype_refusal
from tkcc.backends.xla.kernels.platforms import memory_refusal, platform_refusal, vmem_limit
from tkcc.backends.xla.kernels.schedule import STEP_PRODUCTS, Traffic, cheapest_first
from tkcc.backends.xla.kernels.swiglu_mlp.base import NAME, Sizes, check, gated
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
class _Tiles:
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


def _tiles(sizes: Sizes, activation: str, transposed: bool, config: Config) -> _Tiles:
    return _Tiles(
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
    return _vmem_bytes(_tiles(sizes, "silu", transposed, config), x.dtype)


def _vmem_bytes(tiles: _Tiles, dtype: Any) -> int:
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
    needed = _vmem_bytes(_tiles(sizes, activation, transposed, config), x.dtype)
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
    found: dict[_Tiles, Config] = {}
    for block_m, block_f, block_k in itertools.product(
        (512, 256, 128, 16), (512, 1024, 256), (512, 1024, 2048, 4096)
    ):
        config = Config(block_m, block_f, block_k, block_n=block_k)
        if refuses(*operands, transposed=transposed, config=config, platform=platform) is None:
            found.setdefault(_tiles(sizes, activation, transposed, config), config)
    dtype = jnp.dtype(x.dtype)
    quick = [tiles for tiles in found if _step_products(tiles) <= STEP_PRODUCTS[dtype.name]]
    order = cheapest_first(quick, lambda tiles: _traffic(tiles, dtype.itemsize))
    return [found[tiles] for tiles in order]


def _step_products(tiles: _Tiles) -> int:
    return tiles.rows * tiles.hidden * max(2 * tiles.inner, tiles.columns)


def _traffic(tiles: _Tiles, itemsize: int) -> Traffic:
    sizes, passes = tiles.sizes, tiles.hidden_blocks if tiles.inner_blocks > 1 else 1
    weights = tiles.row_blocks * sizes.hidden * (2 * sizes.inner + sizes.columns)
    activations = sizes.rows * (passes * sizes.inner + sizes.columns)
    first = tiles.inner * (tiles.rows + 2 * tiles.hidden) + tiles.hidden * tiles.columns
    steps = tiles.grid[0] * tiles.grid[1] * tiles.grid[2]
    return Traffic((weights + activations) * itemsize, first * itemsize, steps)


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
    tiles = _tiles(sizes, activation, transposed, config)
    return pl.pallas_call(
        functools.partial(_kernel, tiles=tiles),
        name=NAME,
        grid=tiles.grid,
        in_specs=_input_specs(tiles),
        out_specs=pl.BlockSpec((tiles.rows, tiles.columns), _out_index(tiles)),
        out_shape=jax.ShapeDtypeStruct((sizes.rows, sizes.columns), x.dtype),
        scratch_shapes=[
            pltpu.VMEM((tiles.rows, tiles.hidden), jnp.float32),
            pltpu.VMEM((tiles.rows, tiles.hidden), jnp.float32),
            pltpu.VMEM((tiles.rows, tiles.hidden), x.dtype),
            pltpu.VMEM((tiles.column_blocks, tiles.rows, tiles.columns), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=vmem_limit(_vmem_bytes(tiles, x.dtype)),
        ),
        cost_estimate=_cost(tiles, x.dtype),
        interpret=interpret,
    )(*operands)


def _cost(tiles: _Tiles, dtype: Any) -> pl.CostEstimate:
    sizes = tiles.sizes
    return pl.CostEstimate(
        flops=2 * sizes.rows * sizes.hidden * (2 * sizes.inner + sizes.columns),
        transcendentals=sizes.rows * sizes.hidden,
        bytes_accessed=_traffic(tiles, jnp.dtype(dtype).itemsize).moved,
    )


def _input_specs(tiles: _Tiles) -> list[pl.BlockSpec]:
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


def _column(tiles: _Tiles, step: Any) -> Any:
    return jnp.maximum(step - tiles.inner_blocks, 0)


def _out_index(tiles: _Tiles) -> Any:
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
    tiles: _Tiles,
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
    x_ref: Any, gate_w_ref: Any, up_w_ref: Any, gate_ref: Any, up_ref: Any, k: Any, tiles: _Tiles
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
    hidden_ref: Any, weight_ref: Any, sum_ref: Any, out_ref: Any, f: Any, n: Any, tiles: _Tiles
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


def _cut_inner(block: jax.Array, k: Any, axis: int, tiles: _Tiles) -> jax.Array:
    if tiles.sizes.inner % tiles.inner == 0:
        return block
    return keep_below(block, tiles.sizes.inner - k * tiles.inner, axis)


def _cut_hidden(block: jax.Array, f: Any, axis: int, tiles: _Tiles) -> jax.Array:
    if tiles.sizes.hidden % tiles.hidden == 0:
        return block
    return keep_below(block, tiles.sizes.hidden - f * tiles.hidden, axis)
