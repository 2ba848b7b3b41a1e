"""Small modules that the backend's tests share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tkcc.backends.base import Target
from tkcc.frontends.lowering import lower
from tkcc.ir import functional as F
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import (
    ARGUMENT,
    PACK,
    PREPARE,
    STATE,
    UNPACK,
    Function,
    Module,
    fresh_like,
)
from tkcc.ir.op import build

CPU = Target.parse("xla:cpu")
WIDTH, HIDDEN, WORDS, LAYERS, BATCH, KEYS = 16, 32, 24, 3, 2, 8


def array(*shape: int, seed: int = 0, dtype: Any = jnp.float32, scale: float = 1.0) -> jax.Array:
    """Reproducible normal numbers."""
    numbers = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return jnp.asarray(scale * numbers, dtype)


def weights() -> dict[str, Any]:
    def layer(seed: int, *shape: int) -> jax.Array:
        return array(LAYERS, *shape, seed=seed, scale=0.2)

    return {
        "embedding": array(WORDS, WIDTH),
        "norm": 1 + layer(1, WIDTH),
        "kv": layer(2, WIDTH, WIDTH),
        "gate": layer(3, WIDTH, HIDDEN),
        "up": layer(4, WIDTH, HIDDEN),
        "down": layer(5, HIDDEN, WIDTH),
    }


def decode(
    w: dict[str, Any], k_cache: Any, v_cache: Any, ids: Any, positions: Any
) -> tuple[Any, Any, Any]:
    """A decode step: layers in a scan, two caches of one type, one head."""

    def layer(x: Any, parts: Any) -> Any:
        lw, k, v = parts
        h = F.rms_norm(x, lw["norm"])
        new = F.linear(h, lw["kv"])[:, None, None, :]
        k, v = F.update_cache(k, new, positions), F.update_cache(v, 2 * new, positions)
        at = positions[:, None]
        y = F.attention(h[:, None, None, :], k, v, scale=0.25, positions=at)
        x = x + y[:, 0, 0, :]
        unit = F.swiglu(F.linear(x, lw["gate"]), F.linear(x, lw["up"]))
        return x + F.linear(unit, lw["down"]), (k, v)

    x = F.embedding(w["embedding"], ids)
    stacks = {name: value for name, value in w.items() if name != "embedding"}
    x, (k_cache, v_cache) = jax.lax.scan(layer, x, (stacks, k_cache, v_cache))
    return F.linear(x, w["embedding"], transposed=True), k_cache, v_cache


@functools.cache
def decoder() -> Module:
    """A small decoder with state; `values` holds its parameters."""
    values = {f"w.{name}": value for name, value in weights().items()}
    return Module({"decode": _lowered(decode, weights())}, "decoder", values)


def decode_arguments(step: int) -> dict[str, np.ndarray[Any, Any]]:
    ids = np.asarray([step % WORDS, (3 * step + 1) % WORDS], np.int32)
    return {"ids": ids, "positions": np.full((BATCH,), step % KEYS, np.int32)}


@functools.cache
def swapped_decoder() -> Module:
    """The decoder with `v_cache` kept with its batch first, and conversions for it."""

    def swap(cache: Any) -> Any:
        return jnp.swapaxes(cache, 0, 1)

    def run(w: Any, k_cache: Any, v_cache: Any, ids: Any, positions: Any) -> Any:
        logits, k_cache, v_cache = decode(w, k_cache, swap(v_cache), ids, positions)
        return logits, k_cache, swap(v_cache)

    def both(k_cache: Any, v_cache: Any) -> Any:
        return k_cache, swap(v_cache)

    cache = jnp.zeros((LAYERS, BATCH, KEYS, 1, WIDTH))
    functions = {
        "decode": _lowered(run, weights(), swapped=True),
        PACK: converted(both, cache, cache),
        UNPACK: converted(both, cache, swap(cache)),
    }
    return decoder().replace(functions=functions)


def converted(target: Callable[..., Any], *caches: Any) -> Function:
    """A conversion of (k_cache, v_cache), as the IR's own rules write one."""
    function = lower(target, *caches, outputs=["k_cache", "v_cache"], recognise=False).function()
    return function.replace(roles=(STATE, STATE))


@functools.cache
def prepared_decoder(copies: int = 1) -> Module:
    """The decoder, reading an embedding that `_prepare` makes: `copies` of the original's rows.

    `copies` makes the derived parameter larger without changing the result.
    """
    base = decoder()

    def run(w: Any, *rest: Any) -> Any:
        logits, *caches = decode(w, *rest)
        return logits[:, :WORDS], *caches

    step = _lowered(run, {**weights(), "embedding": array(copies * WORDS, WIDTH)})
    (old,) = [value for value in step.inputs if value.name == "w.embedding"]
    old.name = "tied"
    prepare = lower(
        lambda embedding: jnp.tile(embedding, (copies, 1)),
        array(WORDS, WIDTH),
        parameters=["embedding"],
        outputs=["tied"],
        recognise=False,
    ).function()
    prepare.inputs[0].name = "w.embedding"
    return base.replace(functions={"decode": step, PREPARE: prepare})


def _lowered(
    target: Callable[..., Any], parameters: dict[str, Any], swapped: bool = False
) -> Function:
    """A step function over the decoder's state and arguments."""
    cache = jnp.zeros((LAYERS, BATCH, KEYS, 1, WIDTH))
    other = jnp.swapaxes(cache, 0, 1) if swapped else cache
    ids = jnp.zeros((BATCH,), jnp.int32)

    def named(w: Any, k_cache: Any, v_cache: Any, ids: Any, positions: Any) -> Any:
        return target(w, k_cache, v_cache, ids, positions)

    return lower(
        named,
        parameters,
        cache,
        other,
        ids,
        ids,
        parameters=["w"],
        state=["k_cache", "v_cache"],
        outputs=["logits"],
        recognise=False,
    ).function()


def grouped(target: Callable[..., Any], *args: Any, label: str = "it") -> Module:
    """A module of one step `main` that is one group holding the ops of `target`."""
    body = lower(target, *args, recognise=False).function()
    inputs = fresh_like(body.inputs)
    node = build("group", *inputs, attributes={"label": label, "kind": "test"}, regions=[body])
    roles = (ARGUMENT,) * len(inputs)
    return Module({"main": Function(inputs, (node,), node.results, roles)}, "grouped")


def reference_steps(
    module: Module, arguments: Sequence[dict[str, Any]], function: str = "decode"
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What `evaluate` gives for steps from zero state: outputs of each, and the last state."""
    step = module.function(function)
    run = jax.jit(lambda *inputs: evaluate(step, inputs))
    state = {n: jnp.zeros(t.shape, t.struct().dtype) for n, t in module.state.items()}
    aliased = {output: step.inputs[position].name for output, position in step.aliases}
    outputs = []
    for given in arguments:
        known = {**module.values, **state, **given}
        results = run(*(known[value.name] for value in step.inputs))
        state.update({aliased[i]: x for i, x in enumerate(results) if i in aliased})
        names = step.output_names
        outputs.append({names[i]: x for i, x in enumerate(results) if i not in aliased})
    return outputs, state
