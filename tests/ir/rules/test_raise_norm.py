"""Plain norms become the named ops, with weights, biases and conversions taken in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.rules.raising import attributes, check, named, node, ops, plain, struct
from tkcc.frontends.lowering import lower

WIDTH = 24
DTYPES = ("f32", "bf16")


def widened(x: Any) -> Any:
    return x.astype(jnp.float32)


def square_of_mean(x: Any, w: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * w


def llama_in_transformers(x: Any, w: Any) -> Any:
    h = widened(x)
    h = h * jax.lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-5)
    return w * h.astype(x.dtype)


def weighted_before_the_cast(x: Any, w: Any) -> Any:
    h = widened(x)
    return (h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5) * widened(w)).astype(
        x.dtype
    )


def root_first(x: Any, w: Any) -> Any:
    h = widened(x)
    root = jax.lax.rsqrt(jnp.mean(jnp.square(h), -1, keepdims=True) + 1e-5)
    return (h * (root * w)).astype(x.dtype)


def divided(x: Any, w: Any) -> Any:
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5) * w


def reciprocal_root(x: Any, w: Any) -> Any:
    return w * (x * (1 / jnp.sqrt(jnp.sum(x * x, -1) / WIDTH + 1e-5))[..., None])


def half_power(x: Any, w: Any) -> Any:
    return x * (jnp.sum(x * x, -1, keepdims=True) * (1 / WIDTH) + 1e-5) ** -0.5 * w


def moved_weight(x: Any, w: Any) -> Any:
    return w.reshape(1, 1, -1) * square_of_mean(x, jnp.ones_like(w))


RMS = [
    square_of_mean,
    llama_in_transformers,
    weighted_before_the_cast,
    root_first,
    divided,
    reciprocal_root,
    half_power,
    moved_weight,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", RMS)
def test_spellings_of_rms_norm(f, dtype):
    args = struct(dtype, 2, 5, WIDTH), struct(dtype, WIDTH)
    after = check(plain(f, *args, parameters=("w",)))
    assert ops(after) == {"rms_norm": 1}
    found = attributes(after, "rms_norm")
    assert found["eps"] == pytest.approx(1e-5, rel=1e-2)
    assert found["plus_one"] is False
    assert node(after, "rms_norm").operands == after.function().inputs


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_plus_the_weight(dtype):
    def gemma(x: Any, w: Any) -> Any:
        h = widened(x)
        h = h * jax.lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)
        return (h * (1.0 + widened(w))).astype(x.dtype)

    args = struct(dtype, 2, 5, WIDTH), struct(dtype, WIDTH)
    after = check(plain(gemma, *args, parameters=("w",)))
    assert ops(after) == {"rms_norm": 1}
    assert attributes(after, "rms_norm")["plus_one"] is True
    assert attributes(after, "rms_norm")["eps"] == 1e-6


def test_without_a_weight_it_is_rms_normalize():
    def f(x: Any) -> Any:
        return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True))

    after = check(plain(f, struct("f32", 2, WIDTH)))
    assert ops(after) == {"rms_normalize": 1}
    assert attributes(after, "rms_normalize")["eps"] == 0.0


def test_a_norm_over_the_channels_of_heads():
    args = struct("bf16", 2, 5, 4, 8), struct("bf16", 8)

    def f(x: Any, w: Any) -> Any:
        return llama_in_transformers(x, w)

    after = check(plain(f, *args, parameters=("w",)))
    assert node(after, "rms_norm").operands[0].type.shape == (2, 5, 4, 8)


def test_weights_in_float32_over_bfloat16_give_float32():
    args = struct("bf16", 2, 5, WIDTH), struct("f32", WIDTH)
    after = check(plain(llama_in_transformers, *args, parameters=("w",)))
    assert ops(after) == {"rms_norm": 1}
    assert node(after, "rms_norm").result.type.dtype == "f32"


# --- layer norm -----------------------------------------------------------------------------------


def two_pass(x: Any, w: Any, b: Any) -> Any:
    h = x - x.mean(-1, keepdims=True)
    return h * jax.lax.rsqrt((h**2).mean(-1, keepdims=True) + 1e-5) * w + b


def with_var(x: Any, w: Any, b: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def fast_variance(x: Any, w: Any, b: Any) -> Any:
    h = widened(x)
    mean = h.mean(-1, keepdims=True)
    variance = jnp.maximum(jnp.mean(h * h, -1, keepdims=True) - mean * mean, 0.0)
    return ((h - mean) * (jax.lax.rsqrt(variance + 1e-5) * w) + b).astype(x.dtype)


def std(x: Any, w: Any, b: Any) -> Any:
    return b + w * (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1e-5) ** 0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [two_pass, with_var, fast_variance])
def test_spellings_of_layer_norm(f, dtype):
    args = struct(dtype, 2, 5, WIDTH), struct(dtype, WIDTH), struct(dtype, WIDTH)
    after = check(plain(f, *args, parameters=("w", "b")))
    assert ops(after) == {"layer_norm": 1}
    assert node(after, "layer_norm").operands == after.function().inputs


def test_a_layer_norm_without_scale_and_bias_has_a_weight_of_ones():
    def f(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    assert ops(check(plain(f, struct("f32", 2, WIDTH)))) == {"layer_norm": 1}


LAYERS: dict[str, Callable[[Any], Any]] = {
    "rms_norm": lambda dtype: nnx.RMSNorm(WIDTH, dtype=dtype, rngs=nnx.Rngs(0)),
    "layer_norm": lambda dtype: nnx.LayerNorm(WIDTH, dtype=dtype, rngs=nnx.Rngs(0)),
    "layer_norm ": lambda dtype: nnx.LayerNorm(
        WIDTH, dtype=dtype, use_fast_variance=False, use_bias=False, rngs=nnx.Rngs(0)
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_nnx(name, dtype):
    module = LAYERS[name](struct(dtype).dtype)
    after = check(lower(module, struct(dtype, 2, 5, WIDTH), recognise=False))
    assert ops(after) == {name.strip(): 1}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [flax.linen.RMSNorm, flax.linen.LayerNorm])
def test_layers_of_linen(layer, dtype):
    module, x = layer(dtype=struct(dtype).dtype), struct(dtype, 2, 5, WIDTH)
    variables = jax.eval_shape(lambda t: module.init(jax.random.key(0), t), x)
    after = check(lower(module, variables, x, recognise=False))
    assert ops(after) == {"rms_norm" if layer is flax.linen.RMSNorm else "layer_norm": 1}


# --- what must not be raised ----------------------------------------------------------------------

NEAR_MISSES = {
    "sum_instead_of_mean": lambda x: x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-5),
    "other_axis": lambda x: x * jax.lax.rsqrt(jnp.mean(x * x, 1, keepdims=True) + 1e-5),
    "two_axes": lambda x: x * jax.lax.rsqrt(jnp.mean(x * x, (1, 2), keepdims=True) + 1e-5),
    "eps_outside": lambda x: x / (jnp.sqrt(jnp.mean(x * x, -1, keepdims=True)) + 1e-5),
    "of_something_else": lambda x: (
        jnp.sin(x) * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
    ),
    "mean_of_x": lambda x: x * jax.lax.rsqrt(jnp.mean(x, -1, keepdims=True) ** 2 + 1e-5),
    "wrong_power": lambda x: x * jax.lax.rsqrt(jnp.mean(x**4, -1, keepdims=True) + 1e-5),
    "no_root": lambda x: x / (jnp.mean(x * x, -1, keepdims=True) + 1e-5),
    "multiplied_by_root": lambda x: x * jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5),
    "wrong_count": lambda x: x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) / 23 + 1e-5),
    "unbiased_variance": lambda x: (
        (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True, ddof=1) + 1e-5)
    ),
    "mean_of_another_axis": lambda x: (
        (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    ),
    "scaled_by_x_transposed": lambda x: (
        x * jax.lax.rsqrt(jnp.mean(x * x, -1) + 1e-5)[..., None].swapaxes(1, 2)
    ),
}


@pytest.mark.parametrize("f", NEAR_MISSES.values(), ids=NEAR_MISSES.keys())
def test_near_misses(f):
    x = np.random.default_rng(0).normal(size=(2, WIDTH, WIDTH)) + 1
    after = check(plain(lambda x: f(x), struct("f32", 2, WIDTH, WIDTH)), {"x": x})
    assert named(after) == {}


def test_x_that_is_not_centred_over_its_variance_is_no_layer_norm():
    def f(x: Any) -> Any:
        return x / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    assert named(check(plain(f, struct("f32", 2, WIDTH)))) == {}


def test_a_full_matrix_is_no_weight():
    def f(x: Any, w: Any) -> Any:
        return square_of_mean(x, w)

    after = check(plain(f, struct("f32", 2, 5, WIDTH), struct("f32", 5, WIDTH), parameters=("w",)))
    assert ops(after) == {"rms_normalize": 1, "lax.mul": 1}


def test_a_weight_over_another_axis_of_the_same_size_is_no_weight():
    def f(x: Any, w: Any) -> Any:
        return square_of_mean(x, w[:, None])

    args = struct("f32", 2, WIDTH, WIDTH), struct("f32", WIDTH)
    after = check(plain(f, *args, parameters=("w",)))
    assert ops(after) == {"rms_normalize": 1, "lax.mul": 1}


def test_a_normalised_value_that_others_read_stays():
    def f(x: Any, w: Any) -> Any:
        h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
        return h * w, h

    after = check(plain(f, struct("f32", 2, WIDTH), struct("f32", WIDTH), parameters=("w",)))
    assert ops(after) == {"rms_normalize": 1, "lax.mul": 1}


def test_no_rounding_is_added_to_a_float32_result():
    def f(x: Any) -> Any:
        h = widened(x)
        return h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5)

    after = check(plain(f, struct("bf16", 2, WIDTH)))
    assert node(after, "rms_normalize").operands[0].type.dtype == "f32"


def test_float64_code_around_float32_values_is_left_alone():
    with jax.enable_x64(True):

        def f(x: Any) -> Any:
            h = x.astype(jnp.float64)
            return x * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5).astype(x.dtype)

        before = plain(f, struct("f32", 2, WIDTH))
        assert named(check(before)) == {}


# --- any combination ------------------------------------------------------------------------------


@settings(max_examples=10)
@given(
    rank=st.integers(1, 4),
    root=st.sampled_from(["rsqrt", "sqrt", "power"]),
    square=st.sampled_from(["mul", "square", "power"]),
    keep=st.booleans(),
    upcast=st.booleans(),
    late=st.booleans(),
    plus_one=st.booleans(),
    eps=st.sampled_from([1e-6, 1e-5, 1e-3]),
    dtype=st.sampled_from(DTYPES),
)
def test_any_combination(rank, root, square, keep, upcast, late, plus_one, eps, dtype):
    def f(x: Any, w: Any) -> Any:
        h = widened(x) if upcast else x
        squared = {"mul": h * h, "square": jnp.square(h), "power": h**2}[square]
        mean = jnp.mean(squared, axis=-1, keepdims=keep) + eps
        mean = mean if keep else mean[..., None]
        h = {
            "rsqrt": h * jax.lax.rsqrt(mean),
            "sqrt": h / jnp.sqrt(mean),
            "power": h * mean**-0.5,
        }[root]
        h = h.astype(x.dtype) if late else h
        w = 1 + w if plus_one else w
        return (h * w.astype(h.dtype)).astype(x.dtype)

    args = struct(dtype, *[2] * (rank - 1), WIDTH), struct(dtype, WIDTH)
    after = check(plain(f, *args, parameters=("w",)))
    assert named(after) == {"rms_norm": 1}
    assert ops(after)["lax.mul"] == 0
