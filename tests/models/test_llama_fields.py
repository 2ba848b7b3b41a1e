"""Configs: read from both formats alike, and refused by name where they are not implemented."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tkcc.models.errors import ModelError
from tkcc.models.llama_config import Llama3RopeScaling, LlamaConfig
from tkcc.models.llama_fields import config_from_gguf, config_from_hf

HF = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"dtype": "q4"},
}

GGUF = {
    "general.architecture": "llama",
    "llama.vocab_size": 300,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.block_count": 3,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "llama.rope.freq_base": 10000.0,
    "llama.context_length": 2048,
}


def test_both_formats_of_one_model_give_the_same_config(tiny_config):
    assert config_from_hf(HF) == tiny_config
    assert config_from_gguf(GGUF, tied=True) == tiny_config


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"model_type": "mistral"},
        {"sliding_window": 4096},
        {"quantization_config": {"bits": 4}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"num_attention_heads": 0},
        {"hidden_size": "64"},
        {"num_key_value_heads": 3},
        {"rms_norm_eps": float("nan")},
    ],
)
def test_a_hf_field_that_is_not_implemented_is_refused_by_name(change):
    name = next(iter(change))
    word = {"rope_scaling": "yarn", "rope_parameters": "partial_rotary_factor"}.get(name, name)
    word = {"num_key_value_heads": "num_kv_heads"}.get(name, word)
    with pytest.raises(ModelError, match=word):
        config_from_hf({**HF, **change})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.expert_count", 8),
        ("llama.rope.scaling.type", "yarn"),
        ("llama.rope.dimension_count", 8),
        ("llama.attention.head_count", [4, 4, 4]),
        ("general.architecture", "mamba"),
    ],
)
def test_a_gguf_key_that_is_not_implemented_is_refused_by_name(key, value):
    with pytest.raises(ModelError, match=key.removeprefix("llama.").removeprefix("general.")):
        config_from_gguf({**GGUF, key: value}, tied=True)


def test_a_missing_field_is_named():
    without = {key: value for key, value in HF.items() if key != "hidden_size"}
    with pytest.raises(ModelError, match="no 'hidden_size'"):
        config_from_hf(without)


def test_plain_inverse_frequencies_are_powers_of_theta(tiny_config):
    got = tiny_config.inverse_frequencies()
    np.testing.assert_allclose(got, [10000.0 ** (-2 * i / 16) for i in range(8)], rtol=1e-6)
    assert got.dtype == np.float32


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones():
    scaling = Llama3RopeScaling(8.0, 1.0, 4.0, 8192)
    plain = LlamaConfig(8, 8, 8, 1, 1, 1, 128, 1e-5, 500000.0, True)
    scaled = dataclasses.replace(plain, rope_scaling=scaling).inverse_frequencies()
    before = plain.inverse_frequencies()
    wavelength = 2 * np.pi / before
    np.testing.assert_allclose(scaled[wavelength < 8192 / 4], before[wavelength < 8192 / 4])
    long = wavelength > 8192
    np.testing.assert_allclose(scaled[long], before[long] / 8, rtol=1e-6)
    assert np.all(np.diff(scaled) < 0)
