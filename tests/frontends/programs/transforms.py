"""JAX's transformations, custom rules, wrappers, and small models."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify, custom_partitioning, layout, xla_metadata

from tests.frontends.programs.program import LARGE, SQUARE, VECTOR, X, Y, program


@jax.custom_jvp
def _log1pexp(x: Any) -> Any:
    return jnp.log1p(jnp.exp(x))


@_log1pexp.defjvp
def _log1pexp_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _log1pexp(x), jax.nn.sigmoid(x) * t


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return x * 2


_clipped.defvjp(lambda x: (x * 2, x), lambda x, g: (jnp.clip(g, -0.1, 0.1) * x,))


@jax.custom_batching.custom_vmap
def _batched(x: Any) -> Any:
    return x + 1


@_batched.def_vmap
def _batched_rule(size: int, mapped: Any, x: Any) -> Any:
    return x + 2, True


def _reversed(x: Any) -> Any:
    return jax.custom_gradient(lambda y: (y * 3, lambda g: -g))(x)


def _composite(x: Any) -> Any:
    """A composite that is not ours is its body."""
    return lax.composite(lambda y, *, power: y**power, name="other.power")(x, power=2)


def _mlp(weights: Any, x: Any) -> Any:
    for w in weights[:-1]:
        x = jax.nn.gelu(x @ w["kernel"] + w["bias"])
    return x @ weights[-1]["kernel"]


def _layer(width: int, depth: int) -> dict[str, Any]:
    return {"kernel": LARGE[:width, :depth].copy(), "bias": LARGE[0, :depth].copy()}


WEIGHTS = [_layer(4, 8), _layer(8, 2)]


def _loss(weights: Any, x: Any) -> Any:
    return jnp.mean(jax.nn.log_softmax(_mlp(weights, x))[:, 0])


def _softmax_attention(x: Any) -> Any:
    scores = jnp.where(jnp.tri(3, dtype=bool), x @ x.T / 2, -jnp.inf)
    return jax.nn.softmax(scores) @ x


def _named(x: Any) -> Any:
    with jax.named_scope("outer"):
        return jax.named_call(jnp.sin, name="inner")(x)


@functools.partial(jax.jit, static_argnames="n")
def _inner(x: Any, n: int) -> Any:
    return x * n


def _wrapped(x: Any) -> Any:
    return jax.jit(lambda y: _inner(y, n=2) + _inner(y, n=3))(x)


def _linear_call(x: Any) -> Any:
    call = jax.custom_derivatives.linear_call
    return call(lambda r, y: y * r, lambda r, z: z * r, x, x)


@jax.custom_vjp
def _optimised(x: Any) -> Any:
    return x * 2


_optimised.defvjp(lambda x: (x * 2, x), lambda x, g: (g * x,), optimize_remat=True)


@custom_partitioning.custom_partitioning
def _partitioned(x: Any) -> Any:
    return jnp.cumsum(x, axis=0)


_partitioned.def_partition(
    partition=lambda *args: None,
    infer_sharding_from_operands=lambda *args: None,
    sharding_rule="i j -> i j",
)


def _placed(x: Any) -> Any:
    """Where values lie does not change what they are."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    there = jax.device_put({"a": x, "b": x + 1})
    laid_out = layout.with_layout_constraint(there["b"], layout.Layout((1, 0)))
    return lax.with_sharding_constraint(laid_out, sharding) + there["a"]


def _annotated(x: Any) -> Any:
    """Notes to XLA, on values and on a whole call where this JAX has that."""
    noted = xla_metadata.set_xla_metadata(x * 2, note="doubled")
    call = getattr(xla_metadata, "xla_metadata_call", lambda f, **_: f)
    with xla_metadata.set_xla_metadata(note="inside"):
        return call(jnp.sin, note="wave")(noted)


def _checked(x: Any) -> Any:
    """checkify makes errors into values, which are pure."""

    def positive(y: Any) -> Any:
        checkify.check((y > 0).all(), "not positive")
        return jnp.log(y)

    return checkify.checkify(positive)(x)[1]


