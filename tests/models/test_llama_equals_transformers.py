"""Tiny random Llamas against transformers' LlamaForCausalLM with the same weights."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tkcc.models.llama import Llama, llama_from_parameters
from tkcc.models.llama_config import Llama3RopeScaling, LlamaConfig
from tkcc.models.llama_fields import config_from_hf
from tkcc.models.llama_weights import HUGGING_FACE, load_parameters

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

PREFILL, DECODE = nnx.jit(Llama.prefill), nnx.jit(Llama.decode)
PROMPTS = np.array([[5, 17, 250, 3, 99, 12, 7], [9, 1, 2, 254, 77, 77, 30]])
LENGTHS = np.array([7, 4])
TOLERANCE = 1e-4
ROPE_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def reference_model(kv_heads: int, tied: bool, rope: dict | None):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        initializer_range=0.3,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        rope_parameters=rope or {"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config).float().eval()


def copy_of(reference) -> Llama:
    config = config_from_hf(reference.config.to_dict())
    tensors = {name: value.detach().numpy() for name, value in reference.state_dict().items()}
    if config.tie_word_embeddings:
        del tensors[HUGGING_FACE.head]
    parameters = load_parameters(config, HUGGING_FACE, set(tensors), tensors.__getitem__)
    return llama_from_parameters(config, parameters)


def reference_logits(reference, tokens: list[int]) -> np.ndarray:
    """Logits after each token, [T, V]."""
    with torch.no_grad():
        return reference(torch.tensor([tokens])).logits[0].numpy()


@pytest.mark.parametrize(
    ("kv_heads", "tied", "rope"),
    [(2, True, None), (4, True, None), (2, False, None), (4, False, None), (1, True, ROPE_LLAMA3)],
    ids=["gqa-tied", "mha-tied", "gqa-untied", "mha-untied", "mqa-llama3-rope"],
)
def test_prefill_and_16_decode_steps_give_transformers_logits(kv_heads, tied, rope):
    reference = reference_model(kv_heads, tied, rope)
    model = copy_of(reference)
    step = PREFILL(
        model, jnp.asarray(PROMPTS, jnp.int32), jnp.asarray(LENGTHS), *model.empty_caches(2, 24)
    )
    logits, tokens = [step.logits], [step.next_tokens]
    for i in range(16):
        positions = jnp.asarray(LENGTHS + i)
        step = DECODE(model, step.next_tokens, positions, step.k_cache, step.v_cache)
        logits.append(step.logits)
        tokens.append(step.next_tokens)
    for row, length in enumerate(LENGTHS):
        new = [int(token[row]) for token in tokens]
        expected = reference_logits(reference, [*PROMPTS[row, :length], *new[:-1]])[length - 1 :]
        assert np.abs(expected).max() > 1  # the comparison is not one of near-zeros
        ours = np.stack(logits)[:, row]
        np.testing.assert_allclose(ours, expected, atol=TOLERANCE, rtol=TOLERANCE)
        np.testing.assert_array_equal(new, expected.argmax(-1))


def test_rope_frequencies_equal_those_of_transformers():
    scaling = Llama3RopeScaling(8.0, 1.0, 4.0, 16)
    plain = LlamaConfig(256, 64, 96, 3, 4, 1, 16, 1e-5, 10000.0, True)
    stretched = dataclasses.replace(plain, rope_scaling=scaling)
    for ours, rope in ((plain, None), (stretched, ROPE_LLAMA3)):
        theirs = reference_model(1, True, rope).model.rotary_emb.inv_freq.numpy()
        np.testing.assert_allclose(ours.inverse_frequencies(), theirs, rtol=1e-6)


def test_a_saved_transformers_checkpoint_is_read_as_it_is(tmp_path):
    from tkcc.models.checkpoints import _read_safetensors

    reference = reference_model(2, True, None)
    reference.save_pretrained(tmp_path)
    config = config_from_hf(reference.config.to_dict())
    parameters = _read_safetensors(tmp_path / "model.safetensors", config)
    model = llama_from_parameters(config, parameters)
    tokens = jnp.asarray(PROMPTS[:1], jnp.int32)
    step = PREFILL(model, tokens, jnp.array([7]), *model.empty_caches(1, 8))
    expected = reference_logits(reference, PROMPTS[0].tolist())[-1]
    np.testing.assert_allclose(step.logits[0], expected, atol=TOLERANCE, rtol=TOLERANCE)
