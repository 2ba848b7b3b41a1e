"""Greedy generation with a model's `prefill` and `decode`: the plain loop, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tkcc.models.causal import Cache, CausalModel, Step
from tkcc.models.errors import ModelError


def greedy(
    model: CausalModel, prompts: Sequence[Sequence[int]], new_tokens: int, *, cache_length: int = 0
) -> list[list[int]]:
    """The next `new_tokens` ids after each prompt, as one batch; end-of-text does not stop it.

    `cache_length` is the number of tokens the caches hold; 0 takes just enough.

    Raises:
        ModelError: no prompt, an empty prompt, an id outside the vocabulary, no token to produce,
            or caches too short.
    """
    if new_tokens < 1:
        raise ModelError(f"new_tokens is {new_tokens}; it must be at least 1")
    tokens, lengths = pad_prompts(prompts, model.config.vocab_size)
    needed = int(lengths.max()) + new_tokens
    if cache_length and cache_length < needed:
        raise ModelError(f"caches of {cache_length} tokens are too short: {needed} are needed")
    k_cache, v_cache = model.empty_caches(len(prompts), cache_length or needed)
    step = _prefill(model, jnp.asarray(tokens), jnp.asarray(lengths), k_cache, v_cache)
    produced = [step.next_tokens]
    for i in range(new_tokens - 1):
        positions = jnp.asarray(lengths + i)
        step = _decode(model, step.next_tokens, positions, step.k_cache, step.v_cache)
        produced.append(step.next_tokens)
    rows: list[list[int]] = np.stack(produced, axis=1).tolist()
    return rows


def pad_prompts(prompts: Sequence[Sequence[int]], vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded tokens i32[B, T] and lengths i32[B].

    Raises:
        ModelError: no prompt, an empty prompt, or an id outside the vocabulary.
    """
    if not prompts or not all(prompts):
        raise ModelError("greedy generation needs prompts of at least one token each")
    if any(not 0 <= token < vocab_size for prompt in prompts for token in prompt):
        raise ModelError(f"a prompt holds an id outside the vocabulary of {vocab_size:,}")
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    tokens = np.zeros((len(prompts), lengths.max()), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens, lengths


@nnx.jit(donate_argnums=(3, 4))
def _prefill(
    model: CausalModel, tokens: jax.Array, lengths: jax.Array, k_cache: Cache, v_cache: Cache
) -> Step:
    return model.prefill(tokens, lengths, k_cache, v_cache)


@nnx.jit(donate_argnums=(3, 4))
def _decode(
    model: CausalModel, tokens: jax.Array, positions: jax.Array, k_cache: Cache, v_cache: Cache
) -> Step:
    return model.decode(tokens, positions, k_cache, v_cache)
