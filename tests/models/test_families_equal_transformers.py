"""Tiny random models of every family, saved by transformers, against transformers' own modules."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.tiny_families import CASES, VOCABULARY, save, torch
from tests.quick import quick_jit
from tkcc.models.causal import CausalModel
from tkcc.models.loading import load_folder

PROMPTS = np.random.default_rng(1).integers(0, VOCABULARY, (2, 9))
LENGTHS = np.array([9, 6])
STEPS = 16
TOLERANCE = 1e-4


def steps(model: CausalModel) -> tuple[np.ndarray, np.ndarray]:
    """Logits [1 + STEPS, B, V] and greedy tokens [1 + STEPS, B] of the prompts and what follows."""
    graph, state = nnx.split(model)
    prefill = quick_jit(lambda state, *given: nnx.merge(graph, state).prefill(*given))
    decode = quick_jit(lambda state, *given: nnx.merge(graph, state).decode(*given))
    caches = model.empty_caches(2, 32)
    step = prefill(state, jnp.asarray(PROMPTS, jnp.int32), jnp.asarray(LENGTHS), *caches)
    logits, tokens = [step.logits], [step.next_tokens]
    for i in range(STEPS):
        positions = jnp.asarray(LENGTHS + i)
        step = decode(state, step.next_tokens, positions, step.k_cache, step.v_cache)
        logits.append(step.logits)
        tokens.append(step.next_tokens)
    return np.stack(logits), np.stack(tokens)


def routes(reference) -> list:
    """Filled, while the reference runs, with the experts each token was sent to."""
    seen: list = []
    for module in reference.modules():
        if type(module).__name__.endswith(("TopKRouter", "TopkRouter")):
            module.register_forward_hook(lambda _, __, out: seen.append(out[2].numpy()))
    return seen


@pytest.mark.parametrize("case", CASES)
def test_prefill_and_16_greedy_steps_equal_transformers(case, tmp_path, record_property):
    reference = save(case, tmp_path)
    logits, tokens = steps(load_folder(tmp_path))
    seen, worst = routes(reference), 0.0
    for row, length in enumerate(LENGTHS):
        whole = [*PROMPTS[row, :length], *tokens[:-1, row]]
        with torch.no_grad():
            wanted = reference(torch.tensor([whole])).logits[0].numpy()[length - 1 :]
        assert wanted.std(axis=-1).min() > 0.5  # nothing is flat
        worst = max(worst, float(np.abs(logits[:, row] - wanted).max()))
        np.testing.assert_array_equal(tokens[:, row], wanted.argmax(-1))
    record_property("largest_difference", worst)
    assert worst <= TOLERANCE
    assert all(len(np.unique(ids)) > ids.shape[1] for ids in seen)  # tokens go separate ways
    assert bool(seen) == ("num_experts_per_tok" in CASES[case])
    assert len(np.unique(tokens)) > 4
