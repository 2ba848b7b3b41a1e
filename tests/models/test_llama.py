"""The Llama module against itself: padding, caches, batches, dtypes and abstract parameters."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tkcc.models.llama import Llama, abstract_llama, llama_from_parameters

# Compiled once for all tests: plain calls would trace the scan anew each time.
PREFILL, DECODE = nnx.jit(Llama.prefill), nnx.jit(Llama.decode)
PROMPTS = [[5, 17, 250, 3, 99, 12, 7], [42], [8, 8, 1, 200]]


@pytest.fixture
def model(tiny_model: Llama) -> Llama:
    return tiny_model


def prefill(model: Llama, prompts: list[list[int]], length: int = 16, filler: int = 0):
    lengths = np.array([len(prompt) for prompt in prompts])
    rows = [[*prompt, *[filler] * (7 - len(prompt))] for prompt in prompts]
    caches = model.empty_caches(len(prompts), length)
    return PREFILL(model, jnp.asarray(rows, jnp.int32), jnp.asarray(lengths), *caches)


def run(model: Llama, prompts: list[list[int]], filler: int = 0) -> np.ndarray:
    """Logits of the prompt's end and of six greedy tokens after it, [7, B, V]."""
    step = prefill(model, prompts, filler=filler)
    lengths = jnp.array([len(prompt) for prompt in prompts])
    logits = [step.logits]
    for i in range(6):
        step = DECODE(model, step.next_tokens, lengths + i, step.k_cache, step.v_cache)
        logits.append(step.logits)
    return np.stack(logits)


def test_prefill_equals_feeding_the_prompt_token_by_token(model):
    whole = prefill(model, PROMPTS[:1])
    k, v = model.empty_caches(1, 16)
    for position, token in enumerate(PROMPTS[0]):
        step = DECODE(model, jnp.array([token]), jnp.array([position]), k, v)
        k, v = step.k_cache, step.v_cache
    np.testing.assert_allclose(step.logits, whole.logits, atol=2e-4)
    np.testing.assert_allclose(k, whole.k_cache, atol=2e-4)
    np.testing.assert_allclose(v, whole.v_cache, atol=2e-4)


def test_each_row_of_a_padded_batch_equals_that_prompt_alone(model):
    together = run(model, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        np.testing.assert_allclose(together[:, row], run(model, [prompt])[:, 0], atol=2e-4)


def test_what_the_padding_holds_changes_nothing_while_decoding(model):
    np.testing.assert_array_equal(run(model, PROMPTS, 0), run(model, PROMPTS, 123))


def test_an_earlier_token_changes_later_logits_and_not_the_other_way_round(model):
    changed = [[6, *PROMPTS[0][1:]]]
    base = prefill(model, PROMPTS[:1])
    assert np.abs(base.logits - prefill(model, changed).logits).max() > 1e-2
    last_changed = prefill(model, [[*PROMPTS[0][:-1], 9]])
    np.testing.assert_array_equal(base.k_cache[:, :, :6], last_changed.k_cache[:, :, :6])


def test_the_unused_end_of_a_longer_cache_changes_nothing(model):
    short, long = prefill(model, PROMPTS, 16), prefill(model, PROMPTS, 40)
    np.testing.assert_allclose(short.logits, long.logits, atol=1e-4)
    assert not np.asarray(long.k_cache[:, :, 7:]).any()


def test_next_tokens_are_the_argmax_of_float32_logits(model):
    step = prefill(model, PROMPTS)
    assert step.logits.dtype == jnp.float32
    assert step.logits.shape == (3, 300)
    assert step.next_tokens.dtype == jnp.int32
    np.testing.assert_array_equal(step.next_tokens, np.argmax(step.logits, axis=-1))


def test_a_prompt_longer_than_the_cache_is_refused(model):
    with pytest.raises(ValueError, match="7 tokens do not fit into a cache of 6"):
        prefill(model, PROMPTS, 6)


def test_the_step_is_one_scan_over_the_layers(model):
    graph, state = nnx.split(model)
    k, v = model.empty_caches(1, 8)
    zero = jnp.zeros(1, jnp.int32)
    jaxpr = jax.make_jaxpr(lambda s, *x: nnx.merge(graph, s).decode(*x))(state, zero, zero, k, v)
    scans = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    assert [eqn.params["length"] for eqn in scans] == [3]


def test_bfloat16_parameters_give_bfloat16_caches_and_close_logits(tiny_config, model):
    parameters = nnx.to_pure_dict(nnx.state(model))
    rounded = llama_from_parameters(tiny_config, parameters, jnp.bfloat16)
    leaves = jax.tree.leaves(nnx.state(rounded))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}
    ours, exact = prefill(rounded, PROMPTS), prefill(model, PROMPTS)
    assert ours.k_cache.dtype == jnp.bfloat16
    assert ours.logits.dtype == jnp.float32
    error = np.abs(ours.logits - exact.logits).max() / np.abs(exact.logits).max()
    assert 0 < error < 0.1


def test_abstract_parameters_match_a_new_model_and_lower(tiny_config):
    config = dataclasses.replace(tiny_config, tie_word_embeddings=False)
    abstract = abstract_llama(config, jnp.bfloat16)
    real = Llama(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert shapes(abstract) == shapes(real)
    assert abs(np.corrcoef(*real.layers.query[:2].reshape(2, -1))[0, 1]) < 0.1  # layers differ
    graph, state = nnx.split(abstract)
    cache = jax.ShapeDtypeStruct((3, 2, 8, 2, 16), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((2,), jnp.int32)
    step = jax.jit(lambda s, *x: nnx.merge(graph, s).decode(*x))
    assert step.lower(state, ids, ids, cache, cache).as_text()


def shapes(model: Llama) -> dict:
    return jax.tree.map(lambda x: (x.shape, x.dtype), nnx.to_pure_dict(nnx.state(model)))
