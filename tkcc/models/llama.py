"""Llama in Flax nnx, written plainly: the un-optimised baseline that tkcc starts from.

Layers are stacked ([layers, ...] parameters) and run by one `jax.lax.scan`; q, k, v, gate and up
are separate matrices stored [in, out]. Named operations carry the structure (`tkcc.ir.functional`).

Architecture: Touvron et al., "LLaMA", arXiv 2302.13971, with grouped-query attention.

Shapes: B batch, T tokens, S cache length, V vocabulary, L layers, H heads, KH key/value heads,
D head size, M hidden size.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tkcc.ir import functional as F
from tkcc.models.causal import CausalModel, Step
from tkcc.models.llama_config import LlamaConfig
from tkcc.models.llama_weights import layer_shapes
from tkcc.models.stacks import find_runs

__all__ = ["Llama", "LlamaLayer", "Step", "abstract_llama", "llama_from_parameters"]

_INITIAL_DEVIATION = 0.02  # of random weights; only untrained models use it


class LlamaLayer(nnx.Module):
    """One decoder layer. In a `Llama`, each parameter has a leading [layers] axis."""

    def __init__(self, config: LlamaConfig, *, dtype: jax.typing.DTypeLike, rngs: nnx.Rngs):
        shapes = layer_shapes(config)

        def matrix(name: str) -> nnx.Param[jax.Array]:
            return nnx.Param(_random(rngs, shapes[name], dtype))

        self.config = config
        self.attention_norm = nnx.Param(jnp.ones(shapes["attention_norm"], dtype))
        self.query, self.key, self.value = matrix("query"), matrix("key"), matrix("value")
        self.output = matrix("output")
        self.mlp_norm = nnx.Param(jnp.ones(shapes["mlp_norm"], dtype))
        self.gate, self.up, self.down = matrix("gate"), matrix("up"), matrix("down")

    def __call__(
        self, x: jax.Array, positions: jax.Array, k_cache: jax.Array, v_cache: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x [B, T, M], positions i32[B, T], caches [B, S, KH, D] -> the same, without positions."""
        h = F.rms_norm(x, self.attention_norm[...], eps=self.config.rms_norm_eps)
        attended, k_cache, v_cache = self._attention(h, positions, k_cache, v_cache)
        x = x + attended
        h = F.rms_norm(x, self.mlp_norm[...], eps=self.config.rms_norm_eps)
        return x + self._mlp(h), k_cache, v_cache

    def _attention(
        self, h: jax.Array, positions: jax.Array, k_cache: jax.Array, v_cache: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        inv_freq = jnp.asarray(self.config.inverse_frequencies())
        q = F.rope(self._heads(h, self.query), positions, inv_freq)
        k = F.rope(self._heads(h, self.key), positions, inv_freq)
        v = self._heads(h, self.value)
        k_cache = F.update_cache(k_cache, k, positions[:, 0])
        v_cache = F.update_cache(v_cache, v, positions[:, 0])
        scale = self.config.head_dim**-0.5
        attended = F.attention(q, k_cache, v_cache, positions=positions, scale=scale, causal=True)
        joined = attended.reshape(*attended.shape[:2], -1)
        return F.linear(joined, self.output[...]), k_cache, v_cache

    def _heads(self, h: jax.Array, weight: nnx.Param[jax.Array]) -> jax.Array:
        projected: jax.Array = F.linear(h, weight[...])
        return projected.reshape(*projected.shape[:2], -1, self.config.head_dim)

    def _mlp(self, h: jax.Array) -> jax.Array:
        gated = F.swiglu(F.linear(h, self.gate[...]), F.linear(h, self.up[...]))
        out: jax.Array = F.linear(gated, self.down[...])
        return out


class Llama(CausalModel):
    """A Llama language model with greedy `prefill` and `decode` steps over explicit caches.

    Example:
        model = Llama(config, rngs=nnx.Rngs(0))
        k, v = model.empty_caches(batch=1, length=128)
        step = model.prefill(tokens, lengths, k, v)
        step = model.decode(step.next_tokens, lengths, step.k_cache, step.v_cache)
    """

    def __init__(
        self, config: LlamaConfig, *, dtype: jax.typing.DTypeLike = jnp.float32, rngs: nnx.Rngs
    ):
        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked_layers(rngs: nnx.Rngs) -> LlamaLayer:
            return LlamaLayer(config, dtype=dtype, rngs=rngs)

        vocabulary, hidden = config.vocab_size, config.hidden_size
        self.config = config
        self.runs = find_runs(("layer",) * config.num_layers)
        dims = (config.num_kv_heads, config.head_dim)
        self.cache_dims = ((dims, dims),)
        self.embedding = nnx.Param(_random(rngs, (vocabulary, hidden), dtype))
        self.layers = stacked_layers(rngs)
        self.final_norm = nnx.Param(jnp.ones(hidden, dtype))
        if not config.tie_word_embeddings:
            self.head = nnx.Param(_random(rngs, (hidden, vocabulary), dtype))


def _random(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.Array:
    return jax.random.normal(rngs.params(), shape, dtype) * jnp.asarray(_INITIAL_DEVIATION, dtype)


def abstract_llama(config: LlamaConfig, dtype: jax.typing.DTypeLike = jnp.float32) -> Llama:
    """A `Llama` whose parameters are `jax.ShapeDtypeStruct`s."""
    module = nnx.eval_shape(lambda: Llama(config, dtype=dtype, rngs=nnx.Rngs(0)))
    assert isinstance(module, Llama)
    return module


def llama_from_parameters(
    config: LlamaConfig, parameters: dict[str, Any], dtype: jax.typing.DTypeLike = jnp.float32
) -> Llama:
    """A `Llama` with these arrays, as `tkcc.models.llama_weights.load_parameters` gives them."""
    graph, state = nnx.split(abstract_llama(config, dtype))
    arrays = jax.tree.map(lambda value: jnp.asarray(value, dtype), parameters)
    nnx.replace_by_pure_dict(state, arrays)
    module = nnx.merge(graph, state)
    assert isinstance(module, Llama)
    return module
