"""A tiny Llama with random weights, lowered: what the product's tests run on."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from flax import nnx

from tkcc.candidate import Workload
from tkcc.ir.graph import Module
from tkcc.language import StepShape, lower_language_model
from tkcc.models.llama import Llama
from tkcc.models.llama_config import LlamaConfig

SHAPE = StepShape(batch=2, context=16, prompt=6)
WORKLOAD = Workload(model="tiny", batch=2, context=16, prompt=6)
PROMPTS = [
    [[1, 2, 3], [4, 5, 6, 7]],
    [[9, 8], [7, 6, 5]],
    [[11], [12, 13]],
    [[3, 1, 4, 1, 5, 9], [2, 6]],
]
CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=24,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=True,
)


@functools.cache
def tiny_module(dtype: str = "float32") -> Module:
    """prefill and decode of the tiny model, with its weights."""
    model = Llama(CONFIG, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
    return lower_language_model(model, SHAPE, name="tiny")
