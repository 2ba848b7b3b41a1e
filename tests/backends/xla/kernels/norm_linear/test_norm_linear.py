"""norm_linear against its reference, and the reference against float64 numpy."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.backends.xla.kernels.base import DTYPES, Operands, assert_near, run, shapes_of, wide
from tkcc.backends.xla.kernels.norm_linear import (
    Config,
    norm_linear,
    reference,
    refuses,
    schedules,
    vmem_bytes,
)

EPS = 1e-5

# (M, K, N): one row, blocks that fit, and edges that no block divides.
SIZES = [(1, 128, 128), (8, 256, 384), (5, 100, 70), (37, 384, 200), (130, 300, 513)]
CONFIGS = [Config(16, 128, 128), Config(32, 256, 256), Config(128, 512, 512)]


def operands(sizes: tuple[int, int, int], dtype: Any, transposed: bool) -> list[jax.Array]:
    rows, inner, columns = sizes
    made = Operands(rows)
    shape = (columns, inner) if transposed else (inner, columns)
    x = made.normal((rows, inner), dtype, 3.0)
    return [x, made.normal((inner,), dtype), made.normal(shape, dtype, inner**-0.5)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_is_the_formula_in_float64(dtype: Any, transposed: bool) -> None:
    arrays = operands((37, 384, 200), dtype, transposed)
    x, w_norm, w = wide(*arrays)
    normed = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * w_norm
    want = normed @ (w.T if transposed else w)
    got = run(functools.partial(reference, eps=EPS, transposed=transposed), *arrays)
    assert got.dtype == dtype
    assert_near(got, want, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("sizes", "config", "transposed"),
    [(sizes, CONFIGS[i % 3], bool(i % 2)) for i, sizes in enumerate(SIZES)]
    + [((130, 300, 513), CONFIGS[0], True), ((37, 384, 200), CONFIGS[2], False)],
)
def test_kernel_gives_what_the_reference_gives(
    sizes: tuple[int, int, int], config: Config, transposed: bool, dtype: Any
) -> None:
    arrays = operands(sizes, dtype, transposed)
    form: dict[str, Any] = {"eps": EPS, "transposed": transposed}
    got = run(functools.partial(norm_linear, **form, config=config, interpret=True), *arrays)
    assert got.dtype == dtype
    assert_near(got, run(functools.partial(reference, **form), *arrays), dtype)


def test_float32_norm_weight_with_bfloat16_rows_is_held() -> None:
    x, w_norm, w = operands((20, 256, 128), jnp.bfloat16, False)
    w_norm = w_norm.astype(jnp.float32) + 1e-3
    got = norm_linear(x, w_norm, w, eps=EPS, config=Config(), interpret=True)
    assert_near(got, reference(x, w_norm, w, eps=EPS), jnp.bfloat16)


def test_zero_rows_are_kept_from_dividing_by_zero_by_eps() -> None:
    x, w_norm, w = operands((4, 128, 128), jnp.float32, False)
    got = norm_linear(jnp.zeros_like(x), w_norm, w, eps=EPS, config=Config(), interpret=True)
    np.testing.assert_array_equal(got, 0.0)


def test_kernel_is_right_where_the_caller_uses_64_bit_types() -> None:
    arrays = operands((37, 384, 200), jnp.float32, False)
    want = reference(*arrays, eps=EPS)
    with jax.enable_x64(True):
        kernel = functools.partial(norm_linear, eps=EPS, config=Config(16, 128), interpret=True)
        got = run(kernel, *arrays)
    assert got.dtype == jnp.float32
    assert_near(got, want, jnp.float32)


def test_shapes_that_do_not_belong_together_are_named() -> None:
    x, w_norm, w = operands((4, 128, 256), jnp.float32, False)
    with pytest.raises(ValueError, match=r"w has shape \(128, 256\), but must be \[N, K=128\]"):
        norm_linear(x, w_norm, w, eps=EPS, transposed=True, config=Config(), interpret=True)
    with pytest.raises(ValueError, match=r"w_norm has shape \(256,\)"):
        refuses(x, w[0], w, config=Config(), platform="cpu")


def test_mixed_dtypes_are_refused_with_the_reason() -> None:
    x, w_norm, w = operands((4, 128, 128), jnp.float32, False)
    narrow = w.astype(jnp.bfloat16)
    reason = refuses(x, w_norm, narrow, config=Config(), platform="cpu")
    assert reason == "operands must share one dtype, but x is float32, w is bfloat16"
    with pytest.raises(NotImplementedError, match="must share one dtype"):
        norm_linear(x, w_norm, narrow, eps=EPS, config=Config(), interpret=True)


def test_rows_too_long_for_vmem_are_refused_on_the_tpu_only() -> None:
    x = jax.ShapeDtypeStruct((512, 65536), jnp.bfloat16)
    w_norm = jax.ShapeDtypeStruct((65536,), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((65536, 1024), jnp.bfloat16)
    config = Config(block_m=512)
    reason = refuses(x, w_norm, w, config=config, platform="tpu-v5e")
    assert reason is not None
    assert "MiB of VMEM" in reason
    assert refuses(x, w_norm, w, config=config, platform="cpu") is None
    found = schedules(x, w_norm, w, platform="tpu-v5e")
    assert found
    assert all(candidate.block_m < 512 for candidate in found)


def test_vmem_grows_with_every_block() -> None:
    shapes = shapes_of(*operands((1024, 1024, 1024), jnp.bfloat16, False))
    least = vmem_bytes(*shapes, config=Config(128, 128, 128))
    for config in (Config(256, 128, 128), Config(128, 256, 128), Config(128, 128, 256)):
        assert vmem_bytes(*shapes, config=config) > least


def test_one_row_reads_large_blocks_of_weights_first() -> None:
    shapes = shapes_of(*operands((1, 4096, 4096), jnp.bfloat16, False))
    best = schedules(*shapes, platform="tpu-v6e")[0]
    assert best.block_n * best.block_k >= 1024 * 1024
