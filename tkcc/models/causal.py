"""What all language models share: embedding, scans over stacked layers, head, and the three steps.

Shapes: B batch, T tokens, S cache length, V vocabulary, M hidden size. A cache is one array
[layers, B, S, heads, channels] for each stack of layers (`tkcc.models.stacks`): the array alone
where a model has one stack, else a dict of them by stack name. A family whose layers need one
cache only (MLA) has no arrays in `v_cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from tkcc.ir import functional as F
from tkcc.models.stacks import Run, Stack, find_runs
from tkcc.models.weights import Weight, random_normal

Cache = Any  # an array, or a dict of arrays by stack name
CacheDims = tuple[tuple[int, int], tuple[int, int] | None]  # (heads, channels) of keys and values


class Config(Protocol):
    """What every family's config has; it is frozen and hashable."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def tie_word_embeddings(self) -> bool: ...
    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        ...


class Step(NamedTuple):
    """What `prefill`, `extend` and `decode` return."""

    next_tokens: jax.Array  # i32[B], greedy
    logits: jax.Array  # f32[B, V] of the last valid token
    k_cache: Cache
    v_cache: Cache


class Layer(nnx.Module):
    """Stacked decoder layers of one kind; a scan calls one at a time.

    Each is a pre-norm block: attention, then a feed-forward part, each on the normalised stream and
    added to it. A family defines `weights` (`attention_norm` and `mlp_norm` among them),
    `attention` and `mlp`, and `cache_dims` unless its caches are those of grouped-query attention;
    `self["name"]` is a parameter.
    """

    @classmethod
    def weights(cls, config: Any, kind: str) -> dict[str, Weight]:
        """The parameters of one layer, by name."""
        raise NotImplementedError(f"{cls.__name__} has no weights")

    @classmethod
    def cache_dims(cls, config: Any, kind: str) -> CacheDims:
        """(heads, channels) of the keys and of the values of one layer."""
        dims = (config.num_kv_heads, config.head_dim)
        return dims, dims

    def __init__(
        self, config: Any, stack: Stack, *, dtype: jax.typing.DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.config, self.kind = config, stack.kind
        for name, weight in self.weights(config, stack.kind).items():
            setattr(self, name, nnx.Param(weight.initial(rngs.params(), len(stack.layers), dtype)))

    def __getitem__(self, name: str) -> jax.Array:
        found: jax.Array = getattr(self, name)[...]
        return found

    def __call__(
        self, x: jax.Array, positions: jax.Array, k_cache: Any, v_cache: Any
    ) -> tuple[jax.Array, Any, Any]:
        """x [B, T, M], positions i32[B, T], caches [B, S, heads, channels] -> x and caches."""
        h = F.rms_norm(x, self["attention_norm"], eps=self.config.rms_norm_eps)
        attended, k_cache, v_cache = self.attention(h, positions, k_cache, v_cache)
        x = x + attended
        h = F.rms_norm(x, self["mlp_norm"], eps=self.config.rms_norm_eps)
        return x + self.mlp(h), k_cache, v_cache

    def attention(
        self, h: jax.Array, positions: jax.Array, k_cache: Any, v_cache: Any
    ) -> tuple[jax.Array, Any, Any]:
        """What attention adds to the stream, and the caches with the new tokens in them."""
        raise NotImplementedError(f"{type(self).__name__} has no attention")

    def mlp(self, h: jax.Array) -> jax.Array:
        """What the feed-forward part adds to the stream."""
        raise NotImplementedError(f"{type(self).__name__} has no mlp")


class CausalModel(nnx.Module):
    """A language model with greedy `prefill`, `extend` and `decode` over explicit caches.

    A subclass sets `config`, `runs`, `cache_dims`, `embedding`, `layers` (a module of stacked
    layers, or an `nnx.Dict` of them by stack name), `final_norm`, and `head` unless it is tied.
    """

    config: Any
    runs: tuple[Run, ...]
    cache_dims: tuple[CacheDims, ...]  # of each stack, in the order of `stacks`
    embedding: nnx.Param[jax.Array]
    layers: Any
    final_norm: nnx.Param[jax.Array]
    head: nnx.Param[jax.Array]

    def prefill(
        self, tokens: jax.Array, lengths: jax.Array, k_cache: Cache, v_cache: Cache
    ) -> Step:
        """Read whole prompts, padded on the right, into empty caches.

        Args:
            tokens: i32[B, T], T <= S. Padding may hold any valid token: what it writes into the
                cache lies past the prompt, and decoding overwrites it before it can be seen.
            lengths: i32[B], the valid tokens of each row, 1 <= length <= T.
            k_cache, v_cache: as `empty_caches` gives them.

        Raises:
            ValueError: T > S.
        """
        batch, length = tokens.shape
        room = jax.tree.leaves(k_cache)[0].shape[2]
        if length > room:
            raise ValueError(f"{length} tokens do not fit into a cache of {room}")
        positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
        x, k_cache, v_cache = self._layers(tokens, positions, k_cache, v_cache)
        last = x[jnp.arange(batch), lengths - 1]
        return self._predict(last, k_cache, v_cache)

    def extend(
        self,
        tokens: jax.Array,
        starts: jax.Array,
        counts: jax.Array,
        k_cache: Cache,
        v_cache: Cache,
    ) -> Step:
        """Read a further piece of each row's prompt; the caches hold what came before.

        Args:
            tokens: i32[B, T], padded on the right as in `prefill`.
            starts: i32[B], the position of each row's first token: the tokens before it. In plain
                caches start + T <= S; paged ones (`tkcc.ir.passes.paging`) take any.
            counts: i32[B], the valid tokens of each row, 0 <= count <= T; the logits of a row
                without any mean nothing.
            k_cache, v_cache: as the previous step returned them.
        """
        batch, length = tokens.shape
        positions = starts[:, None] + jnp.arange(length, dtype=jnp.int32)
        x, k_cache, v_cache = self._layers(tokens, positions, k_cache, v_cache)
        last = x[jnp.arange(batch), jnp.maximum(counts, 1) - 1]
        return self._predict(last, k_cache, v_cache)

    def decode(
        self, tokens: jax.Array, positions: jax.Array, k_cache: Cache, v_cache: Cache
    ) -> Step:
        """One more token for each row.

        Args:
            tokens: i32[B], the newest token of each row.
            positions: i32[B], its position: the number of tokens before it, < S.
            k_cache, v_cache: as the previous step returned them.
        """
        x, k_cache, v_cache = self._layers(tokens[:, None], positions[:, None], k_cache, v_cache)
        return self._predict(x[:, 0], k_cache, v_cache)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks of all runs, in order."""
        return tuple(stack for run in self.runs for stack in run)

    def cache_types(self, batch: int, length: int) -> tuple[Cache, Cache]:
        """`jax.ShapeDtypeStruct`s of the caches for S = `length` tokens."""
        dtype = self.embedding.get_value().dtype  # of an array or a ShapeDtypeStruct

        def cache(stack: Stack, dims: tuple[int, int] | None) -> Any:
            shape = (len(stack.layers), batch, length, *(dims or ()))
            return None if dims is None else jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]

        pairs = list(zip(self.stacks, self.cache_dims, strict=True))
        keys = {stack.name: cache(stack, dims[0]) for stack, dims in pairs}
        values = {stack.name: cache(stack, dims[1]) for stack, dims in pairs}
        return self._outside(keys), self._outside(values)

    def empty_caches(self, batch: int, length: int) -> tuple[Cache, Cache]:
        """Zeroed key and value caches for S = `length` tokens."""
        zeros: Callable[[Any], Any] = lambda x: jnp.zeros(x.shape, x.dtype)  # noqa: E731
        keys, values = jax.tree.map(zeros, self.cache_types(batch, length))
        return keys, values

    def _outside(self, by_stack: dict[str, Any]) -> Any:
        """What belongs to the stacks, as callers see it: alone if there is one stack."""
        return by_stack if len(by_stack) > 1 else next(iter(by_stack.values()))

    def _inside(self, given: Any) -> dict[str, Any]:
        return {self.stacks[0].name: given} if len(self.stacks) == 1 else dict(given)

    def _layers(
        self, tokens: jax.Array, positions: jax.Array, k_cache: Cache, v_cache: Cache
    ) -> tuple[jax.Array, Cache, Cache]:
        keys, values = self._inside(k_cache), self._inside(v_cache)
        x = F.embedding(self.embedding[...], tokens)
        for run in self.runs:
            x = self._scan(run, x, positions, keys, values)
        return x, self._outside(keys), self._outside(values)

    def _scan(
        self,
        run: Run,
        x: jax.Array,
        positions: jax.Array,
        keys: dict[str, Any],
        values: dict[str, Any],
    ) -> jax.Array:
        """Run the layers of one run; their new caches replace those in `keys` and `values`."""
        layers = self._inside(self.layers)
        split = [nnx.split(layers[stack.name]) for stack in run]

        def one_period(x: jax.Array, inputs: tuple[Any, ...]) -> tuple[jax.Array, tuple[Any, ...]]:
            written = []
            for (graph, _), (parameters, k, v) in zip(split, inputs, strict=True):
                x, k, v = nnx.merge(graph, parameters)(x, positions, k, v)
                written.append((k, v))
            return x, tuple(written)

        stacked = tuple(
            (parameters, keys[stack.name], values[stack.name])
            for stack, (_, parameters) in zip(run, split, strict=True)
        )
        x, written = jax.lax.scan(one_period, x, stacked)
        for stack, (k, v) in zip(run, written, strict=True):
            keys[stack.name], values[stack.name] = k, v
        return x

    def _predict(self, x: jax.Array, k_cache: Cache, v_cache: Cache) -> Step:
        x = F.rms_norm(x, self.final_norm[...], eps=self.config.rms_norm_eps)
        if self.config.tie_word_embeddings:
            logits = F.linear(x, self.embedding[...], transposed=True)
        else:
            logits = F.linear(x, self.head[...])
        logits = logits.astype(jnp.float32)
        return Step(F.sample(logits, method="greedy"), logits, k_cache, v_cache)


class Decoder(CausalModel):
    """The model of a family: its layers, as many as the config says, between embedding and head.

    Example:
        model = Decoder(config, Qwen3Layer, rngs=nnx.Rngs(0))
        k, v = model.empty_caches(batch=1, length=128)
        step = model.prefill(tokens, lengths, k, v)
        step = model.decode(step.next_tokens, lengths, step.k_cache, step.v_cache)
    """

    def __init__(
        self,
        config: Config,
        layer: type[Layer],
        *,
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        vocabulary, hidden = config.vocab_size, config.hidden_size
        self.config, self.runs = config, find_runs(config.kinds)
        self.cache_dims = tuple(layer.cache_dims(config, stack.kind) for stack in self.stacks)
        self.embedding = nnx.Param(random_normal(rngs.params(), (vocabulary, hidden), dtype))
        made = {stack.name: layer(config, stack, dtype=dtype, rngs=rngs) for stack in self.stacks}
        self.layers = nnx.Dict(made) if len(made) > 1 else next(iter(made.values()))
        self.final_norm = nnx.Param(jnp.ones(hidden, dtype))
        if not config.tie_word_embeddings:
            self.head = nnx.Param(random_normal(rngs.params(), (hidden, vocabulary), dtype))