ACTIVATIONS = (jax.nn.relu, jax.nn.silu, jax.nn.gelu, jax.nn.softplus, jax.nn.elu, jax.nn.mish)

PROGRAMS = {
    "grad": program(jax.grad(lambda x: jnp.sin(x).sum()), X),
    "value and grad": program(jax.value_and_grad(_loss), WEIGHTS, X),
    "jvp": program(lambda x, y: jax.jvp(jnp.tanh, (x,), (y,)), X, Y),
    "vjp": program(lambda x, y: jax.vjp(jnp.tanh, x)[1](y), X, Y),
    "jacobians": program(lambda v: (jax.jacfwd(jnp.sin)(v), jax.jacrev(jnp.cumsum)(v)), VECTOR),
    "hessian": program(jax.hessian(lambda v: (v**3).sum()), VECTOR),
    "linearize": program(lambda x, y: jax.linearize(jnp.exp, x)[1](y), X, Y),
    "vmap": program(jax.vmap(lambda row, w: w @ row, in_axes=(0, None)), X, SQUARE),
    "vmap of a reduction over its axis": program(
        jax.vmap(lambda row: row - lax.pmean(row, "batch"), axis_name="batch"), X
    ),
    "vmap with collectives": program(
        jax.vmap(
            lambda v: (lax.psum(v, "i"), lax.axis_index("i"), lax.all_gather(v, "i")), axis_name="i"
        ),
        VECTOR,
    ),
    "jit in jit": program(_wrapped, X),
    "checkpoint": program(jax.grad(lambda x: jax.checkpoint(jnp.sin)(x * 2).sum()), X),
    "checkpoint with a policy": program(
        jax.grad(
            lambda x: jax.checkpoint(
                lambda y: jnp.sin(jnp.cos(y)), policy=jax.checkpoint_policies.nothing_saveable
            )(x).sum()
        ),
        X,
    ),
    "checkpoint names": program(lambda x: checkpoint_name(x * 2, "doubled") + 1, X),
    "custom jvp": program(lambda x: (_log1pexp(x), jax.grad(lambda y: _log1pexp(y).sum())(x)), X),
    "custom vjp": program(lambda x: (_clipped(x), jax.grad(lambda y: _clipped(y).sum())(x)), X),
    "custom batching": program(lambda x: (_batched(x), jax.vmap(_batched)(x)), X),
    "custom gradient": program(jax.grad(lambda x: _reversed(x).sum()), X),
    "linear call": program(_linear_call, X),
    "optimised rematerialisation": program(jax.value_and_grad(lambda x: _optimised(x).sum()), X),
    "custom partitioning": program(lambda x: _partitioned(x) + 1, X),
    "placement": program(_placed, X),
    "notes to the compiler": program(_annotated, X),
    "checks made values": program(_checked, X**2),
    "linear transpose": program(lambda x: jax.linear_transpose(lambda y: y[0] * 2, x)(x[0]), X),
    "stop gradient": program(jax.grad(lambda x: (lax.stop_gradient(x) * x).sum()), X),
    "composite": program(_composite, X),
    "named scopes": program(_named, X),
    "activations": program(lambda x: [f(x) for f in ACTIVATIONS], X),
    "normalisation": program(
        lambda x: (jax.nn.standardize(x), jax.nn.log_softmax(x), jax.nn.logsumexp(x, 1)), X
    ),
    "multilayer perceptron": program(_mlp, WEIGHTS, X),
    "attention": program(_softmax_attention, X),
    "dot product attention": program(
        lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True),
        np.stack([SQUARE, SQUARE]).reshape(2, 2, 2, 4),
    ),
    "a function without use of its argument": program(lambda x: jnp.ones(3), X),
    "an argument that is returned": program(lambda x: (x, x), X),
    "nested pytrees": program(
        lambda t: {"sum": t["a"][0] + t["b"]["c"], "pair": (t["a"][1], None)},
        {"a": [X, Y], "b": {"c": X}},
    ),
}
