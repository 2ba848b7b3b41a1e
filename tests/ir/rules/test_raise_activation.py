"""Activation functions and gated units are recognised by what they compute."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.rules.raising import attributes, check, named, node, ops, plain, struct

DTYPES = ("f32", "bf16")
SPELLINGS: dict[str, tuple[str, Any]] = {
    "jax silu": ("silu", jax.nn.silu),
    "swish": ("silu", lambda x: x * jax.nn.sigmoid(x)),
    "quotient": ("silu", lambda x: x / (1 + jnp.exp(-x))),
    "own sigmoid": ("silu", lambda x: x * (1.0 / (1.0 + jnp.exp(-x)))),
    "sigmoid by tanh": ("silu", lambda x: 0.5 * x * (1 + jnp.tanh(0.5 * x))),
    "jax gelu": ("gelu_tanh", jax.nn.gelu),
    "gelu new": (
        "gelu_tanh",
        lambda x: 0.5 * x * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi) * (x + 0.044715 * x**3))),
    ),
    "gelu factored": (
        "gelu_tanh",
        lambda x: 0.5 * x * (1 + jnp.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
    ),
    "gelu power": (
        "gelu_tanh",
        lambda x: x * (0.5 * (1 + jnp.tanh(0.79788456 * (x + 0.044715 * jnp.power(x, 3))))),
    ),
    "jax gelu erf": ("gelu", lambda x: jax.nn.gelu(x, approximate=False)),
    "gelu erf": ("gelu", lambda x: x * 0.5 * (1.0 + jax.scipy.special.erf(x / jnp.sqrt(2.0)))),
    "gelu cdf": ("gelu", lambda x: x * (1 + jax.lax.erf(x * 0.70710678)) / 2),
    "jax relu": ("relu", jax.nn.relu),
    "maximum": ("relu", lambda x: jnp.maximum(0, x)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name, dtype):
    kind, f = SPELLINGS[name]
    after = check(plain(lambda x: f(x), struct(dtype, 4, 33)), scale=2.0)
    assert ops(after) == {"activation": 1}
    assert attributes(after, "activation")["kind"] == kind


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["jax silu", "jax gelu", "jax gelu erf", "jax relu"])
def test_gated_units(name, dtype):
    kind, f = SPELLINGS[name]
    for g in (lambda x, y: f(x) * y, lambda x, y: y * f(x)):
        after = check(plain(g, struct(dtype, 4, 33), struct(dtype, 4, 33)), scale=2.0)
        assert ops(after) == {"swiglu": 1}
        assert attributes(after, "swiglu")["activation"] == kind
        assert node(after, "swiglu").operands == after.function().inputs


NEAR_MISSES = {
    "quick gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "wrong cube": lambda x: 0.5 * x * (1 + jnp.tanh(0.79788456 * (x + 0.0447 * x**3))),
    "wrong square": lambda x: 0.5 * x * (1 + jnp.tanh(0.79788456 * (x + 0.044715 * x**2))),
    "whole": lambda x: x * (1 + jax.lax.erf(x / jnp.sqrt(2.0))),
    "erf of x": lambda x: 0.5 * x * (1 + jax.lax.erf(x)),
    "shifted": lambda x: (x + 1) * jax.nn.sigmoid(x),
    "plus": lambda x: x / (1 + jnp.exp(x)),
    "leaky": lambda x: jnp.maximum(x, 0.01 * x),
    "relu6 below": lambda x: jnp.maximum(x, 0.1),
    "elu": lambda x: jax.nn.elu(x),
    "only sigmoid": lambda x: jax.nn.sigmoid(x),
    "only tanh": lambda x: jnp.tanh(x),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name):
    after = check(plain(lambda x: NEAR_MISSES[name](x), struct("f32", 4, 33)), scale=2.0)
    assert named(after) == {}


def test_softplus_is_a_relu_and_the_rest():
    after = check(plain(lambda x: x * jnp.tanh(jax.nn.softplus(x)), struct("f32", 4, 33)))
    assert attributes(after, "activation")["kind"] == "relu"
    assert ops(after)["lax.log1p"] == 1


def test_a_curve_of_two_variables_is_none():
    def f(x: Any, y: Any) -> Any:
        return x * jax.nn.sigmoid(y)

    after = check(plain(f, struct("f32", 4, 33), struct("f32", 4, 33)))
    assert named(after) == {}


def test_what_is_made_of_x_may_be_the_variable():
    def f(x: Any, y: Any) -> Any:
        z = x + y * 2
        return z * jax.nn.sigmoid(z)

    after = check(plain(f, struct("f32", 4, 33), struct("f32", 4, 33)))
    assert named(after) == {"activation": 1}


def test_an_activation_that_others_read_is_no_gate():
    def f(x: Any, y: Any) -> Any:
        a = jax.nn.silu(x)
        return a * y, a

    after = check(plain(f, struct("f32", 4, 33), struct("f32", 4, 33)))
    assert ops(after) == {"activation": 1, "lax.mul": 1}


def test_a_squared_relu_is_no_gated_unit():
    after = check(plain(lambda x: jnp.square(jax.nn.relu(x)), struct("f32", 4, 33)))
    assert ops(after) == {"activation": 1, "lax.mul": 1}


def test_a_gate_of_another_shape_is_no_gated_unit():
    def f(x: Any, y: Any) -> Any:
        return jax.nn.silu(x) * y[:, None]

    after = check(plain(f, struct("f32", 4, 33), struct("f32", 4)))
    assert ops(after) == {"activation": 1, "lax.mul": 1}


def test_an_activation_in_float32_is_not_computed_in_bfloat16():
    def f(x: Any) -> Any:
        return jax.nn.silu(x.astype(jnp.float32)).astype(x.dtype)

    after = check(plain(f, struct("bf16", 4, 33)))
    assert node(after, "activation").operands[0].type.dtype == "f32"


def test_a_sigmoid_that_others_read_stays():
    def f(x: Any) -> Any:
        s = jax.nn.sigmoid(x)
        return x * s, s

    after = check(plain(f, struct("f32", 4, 33)))
    assert ops(after) == {"activation": 1, "lax.logistic": 1}


def test_infinities_and_large_numbers():
    x = np.array([[-np.inf, -1e4, -90.0, 0.0, 90.0, 1e4]], np.float32)
    before = plain(jax.nn.silu, struct("f32", 1, 5))
    after = check(before, {"x": x[:, 1:]})
    assert named(after) == {"activation": 1}
