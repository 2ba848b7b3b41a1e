"""swiglu_mlp in plain JAX, its activations, and the checks of its arguments."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tkcc.backends.xla.kernels.operands import Operand, require, require_shape
from tkcc.backends.xla.kernels.tiling import product

NAME = "swiglu_mlp"


def _gelu(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1.0 + lax.erf(x / math.sqrt(2.0)))


def _gelu_tanh(x: jax.Array) -> jax.Array:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1.0 + jnp.tanh(inner))


ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = MappingProxyType(
    {
        "silu": lambda x: x * jax.nn.sigmoid(x),
        "gelu": _gelu,
        "gelu_tanh": _gelu_tanh,
        "relu": lambda x: jnp.maximum(x, 0.0),
    }
)
"""By name, on float32. The two gelu forms are those of Hendrycks and Gimpel 2016, "Gaussian Error
Linear Units": exact, and by tanh."""


class Sizes(NamedTuple):
    """x is [rows, inner], gate and up [rows, hidden], the result [rows, columns]."""

    rows: int
    inner: int
    hidden: int
    columns: int


def check(
    x: Operand,
    w_gate: Operand,
    w_up: Operand,
    w_down: Operand,
    *,
    activation: str,
    transposed: bool,
) -> Sizes:
    """The sizes of a well-formed call; ValueError for arguments that do not belong together."""
    known = ", ".join(ACTIVATIONS)
    require(NAME, activation in ACTIVATIONS, f"activation {activation!r} is none of {known}")
    require_shape(NAME, "x", x, {"M": None, "K": None})
    rows, inner = x.shape
    into = {"F": None, "K": inner} if transposed else {"K": inner, "F": None}
    require_shape(NAME, "w_gate", w_gate, into)
    hidden = w_gate.shape[0 if transposed else 1]
    require_shape(NAME, "w_up", w_up, {**into, "F": hidden})
    out_of = {"N": None, "F": hidden} if transposed else {"F": hidden, "N": None}
    require_shape(NAME, "w_down", w_down, out_of)
    return Sizes(rows, inner, hidden, w_down.shape[0 if transposed else 1])


def gated(gate: jax.Array, up: jax.Array, activation: str, dtype: jnp.dtype) -> jax.Array:
    """act(gate) * up in float32, of gate and up rounded to dtype, and rounded to dtype again."""
    gate, up = (value.astype(dtype).astype(jnp.float32) for value in (gate, up))
    return (ACTIVATIONS[activation](gate) * up).astype(dtype)


def reference(
    x: jax.Array,
    w_gate: jax.Array,
    w_up: jax.Array,
    w_down: jax.Array,
    *,
    activation: str = "silu",
    transposed: bool = False,
) -> jax.Array:
    """(act(x @ w_gate) * (x @ w_up)) @ w_down in plain JAX (Shazeer 2020, "GLU Variants Improve
    Transformer").

    x [M, K], w_gate and w_up [K, F], w_down [F, N] ([F, K] and [N, F] if transposed) -> [M, N] in
    x's dtype. Products accumulate in float32; each product and the gated value are rounded to x's
    dtype, as separate layers would round them.
    """
    check(x, w_gate, w_up, w_down, activation=activation, transposed=transposed)
    axis = -1 if transposed else -2
    hidden = gated(product(x, w_gate, axis), product(x, w_up, axis), activation, x.dtype)
    return product(hidden, w_down, axis).astype(x.dtype)
