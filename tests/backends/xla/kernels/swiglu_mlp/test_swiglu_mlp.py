"""swiglu_mlp against its reference, and the reference against float64 numpy."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.backends.xla.kernels.base import DTYPES, Operands, assert_near, run, shapes_of, wide
from tkcc.backends.xla.kernels.swiglu_mlp import (
    ACTIVATIONS,
    Config,
    reference,
    refuses,
    schedules,
    swiglu_mlp,
    vmem_bytes,
)

Sizes = tuple[int, int, int, int]

# (M, K, F, N): one row, blocks that fit, and edges that no block divides.
CASES = [
    ((1, 128, 128, 128), Config(16, 128, 128, 128), "silu", False),
    ((8, 256, 512, 256), Config(32, 256, 128, 256), "gelu", True),
    ((5, 100, 300, 70), Config(16, 256, 256, 256), "gelu_tanh", False),
    ((5, 100, 300, 70), Config(), "silu", True),
    ((37, 384, 200, 520), Config(32, 128, 256, 256), "relu", True),
    ((40, 300, 390, 260), Config(16, 256, 128, 128), "silu", False),
]


def operands(sizes: Sizes, dtype: Any, transposed: bool) -> list[jax.Array]:
    rows, inner, hidden, columns = sizes
    made = Operands(rows)

    def weight(before: int, after: int) -> jax.Array:
        shape = (after, before) if transposed else (before, after)
        return made.normal(shape, dtype, 2.0 * before**-0.5)

    x = made.normal((rows, inner), dtype)
    return [x, weight(inner, hidden), weight(inner, hidden), weight(hidden, columns)]


def activate(name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if name == "silu":
        return x / (1.0 + np.exp(-x))
    if name == "gelu":
        return x * np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2.0)))(x)
    if name == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    assert name == "relu"
    return np.maximum(x, 0.0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_is_the_formula_in_float64(dtype: Any, activation: str) -> None:
    transposed = activation == "gelu"
    arrays = operands((37, 128, 200, 96), dtype, transposed)
    x, gate, up, down = wide(*arrays)
    if transposed:
        gate, up, down = gate.T, up.T, down.T
    want = (activate(activation, x @ gate) * (x @ up)) @ down
    form: dict[str, Any] = {"activation": activation, "transposed": transposed}
    got = run(functools.partial(reference, **form), *arrays)
    assert got.dtype == dtype
    assert_near(got, want, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "config", "activation", "transposed"), CASES)
def test_kernel_gives_what_the_reference_gives(
    sizes: Sizes, config: Config, activation: str, transposed: bool, dtype: Any
) -> None:
    arrays = operands(sizes, dtype, transposed)
    form: dict[str, Any] = {"activation": activation, "transposed": transposed}
    got = run(functools.partial(swiglu_mlp, **form, config=config, interpret=True), *arrays)
    assert got.dtype == dtype
    assert_near(got, run(functools.partial(reference, **form), *arrays), dtype)


def test_kernel_is_right_where_the_caller_uses_64_bit_types() -> None:
    arrays = operands((5, 100, 300, 70), jnp.float32, False)
    want = reference(*arrays)
    with jax.enable_x64(True):
        kernel = functools.partial(swiglu_mlp, config=Config(16, 128, 128, 128), interpret=True)
        got = run(kernel, *arrays)
    assert_near(got, want, jnp.float32)


def test_unknown_activation_is_named_with_the_known_ones() -> None:
    arrays = operands((4, 128, 128, 128), jnp.float32, False)
    with pytest.raises(ValueError, match="'swish' is none of silu, gelu, gelu_tanh, relu"):
        swiglu_mlp(*arrays, activation="swish", config=Config(), interpret=True)


def test_shapes_that_do_not_belong_together_are_named() -> None:
    x, gate, up, down = operands((4, 128, 256, 128), jnp.float32, False)
    with pytest.raises(ValueError, match=r"w_up has shape \(128, 128\), but must be \[K=128"):
        refuses(x, gate, up[:, :128], down, config=Config(), platform="cpu")
    with pytest.raises(ValueError, match=r"w_down has shape \(128, 128\), but must be \[F=256, N"):
        refuses(x, gate, up, down[:128], config=Config(), platform="cpu")


def test_mixed_dtypes_are_refused_with_the_reason() -> None:
    x, gate, up, down = operands((4, 128, 128, 128), jnp.float32, False)
    half = down.astype(jnp.float16)
    with pytest.raises(NotImplementedError, match="w_down is float16; the kernel holds"):
        swiglu_mlp(x, gate, up, half, config=Config(), interpret=True)


def test_vmem_grows_with_every_block() -> None:
    shapes = shapes_of(*operands((512, 512, 512, 512), jnp.bfloat16, False))
    least = vmem_bytes(*shapes, config=Config(128, 128, 128, 128))
    for at in range(4):
        blocks = [256 if i == at else 128 for i in range(4)]
        assert vmem_bytes(*shapes, config=Config(*blocks)) > least


def test_wide_results_are_refused_where_their_sum_exceeds_vmem() -> None:
    shapes = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        for shape in ((512, 8192), (8192, 1024), (8192, 1024), (1024, 65536))
    ]
    reason = refuses(*shapes, config=Config(block_m=512), platform="tpu-v5e")
    assert reason is not None
    assert "MiB of VMEM" in reason
    found = schedules(*shapes, platform="tpu-v5e")
    assert found
    assert all(candidate.block_m < 512 for candidate in found)
