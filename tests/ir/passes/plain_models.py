"""Models in plain JAX, written as Python loops over layers, for the tests of roll and hoist."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tkcc.frontends.lowering import Call, lower_functions
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import PACK, UNPACK, Function, Module
from tkcc.ir.passes.hoist import run_prepare

HEADS, HEAD, WIDTH, HIDDEN, VOCABULARY, LENGTH = 2, 6, 12, 20, 17, 9
EPS = 1e-5


def rms_norm(x: Any, weight: Any, eps: float = EPS) -> Any:
    h = x.astype(jnp.float32)
    h = h * jax.lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + eps)
    return h.astype(x.dtype) * weight


def rope(x: Any, positions: Any) -> Any:
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[:, :, None, None] * frequency
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate(
        [
            first * jnp.cos(angle) - second * jnp.sin(angle),
            second * jnp.cos(angle) + first * jnp.sin(angle),
        ],
        axis=-1,
    )


def attention(q: Any, k: Any, v: Any, positions: Any, window: int | None = None) -> Any:
    keys = jnp.arange(k.shape[1])[None, None, None, :]
    at = positions[:, None, :, None]
    seen = keys <= at if window is None else (keys <= at) & (keys > at - window)
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * HEAD**-0.5
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.einsum("bhts,bshd->bthd", weights, v)


def write(cache: Any, new: Any, positions: Any) -> Any:
    update = lambda row, piece, at: jax.lax.dynamic_update_slice(row, piece, (at, 0, 0))  # noqa: E731
    return jax.vmap(update)(cache, new, positions[:, 0])


def layer(p: Any, x: Any, positions: Any, cache: Any = None, **options: Any) -> tuple[Any, Any]:
    """One decoder layer; `cache` is (k, v) or None."""
    eps = options.get("eps", EPS)
    h = rms_norm(x, p["attention_norm"], eps)
    split = lambda y: y.reshape(*y.shape[:2], HEADS, HEAD)  # noqa: E731
    q, k, v = (split(h @ p[name]) for name in ("query", "key", "value"))
    q, k = rope(q, positions), rope(k, positions)
    if cache is not None:
        cache = k, v = tuple(write(c, n, positions) for c, n in zip(cache, (k, v), strict=True))
    attended = attention(q, k, v, positions, options.get("window"))
    x = x + attended.reshape(*x.shape[:2], -1) @ p["output"]
    h = rms_norm(x, p["mlp_norm"], eps)
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], cache


def head(params: Any, x: Any) -> Any:
    return rms_norm(x, params["final_norm"]) @ params["embedding"].T


def forward(params: Any, tokens: Any, positions: Any) -> Any:
    """Logits, without caches."""
    x = params["embedding"][tokens]
    for p in params["layers"]:
        x, _ = layer(p, x, positions)
    return head(params, x)


def cached(params: Any, k_cache: Any, v_cache: Any, tokens: Any, positions: Any) -> Any:
    """Logits and the new caches, which are lists with one entry per layer."""
    x = params["embedding"][tokens]
    new_k, new_v = [], []
    for p, k, v in zip(params["layers"], k_cache, v_cache, strict=True):
        x, (k, v) = layer(p, x, positions, (k, v))
        new_k.append(k)
        new_v.append(v)
    return head(params, x), new_k, new_v


def random(shape: tuple[int, ...], seed: int, dtype: Any = jnp.float32) -> jax.Array:
    values = np.random.default_rng(seed).standard_normal(shape) * 0.3
    return jnp.asarray(values, dtype)


def layer_parameters(seed: int, dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    shapes = {
        "attention_norm": (WIDTH,),
        "query": (WIDTH, WIDTH),
        "key": (WIDTH, WIDTH),
        "value": (WIDTH, WIDTH),
        "output": (WIDTH, WIDTH),
        "mlp_norm": (WIDTH,),
        "gate": (WIDTH, HIDDEN),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    return {
        name: random(shape, seed * 100 + i, dtype) for i, (name, shape) in enumerate(shapes.items())
    }


def parameters(layers: int, dtype: Any = jnp.float32) -> dict[str, Any]:
    return {
        "embedding": random((VOCABULARY, WIDTH), 7, dtype),
        "final_norm": random((WIDTH,), 8, dtype),
        "layers": [layer_parameters(10 + i, dtype) for i in range(layers)],
    }


def caches(layers: int, batch: int = 2) -> list[jax.Array]:
    return [random((batch, LENGTH, HEADS, HEAD), 900 + i) for i in range(layers)]


def tokens(batch: int, count: int, start: int = 0) -> tuple[jax.Array, jax.Array]:
    ids = np.random.default_rng(3).integers(0, VOCABULARY, (batch, count))
    places = np.broadcast_to(np.arange(start, start + count), (batch, count))
    return jnp.asarray(ids, jnp.int32), jnp.asarray(places, jnp.int32)


def cached_module(layers: int) -> Module:
    """`prefill` (4 tokens) and `decode` (1 token) of `cached`, with parameters and state."""
    weights, k, v = parameters(layers), caches(layers), caches(layers)

    def call(count: int, start: int) -> Call:
        args = (weights, k, v, *tokens(2, count, start))
        return Call(cached, args, parameters=("params",), state=("k_cache", "v_cache"))

    calls = {"prefill": call(4, 0), "decode": call(1, 4)}
    return lower_functions(calls, name="llama", recognise=False)


def run(module: Module, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Outputs of a step by name. `given` holds original parameters, arguments and original state;
    state is packed before, and unpacked after, if the module says so."""
    values = {**given, **run_prepare(module, given)}
    if PACK in module.functions:
        values.update(_named(module.functions[PACK], values))
    out = _named(module.functions[name], values)
    if UNPACK in module.functions:
        states = {key: out.pop(key) for key in module.state}
        out.update(_named(module.functions[UNPACK], states))
    return out


def _named(function: Function, values: dict[str, Any]) -> dict[str, Any]:
    inputs = [values[value.name] for value in function.inputs]
    results = evaluate(function, inputs)  # op by op: equal layers compile once for all tests
    names = function.output_names or [str(i) for i in range(len(results))]
    return dict(zip(names, results, strict=True))


def some_inputs(module: Module, function: str, seed: int = 0) -> dict[str, Any]:
    """Random arrays for all parameters of the module and for all inputs of the function."""
    found = dict(module.parameters)
    found.update({value.name: value.type for value in module.function(function).inputs})
    rng = np.random.default_rng(seed)
    return {name: _some(rng, type_) for name, type_ in found.items()}


def _some(rng: np.random.Generator, type_: Any) -> jax.Array:
    dtype = type_.struct().dtype
    if type_.dtype[0] in "iu":
        return jnp.asarray(rng.integers(0, 4, type_.shape), dtype)
    return jnp.asarray(rng.standard_normal(type_.shape) * 0.1, dtype)


def assert_same(first: dict[str, Any], second: dict[str, Any], tolerance: float = 1e-5) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_allclose(
            np.asarray(value, np.float64),
            np.asarray(second[name], np.float64),
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )
