"""Softmax over blocks of keys that arrive one after another, inside a kernel.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax": keep the highest score so
far, and rescale what was summed whenever it rises.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from tkcc.backends.xla.kernels.tiling import LANES, MASKED, padded_bytes, product


class State(NamedTuple):
    """References to float32 scratch: peak and total [heads, rows, 128], equal in all lanes, and
    mixed [heads, rows, width]."""

    peak: Any
    total: Any
    mixed: Any


def scratch(heads: int, rows: int, width: int) -> list[Any]:
    """The scratch shapes of a State, in its order."""
    lanes = pltpu.VMEM((heads, rows, LANES), jnp.float32)
    return [lanes, lanes, pltpu.VMEM((heads, rows, width), jnp.float32)]


def scratch_bytes(heads: int, rows: int, width: int) -> int:
    """VMEM that `scratch` takes, in bytes."""
    lanes = padded_bytes((heads, rows, LANES), jnp.float32)
    return 2 * lanes + padded_bytes((heads, rows, width), jnp.float32)


def clear(state: State) -> None:
    """Begin: no key seen."""
    state.peak[...] = jnp.full(state.peak.shape, MASKED, jnp.float32)
    state.total[...] = jnp.zeros(state.total.shape, jnp.float32)
    state.mixed[...] = jnp.zeros(state.mixed.shape, jnp.float32)


def add(state: State, scores: jax.Array, values: jax.Array) -> None:
    """Take in scores float32 [heads, rows, keys], MASKED where invisible, of values
    [heads, keys, width].

    While a row has seen no visible key, its sums are rubbish (each masked score counts as 1): the
    first visible one scales them to nothing, and `result` drops rows that never saw one.
    """
    before = state.peak[:, :, :1]
    peak = jnp.maximum(before, jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - peak)
    kept = jnp.exp(before - peak)
    total = kept * state.total[:, :, :1] + jnp.sum(weights, axis=-1, keepdims=True)
    state.peak[...] = jnp.broadcast_to(peak, state.peak.shape)
    state.total[...] = jnp.broadcast_to(total, state.total.shape)
    mixed = product(weights.astype(values.dtype), values, -2)
    state.mixed[...] = kept * state.mixed[...] + mixed


def result(state: State, dtype: Any) -> jax.Array:
    """The mean of the values by weight, [heads, rows, width]; zeros in rows that saw no key."""
    saw = state.peak[:, :, :1] > MASKED / 2
    return jnp.where(saw, state.mixed[...] / state.total[:, :, :1], 0.0).astype(dtype)
