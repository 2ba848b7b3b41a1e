"""Llama in Flax nnx, written plainly: the un-optimised baseline that tkcc starts from.

Layers are stacked ([layers, ...] parameters) and run by one `jax.lax.scan`; q, k, v, gate and up
are separate matrices stored [in, out]. Named operations carry the structure (`tkcc.ir.functional`).

Architecture: Touvron et al., "LLaMA", arXiv 2302.13971, with grouped-query attention.

Shapes: B batch, T tokens, S cache length, V vocabulary, L layers, H heads, KH key/value heads,
D head size, M hidden size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from tkcc.ir import functional as F
from tkcc.models.llama_config import LlamaConfig
from tkcc.models.llama_weights import layer_shapes

_INITIAL_DEVIATION = 0.02  # of random weights; only untrained models use it


class Step(NamedTuple):
    """What `prefill` and `decode` return."""

    next_tokens: jax.Array  # i32[B], greedy
    logits: jax.Array  # f32[B, V] of the last valid token
    k_cache: jax.Array  # [L, B, S, KH, D]
    v_cache: jax.Array  # [L, B, S, KH, D]


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


class Llama(nnx.Module):
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
        self.embedding = nnx.Param(_random(rngs, (vocabulary, hidden), dtype))
        self.layers = stacked_layers(rngs)
        self.final_norm = nnx.Param(jnp.ones(hidden, dtype))
        if not config.tie_word_embeddings:
            self.head = nnx.Param(_random(rngs, (hidden, vocabulary), dtype))

    def prefill(
        self, tokens: jax.Array, lengths: jax.Array, k_cache: jax.Array, v_cache: jax.Array
    ) -> Step:
        """Read whole prompts, padded on the right, into empty caches.

        Args:
            tokens: i32[B, T], T <= S. Padding may hold any valid token: what it writes into the
                cache lies past the prompt, and decoding overwrites it before it can be seen.
            lengths: i32[B], the valid tokens of each row, 1 <= length <= T.
            k_cache, v_cache: [L, B, S, KH, D] in the dtype of the parameters.

        Raises:
            ValueError: T > S.
        """
        batch, length = tokens.shape
        if length > k_cache.shape[2]:
            raise ValueError(f"{length} tokens do not fit into a cache of {k_cache.shape[2]}")
        positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
        x, k_cache, v_cache = self._layers(tokens, positions, k_cache, v_cache)
        last = x[jnp.arange(batch), lengths - 1]
        return self._predict(last, k_cache, v_cache)

    def extend(
        self,
        tokens: jax.Array,
        starts: jax.Array,
        counts: jax.Array,
        k_cache: jax.Array,
        v_cache: jax.Array,
    ) -> Step:
        """Read a further piece of each row's prompt; the caches hold what came before.

        Args:
            tokens: i32[B, T], padded on the right as in `prefill`.
            starts: i32[B], the position of each row's first token: the tokens before it. In plain
                caches start + T <= S; paged ones (`tkcc.ir.passes.paging`) take any.
            counts: i32[B], the valid tokens of each row, 0 <= count <= T; the logits of a row
                without any mean nothing.
            k_cache, v_cache: [L, B, S, KH, D], as the previous step returned them.
        """
        batch, length = tokens.shape
        positions = starts[:, None] + jnp.arange(length, dtype=jnp.int32)
        x, k_cache, v_cache = self._layers(tokens, positions, k_cache, v_cache)
        last = x[jnp.arange(batch), jnp.maximum(counts, 1) - 1]
        return self._predict(last, k_cache, v_cache)

    def decode(
        self, tokens: jax.Array, positions: jax.Array, k_cache: jax.Array, v_cache: jax.Array
    ) -> Step:
        """One more token for each row.

        Args:
            tokens: i32[B], the newest token of each row.
            positions: i32[B], its position: the number of tokens before it, < S.
            k_cache, v_cache: [L, B, S, KH, D], as the previous step returned them.
        """
        x, k_cache, v_cache = self._layers(tokens[:, None], positions[:, None], k_cache, v_cache)
        return self._predict(x[:, 0], k_cache, v_cache)

    def empty_caches(self, batch: int, length: int) -> tuple[jax.Array, jax.Array]:
        """Zeroed key and value caches [L, B, S, KH, D] for S = `length` tokens."""
        config = self.config
        shape = (config.num_layers, batch, length, config.num_kv_heads, config.head_dim)
        dtype = self.embedding[...].dtype
        return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)

    def _layers(
        self, tokens: jax.Array, positions: jax.Array, k_cache: jax.Array, v_cache: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        graph, stacked = nnx.split(self.layers)

        def one_layer(
            x: jax.Array, inputs: tuple[Any, jax.Array, jax.Array]
        ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            parameters, k, v = inputs
            x, k, v = nnx.merge(graph, parameters)(x, positions, k, v)
            return x, (k, v)

        x = F.embedding(self.embedding[...], tokens)
        x, (k_cache, v_cache) = jax.lax.scan(one_layer, x, (stacked, k_cache, v_cache))
        return x, k_cache, v_cache

    def _predict(self, x: jax.Array, k_cache: jax.Array, v_cache: jax.Array) -> Step:
        x = F.rms_norm(x, self.final_norm[...], eps=self.config.rms_norm_eps)
        if self.config.tie_word_embeddings:
            logits = F.linear(x, self.embedding[...], transposed=True)
        else:
            logits = F.linear(x, self.head[...])
        logits = logits.astype(jnp.float32)
        return Step(F.sample(logits, method="greedy"), logits, k_cache, v_cache)


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
