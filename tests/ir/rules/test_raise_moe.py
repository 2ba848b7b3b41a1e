"""Mixtures of experts in plain code become moe_route and moe_experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.rules.raising import attributes, check, named, node, ops, plain, struct
from tkcc.ir.graph import Module

N, D, E, F, K = 9, 8, 6, 12, 2
DTYPES = ("f32", "bf16")
Route = Callable[[Any], tuple[Any, Any]]
Mix = Callable[[Any, Any, Any, Any], Any]


def parameters(dtype: str) -> dict[str, Any]:
    return {
        "router": struct("f32", D, E),
        "gate": struct(dtype, E, D, F),
        "up": struct(dtype, E, D, F),
        "down": struct(dtype, E, F, D),
        "bias": struct("f32", E),
    }


def mixture(mix: Mix, route: Any, dtype: str, *lead: int) -> Module:
    def f(p: Any, x: Any) -> Any:
        weights, ids = route(p, x.astype(jnp.float32) @ p["router"])
        return mix(p, x, weights, ids)

    x = struct(dtype, *(lead or (N,)), D)
    return check(plain(f, parameters(dtype), x, parameters=("p",)))


# --- routing --------------------------------------------------------------------------------------


def softmax_first(p: Any, logits: Any) -> Any:
    weights, ids = jax.lax.top_k(jax.nn.softmax(logits), K)
    return weights / weights.sum(-1, keepdims=True), ids


def not_normalised(p: Any, logits: Any) -> Any:
    return jax.lax.top_k(jax.nn.softmax(logits), K)


def normalised_with_eps(p: Any, logits: Any) -> Any:
    weights, ids = jax.lax.top_k(jax.nn.softmax(logits), K)
    return weights / (weights.sum(-1, keepdims=True) + 1e-20), ids


def softmax_of_the_chosen(p: Any, logits: Any) -> Any:
    values, ids = jax.lax.top_k(logits, K)
    return jax.nn.softmax(values), ids


def sigmoid(p: Any, logits: Any) -> Any:
    weights, ids = jax.lax.top_k(jax.nn.sigmoid(logits), K)
    return 2.5 * (weights / weights.sum(-1, keepdims=True)), ids


def sigmoid_with_bias(p: Any, logits: Any) -> Any:
    scores = jax.nn.sigmoid(logits)
    _, ids = jax.lax.top_k(scores + p["bias"], K)
    weights = jnp.take_along_axis(scores, ids, axis=-1)
    return weights / (weights.sum(-1, keepdims=True) + 1e-20), ids


ROUTES: list[tuple[Any, dict[str, Any]]] = [
    (softmax_first, {"scoring": "softmax", "normalize": True, "scale": 1.0}),
    (not_normalised, {"scoring": "softmax", "normalize": False, "scale": 1.0}),
    (normalised_with_eps, {"scoring": "softmax", "normalize": True, "scale": 1.0}),
    (softmax_of_the_chosen, {"scoring": "softmax_topk", "scale": 1.0}),
    (sigmoid, {"scoring": "sigmoid", "normalize": True, "scale": 2.5}),
    (sigmoid_with_bias, {"scoring": "sigmoid", "normalize": True, "scale": 1.0}),
]


# --- experts --------------------------------------------------------------------------------------


def shares_by_one_hot(weights: Any, ids: Any) -> Any:
    return jnp.sum(jax.nn.one_hot(ids, E) * weights[..., None], axis=-2)


def shares_by_einsum(weights: Any, ids: Any) -> Any:
    return jnp.einsum("...k,...ke->...e", weights, jax.nn.one_hot(ids, E))


def shares_by_where(weights: Any, ids: Any) -> Any:
    return jnp.sum(jnp.where(ids[..., None] == jnp.arange(E), weights[..., None], 0), axis=-2)


def shares_by_set(weights: Any, ids: Any) -> Any:
    return jnp.zeros((N, E)).at[jnp.arange(N)[:, None], ids].set(weights)


def shares_by_add(weights: Any, ids: Any) -> Any:
    return jnp.zeros((N, E)).at[jnp.arange(N)[:, None], ids].add(weights)


SHARES = [shares_by_one_hot, shares_by_einsum, shares_by_where, shares_by_set, shares_by_add]


def dense(shares: Any) -> Mix:
    def mix(p: Any, x: Any, weights: Any, ids: Any) -> Any:
        gate = jnp.einsum("nd,edf->nef", x, p["gate"])
        up = jnp.einsum("nd,edf->nef", x, p["up"])
        out = jnp.einsum("nef,efd->ned", jax.nn.silu(gate) * up, p["down"])
        return jnp.einsum("ned,ne->nd", out, shares(weights, ids).astype(x.dtype))

    return mix


def experts_first(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    gate = jnp.einsum("nd,edf->enf", x, p["gate"])
    up = jnp.einsum("nd,edf->enf", x, p["up"])
    out = jnp.einsum("enf,efd->end", jax.nn.gelu(gate) * up, p["down"])
    shares = shares_by_one_hot(weights, ids).T[..., None]
    return jnp.sum(out.astype(jnp.float32) * shares, axis=0).astype(x.dtype)


def by_vmap(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    def expert(gate: Any, up: Any, down: Any) -> Any:
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down

    out = jax.vmap(expert)(p["gate"], p["up"], p["down"])
    return jnp.einsum("end,ne->nd", out, shares_by_where(weights, ids)).astype(x.dtype)


def by_scan(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    def step(total: Any, expert: Any) -> Any:
        gate, up, down, share = expert
        out = (jax.nn.silu(x @ gate) * (x @ up)) @ down
        return total + out.astype(jnp.float32) * share[:, None], None

    stacked = (p["gate"], p["up"], p["down"], shares_by_set(weights, ids).T)
    return jax.lax.scan(step, jnp.zeros(x.shape, jnp.float32), stacked)[0].astype(x.dtype)


def sorted_rows(p: Any, x: Any, order: Any, rows: Any, sizes: Any) -> Any:
    gate = jax.lax.ragged_dot(rows, p["gate"], sizes)
    up = jax.lax.ragged_dot(rows, p["up"], sizes)
    return jax.lax.ragged_dot(jax.nn.silu(gate) * up, p["down"], sizes)


def ragged(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    flat = ids.reshape(-1)
    order = jnp.argsort(flat)
    out = sorted_rows(p, x, order, x[order // K], jnp.bincount(flat, length=E))
    out = out[jnp.argsort(order)].reshape(N, K, D)
    return jnp.sum(out * weights[..., None].astype(x.dtype), axis=1)


def ragged_of_repeated_rows(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    flat = ids.reshape(-1)
    order = jnp.argsort(flat)
    rows = jnp.repeat(x, K, axis=0)[order]
    sizes = jnp.sum(jax.nn.one_hot(flat, E, dtype=jnp.int32), axis=0)
    out = sorted_rows(p, x, order, rows, sizes)[jnp.argsort(order)].reshape(N, K, D)
    return jnp.sum(out.astype(jnp.float32) * weights[..., None], axis=1).astype(x.dtype)


def ragged_added_at_tokens(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    flat = ids.reshape(-1)
    order = jnp.argsort(flat)
    tokens = jnp.repeat(jnp.arange(N), K)[order]
    out = sorted_rows(p, x, order, x[tokens], jnp.bincount(flat, length=E))
    out = out.astype(jnp.float32) * weights.reshape(-1)[order][:, None]
    return jnp.zeros((N, D), jnp.float32).at[tokens].add(out).astype(x.dtype)


MIXES = [
    *[pytest.param(dense(shares), id=f"dense-{shares.__name__}") for shares in SHARES],
    experts_first,
    by_vmap,
    by_scan,
    ragged,
    ragged_of_repeated_rows,
    ragged_added_at_tokens,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mix", MIXES)
def test_spellings_of_experts(mix, dtype):
    after = mixture(mix, softmax_first, dtype)
    assert ops(after) == {"linear": 1, "moe_route": 1, "moe_experts": 1}
    assert attributes(after, "moe_experts")["activation"] == (
        "gelu_tanh" if mix is experts_first else "silu"
    )
    weights = [v.name for v in node(after, "moe_experts").operands[3:]]
    assert weights == ["p.gate", "p.up", "p.down"]


@pytest.mark.parametrize(("route", "wanted"), ROUTES)
def test_spellings_of_routing(route, wanted):
    after = mixture(dense(shares_by_one_hot), route, "bf16")
    assert ops(after) == {"linear": 1, "moe_route": 1, "moe_experts": 1}
    found = attributes(after, "moe_route")
    assert {key: found[key] for key in wanted} == wanted
    assert found["k"] == K
    assert (node(after, "moe_route").keys == ("bias",)) is (route is sigmoid_with_bias)


def test_tokens_of_two_dimensions():
    def mix(p: Any, x: Any, weights: Any, ids: Any) -> Any:
        gate = jnp.einsum("btd,edf->btef", x, p["gate"])
        up = jnp.einsum("btd,edf->btef", x, p["up"])
        out = jnp.einsum("btef,efd->bted", jax.nn.silu(gate) * up, p["down"])
        return jnp.einsum("bted,bte->btd", out, shares_by_one_hot(weights, ids))

    after = mixture(mix, softmax_first, "f32", 3, 5)
    assert ops(after) == {"linear": 1, "moe_route": 1, "moe_experts": 1}
    assert node(after, "moe_experts").operands[0].type.shape == (15, D)


# --- what must not be raised ----------------------------------------------------------------------


def without_up(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    gate = jax.nn.silu(jnp.einsum("nd,edf->nef", x, p["gate"]))
    out = jnp.einsum("nef,efd->ned", gate, p["down"])
    return jnp.einsum("ned,ne->nd", out, shares_by_one_hot(weights, ids))


def two_inputs(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    gate = jnp.einsum("nd,edf->nef", x, p["gate"])
    up = jnp.einsum("nd,edf->nef", x + 1, p["up"])
    out = jnp.einsum("nef,efd->ned", jax.nn.silu(gate) * up, p["down"])
    return jnp.einsum("ned,ne->nd", out, shares_by_one_hot(weights, ids))


def all_experts_alike(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    gate = jnp.einsum("nd,edf->nef", x, p["gate"])
    up = jnp.einsum("nd,edf->nef", x, p["up"])
    out = jnp.einsum("nef,efd->ned", jax.nn.silu(gate) * up, p["down"])
    return out.mean(axis=1)


def soft_mixture(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    gate = jnp.einsum("nd,edf->nef", x, p["gate"])
    up = jnp.einsum("nd,edf->nef", x, p["up"])
    out = jnp.einsum("nef,efd->ned", jax.nn.silu(gate) * up, p["down"])
    return jnp.einsum("ned,ne->nd", out, jax.nn.softmax(x @ p["router"]))


def not_put_back(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    flat = ids.reshape(-1)
    order = jnp.argsort(flat)
    out = sorted_rows(p, x, order, x[order // K], jnp.bincount(flat, length=E))
    return jnp.sum(out.reshape(N, K, D) * weights[..., None], axis=1)


def other_sizes(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    flat = ids.reshape(-1)
    order = jnp.argsort(flat)
    out = sorted_rows(p, x, order, x[order // K], jnp.bincount(E - 1 - flat, length=E))
    return jnp.sum(out[jnp.argsort(order)].reshape(N, K, D) * weights[..., None], axis=1)


def scan_from_x(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    def step(total: Any, expert: Any) -> Any:
        gate, up, down, share = expert
        return total + ((jax.nn.silu(x @ gate) * (x @ up)) @ down) * share[:, None], None

    stacked = (p["gate"], p["up"], p["down"], shares_by_set(weights, ids).T)
    return jax.lax.scan(step, x, stacked)[0]


def scan_over_its_own_sum(p: Any, x: Any, weights: Any, ids: Any) -> Any:
    def step(total: Any, expert: Any) -> Any:
        gate, up, down, share = expert
        h = x + total
        return total + ((jax.nn.silu(h @ gate) * (h @ up)) @ down) * share[:, None], None

    stacked = (p["gate"], p["up"], p["down"], shares_by_set(weights, ids).T)
    return jax.lax.scan(step, jnp.zeros_like(x), stacked)[0]


@pytest.mark.parametrize(
    "mix",
    [
        without_up,
        two_inputs,
        all_experts_alike,
        soft_mixture,
        not_put_back,
        other_sizes,
        scan_from_x,
        scan_over_its_own_sum,
    ],
)
def test_near_misses(mix):
    after = mixture(mix, softmax_first, "f32")
    assert "moe_experts" not in named(after)
    assert "moe_route" not in named(after)


def test_a_top_k_of_logits_that_no_expert_reads_is_no_routing():
    def f(w: Any, x: Any) -> Any:
        values, ids = jax.lax.top_k(x @ w, 4)
        return jax.nn.softmax(values), ids

    after = check(plain(f, struct("f32", D, 33), struct("f32", N, D), parameters=("w",)))
    assert named(after) == {"linear": 1, "softmax": 1}


def test_routing_by_scores_in_bfloat16_stays():
    """Which experts are chosen could change."""

    def route(p: Any, logits: Any) -> Any:
        weights, ids = jax.lax.top_k(jax.nn.softmax(logits.astype(jnp.bfloat16)), K)
        return weights.astype(jnp.float32), ids

    after = mixture(dense(shares_by_one_hot), route, "bf16")
    assert named(after) == {"linear": 1, "moe_experts": 1, "softmax": 1}


def test_repeated_ids_of_a_set_keep_the_last_weight():
    """Only ids of a top-k are certainly different; a set of equal ones is no sum."""

    def f(p: Any, x: Any, weights: Any, ids: Any) -> Any:
        return dense(shares_by_set)(p, x, weights, ids)

    args = parameters("f32"), struct("f32", N, D), struct("f32", N, K), struct("i32", N, K)
    after = check(plain(f, *args, parameters=("p",)), {"ids": np.ones((N, K))})
    assert "moe_experts" not in named(after)


def test_given_weights_and_ids_of_a_sum():
    def f(p: Any, x: Any, weights: Any, ids: Any) -> Any:
        return dense(shares_by_add)(p, x, weights, ids)

    args = parameters("f32"), struct("f32", N, D), struct("f32", N, K), struct("i32", N, K)
    after = check(plain(f, *args, parameters=("p",)), {"ids": np.arange(N * K).reshape(N, K) % E})
    assert named(after) == {"moe_experts": 1}
