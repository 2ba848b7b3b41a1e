"""A tiny Llama whose layers are one scan, and running modules whose state may have another form."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.ir.rewrite.texts import run
from tkcc.ir.graph import PACK, UNPACK, Function, Module
from tkcc.ir.types import jax_dtype
from tkcc.language import StepShape, lower_language_model
from tkcc.models.llama import abstract_llama
from tkcc.models.llama_config import LlamaConfig

LAYERS, CONTEXT, PROMPT, VOCABULARY = 4, 8, 4, 11
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=8,
    intermediate_size=12,
    num_layers=LAYERS,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=True,
)

Arrays = dict[str, Any]


@functools.cache
def tiny_llama(batch: int = 2) -> Module:
    """`prefill` and `decode`, as imported: no rule has touched them."""
    shape = StepShape(batch, CONTEXT, PROMPT)
    return lower_language_model(abstract_llama(CONFIG), shape, name="tiny", recognise=False)


@functools.cache
def weights() -> Arrays:
    """Random parameters of the tiny model: norms near one, the others small."""
    draw = np.random.default_rng(0)
    return {
        name: jnp.asarray(
            (0.4 * draw.standard_normal(type_.shape) + ("norm" in name)).astype(
                jax_dtype(type_.dtype)
            )
        )
        for name, type_ in tiny_llama().parameters.items()
    }


def arguments(name: str, batch: int = 2) -> Arrays:
    """Parameters, arguments and caches for one step of the tiny model."""
    draw = np.random.default_rng(1)
    shape = (batch, PROMPT) if name == "prefill" else (batch,)
    given = {**weights(), "tokens": draw.integers(0, VOCABULARY, shape).astype(np.int32)}
    given["lengths"] = draw.integers(1, PROMPT + 1, batch).astype(np.int32)
    given["positions"] = draw.integers(0, CONTEXT, batch).astype(np.int32)
    for key, type_ in tiny_llama(batch).state.items():
        given[key] = draw.standard_normal(type_.shape).astype(np.float32)
    return given


def step(module: Module, name: str, given: Mapping[str, Any]) -> Arrays:
    """The outputs of a step by name. State goes in and comes out in the baseline's form."""
    values = dict(given)
    if PACK in module.functions:
        values.update(call(module.functions[PACK], values))
    out = call(module.functions[name], values)
    if UNPACK in module.functions:
        out.update(call(module.functions[UNPACK], out))
    return out


def call(function: Function, given: Mapping[str, Any]) -> Arrays:
    """A function's outputs by name (or number), its inputs taken from `given` by name."""
    outputs = run(function, [given[value.name] for value in function.inputs])
    names = function.output_names or tuple(map(str, range(len(outputs))))
    types = [value.type for value in function.outputs]
    return {
        name: array.astype(jax_dtype(type_.dtype))
        for name, array, type_ in zip(names, outputs, types, strict=True)
    }


def generate(module: Module, batch: int, steps: int) -> list[Arrays]:
    """Outputs of a prefill and of `steps` greedy steps; state stays in the module's own form."""
    given = arguments("prefill", batch)
    if PACK in module.functions:
        given.update(call(module.functions[PACK], given))
    outputs = [call(module.functions["prefill"], given)]
    for number in range(steps):
        last = outputs[-1]
        given.update({key: last[key] for key in module.state})
        given.update(tokens=last["next_tokens"], positions=given["lengths"] + np.int32(number))
        outputs.append(call(module.functions["decode"], given))
    if UNPACK in module.functions:
        for out in outputs:
            out.update(call(module.functions[UNPACK], out))
    return outputs
