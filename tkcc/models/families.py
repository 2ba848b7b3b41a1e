"""Model families by `model_type`: from the fields of a `config.json` to a model."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tkcc.models import deepseek_v3, gpt_oss, qwen3, qwen3_moe
from tkcc.models.causal import CausalModel, Config, Decoder, Layer
from tkcc.models.errors import ModelError
from tkcc.models.fields import Fields
from tkcc.models.llama import abstract_llama, llama_from_parameters
from tkcc.models.llama_fields import config_from_hf
from tkcc.models.llama_weights import HUGGING_FACE, load_parameters
from tkcc.models.stacks import Stack
from tkcc.models.weights import Read, Weight, read_tensor

_EMBEDDING, _FINAL_NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class Family(abc.ABC):
    """How models of one `model_type` are read and built."""

    @abc.abstractmethod
    def config(self, values: Mapping[str, Any]) -> Any:
        """The config in the fields of a `config.json`. Raises ModelError."""

    @abc.abstractmethod
    def abstract(self, config: Any, dtype: jax.typing.DTypeLike) -> CausalModel:
        """The model with `jax.ShapeDtypeStruct` parameters."""

    @abc.abstractmethod
    def load(
        self, config: Any, present: set[str], read: Read, dtype: jax.typing.DTypeLike
    ) -> CausalModel:
        """The model with the weights of a checkpoint whose tensors are `present`.

        Raises ModelError for a tensor that is missing, unexpected or of another shape, by name.
        """


@dataclass(frozen=True)
class LlamaFamily(Family):
    """Llama 2 and 3, which have a module of their own."""

    def config(self, values: Mapping[str, Any]) -> Any:
        return config_from_hf(values)

    def abstract(self, config: Any, dtype: jax.typing.DTypeLike) -> CausalModel:
        return abstract_llama(config, dtype)

    def load(
        self, config: Any, present: set[str], read: Read, dtype: jax.typing.DTypeLike
    ) -> CausalModel:
        if config.tie_word_embeddings:
            present = present - {_HEAD}  # some files repeat the embedding here
        parameters = load_parameters(config, HUGGING_FACE, present, read)
        return llama_from_parameters(config, parameters, dtype)


@dataclass(frozen=True)
class DecoderFamily(Family):
    """A family given by its config reader and its layer.

    `draft_layers` counts further layers that a checkpoint may hold and the model does not use.
    """

    model_type: str
    read: Callable[[Fields], Config]
    layer: type[Layer]
    draft_layers: Callable[[Any], int] = lambda config: 0

    def config(self, values: Mapping[str, Any]) -> Any:
        fields = Fields(values, self.model_type)
        config = self.read(fields)
        fields.refuse_others()
        return config

    def abstract(self, config: Any, dtype: jax.typing.DTypeLike) -> CausalModel:
        make = lambda: Decoder(config, self.layer, dtype=dtype, rngs=nnx.Rngs(0))  # noqa: E731
        model = nnx.eval_shape(make)
        assert isinstance(model, Decoder)
        return model

    def load(
        self, config: Any, present: set[str], read: Read, dtype: jax.typing.DTypeLike
    ) -> CausalModel:
        model = self.abstract(config, dtype)
        weights = {s.name: self.layer.weights(config, s.kind) for s in model.stacks}
        self._check_names(config, model, weights, present)
        tree = _top(config, read)
        stacks = {s.name: _stacked(s, weights[s.name], read, dtype) for s in model.stacks}
        tree["layers"] = stacks if len(stacks) > 1 else next(iter(stacks.values()))
        graph, state = nnx.split(model)
        cast = lambda new, old: jnp.asarray(new, old.dtype)  # noqa: E731
        arrays = jax.tree.map(cast, tree, nnx.to_pure_dict(state))
        nnx.replace_by_pure_dict(state, arrays)
        merged = nnx.merge(graph, state)
        assert isinstance(merged, Decoder)
        return merged

    def _check_names(
        self, config: Any, model: CausalModel, weights: Any, present: set[str]
    ) -> None:
        layers = len(config.kinds)
        if layers > len(present):
            raise _error(f"{len(present)} tensors are too few for {layers:,} layers")
        expected = {_EMBEDDING, _FINAL_NORM} | ({_HEAD} - _tied(config))
        for stack in model.stacks:
            for weight in weights[stack.name].values():
                expected.update(name for i in stack.layers for name in weight.sources(i))
        drafts = range(layers, layers + self.draft_layers(config))
        unused = tuple(f"model.layers.{i}." for i in drafts)
        missing = sorted(expected - present)
        extra = sorted(n for n in present - expected - _tied(config) if not n.startswith(unused))
        if missing:
            raise _error(f"the checkpoint lacks {len(missing)} tensors, first {missing[0]!r}")
        if extra:
            raise _error(f"the model would ignore {len(extra)} tensors, first {extra[0]!r}")


def _tied(config: Any) -> set[str]:
    """The head, where it is the embedding; some files repeat it."""
    return {_HEAD} if config.tie_word_embeddings else set()


def _top(config: Any, read: Read) -> dict[str, Any]:
    shape = (config.vocab_size, config.hidden_size)
    tree: dict[str, Any] = {
        "embedding": read_tensor(read, _EMBEDDING, shape),
        "final_norm": read_tensor(read, _FINAL_NORM, shape[1:]),
    }
    if not config.tie_word_embeddings:
        tree["head"] = read_tensor(read, _HEAD, shape).T
    return tree


def _stacked(
    stack: Stack, weights: dict[str, Weight], read: Read, dtype: jax.typing.DTypeLike
) -> dict[str, np.ndarray]:
    return {name: _stack(stack, weight, read, dtype) for name, weight in weights.items()}


def _stack(stack: Stack, weight: Weight, read: Read, dtype: jax.typing.DTypeLike) -> np.ndarray:
    kept = np.dtype(np.float32 if weight.wide else jnp.dtype(dtype))
    first = weight.read(read, stack.layers.start, kept)
    # Allocated only now: the sizes in an untrusted config are true for the tensor just read.
    stacked = np.empty((len(stack.layers), *weight.shape), kept)
    stacked[0] = first
    for place, layer in list(enumerate(stack.layers))[1:]:
        stacked[place] = weight.read(read, layer, kept)
    return stacked


def _error(what: str) -> ModelError:
    remedy = "use a checkpoint whose config.json belongs to its weights"
    return ModelError(what, where="checkpoint", remedy=remedy)


FAMILIES: Mapping[str, Family] = {
    "llama": LlamaFamily(),
    "qwen3": DecoderFamily("qwen3", qwen3.read_config, qwen3.Qwen3Layer),
    "qwen3_moe": DecoderFamily("qwen3_moe", qwen3_moe.read_config, qwen3_moe.Qwen3MoeLayer),
    "gpt_oss": DecoderFamily("gpt_oss", gpt_oss.read_config, gpt_oss.GptOssLayer),
    "deepseek_v3": DecoderFamily(
        "deepseek_v3",
        deepseek_v3.read_config,
        deepseek_v3.DeepseekV3Layer,
        draft_layers=lambda config: config.num_draft_layers,
    ),
}


def family_of(values: Mapping[str, Any]) -> Family:
    """The family of a `config.json`. Raises ModelError for a `model_type` that is not known."""
    name = values.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ModelError(
            f"model_type {name!r} is not implemented",
            where="config.json",
            remedy=f"use one of {', '.join(FAMILIES)}, or add a family (docs/add-a-model.md)",
        )
    return FAMILIES[name]
