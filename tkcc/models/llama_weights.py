"""Filling a Llama's parameters from the tensors of a GGUF or safetensors checkpoint.

Checkpoints store one matrix per layer as [out, in]. `tkcc.models.llama` stores all layers of one
kind as [layers, in, out], so each is transposed while it is copied into its place in the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tkcc.models.errors import ModelError
from tkcc.models.llama_config import LlamaConfig

Read = Callable[[str], np.ndarray]  # a checkpoint's tensor by name, any float dtype


@dataclass(frozen=True)
class Names:
    """How one checkpoint format names its tensors; `{i}` stands for the layer."""

    embedding: str
    final_norm: str
    head: str
    layers: dict[str, str]  # our parameter name -> theirs
    # GGUF files have q and k in the row order of llama.cpp's interleaved rope.
    interleaved_heads: bool = False


GGUF = Names(
    embedding="token_embd.weight",
    final_norm="output_norm.weight",
    head="output.weight",
    layers={
        "attention_norm": "blk.{i}.attn_norm.weight",
        "query": "blk.{i}.attn_q.weight",
        "key": "blk.{i}.attn_k.weight",
        "value": "blk.{i}.attn_v.weight",
        "output": "blk.{i}.attn_output.weight",
        "mlp_norm": "blk.{i}.ffn_norm.weight",
        "gate": "blk.{i}.ffn_gate.weight",
        "up": "blk.{i}.ffn_up.weight",
        "down": "blk.{i}.ffn_down.weight",
    },
    interleaved_heads=True,
)

HUGGING_FACE = Names(
    embedding="model.embed_tokens.weight",
    final_norm="model.norm.weight",
    head="lm_head.weight",
    layers={
        "attention_norm": "model.layers.{i}.input_layernorm.weight",
        "query": "model.layers.{i}.self_attn.q_proj.weight",
        "key": "model.layers.{i}.self_attn.k_proj.weight",
        "value": "model.layers.{i}.self_attn.v_proj.weight",
        "output": "model.layers.{i}.self_attn.o_proj.weight",
        "mlp_norm": "model.layers.{i}.post_attention_layernorm.weight",
        "gate": "model.layers.{i}.mlp.gate_proj.weight",
        "up": "model.layers.{i}.mlp.up_proj.weight",
        "down": "model.layers.{i}.mlp.down_proj.weight",
    },
)


def load_parameters(
    config: LlamaConfig, names: Names, present: set[str], read: Read
) -> dict[str, Any]:
    """The model's parameters as a nested dict of float32 arrays, in the model's own layout.

    `present` holds the names of all tensors of the checkpoint.

    Raises:
        ModelError: a tensor is missing, has another shape than `config` asks for, or would not be
            used (an extra bias, say), by name.
    """
    if config.num_layers > len(present):
        raise _error(f"{len(present)} tensors are too few for {config.num_layers:,} layers")
    _check_names(expected_names(config, names), present)
    tree: dict[str, Any] = {
        "embedding": _matrix(read, names.embedding, (config.vocab_size, config.hidden_size)),
        "final_norm": _matrix(read, names.final_norm, (config.hidden_size,)),
        "layers": {name: _stack(config, name, names, read) for name in layer_shapes(config)},
    }
    if not config.tie_word_embeddings:
        head = _matrix(read, names.head, (config.vocab_size, config.hidden_size))
        tree["head"] = np.ascontiguousarray(head.T)
    return tree


def expected_names(config: LlamaConfig, names: Names) -> set[str]:
    """Every tensor name that a checkpoint of this config has."""
    top = {names.embedding, names.final_norm}
    if not config.tie_word_embeddings:
        top.add(names.head)
    layers = range(config.num_layers)
    return top | {their.format(i=i) for their in names.layers.values() for i in layers}


def layer_shapes(config: LlamaConfig) -> Mapping[str, tuple[int, ...]]:
    """Shape of each parameter of one layer, matrices as [in, out]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "attention_norm": (hidden,),
        "query": (hidden, query),
        "key": (hidden, key),
        "value": (hidden, key),
        "output": (query, hidden),
        "mlp_norm": (hidden,),
        "gate": (hidden, inner),
        "up": (hidden, inner),
        "down": (inner, hidden),
    }


def _stack(config: LlamaConfig, name: str, names: Names, read: Read) -> np.ndarray:
    shape = layer_shapes(config)[name]
    first = _matrix(read, names.layers[name].format(i=0), shape[::-1])
    # Allocated only now: the sizes in an untrusted config are true for the tensor just read.
    stacked = np.empty((config.num_layers, *shape), np.float32)
    for i in range(config.num_layers):
        matrix = first if i == 0 else _matrix(read, names.layers[name].format(i=i), shape[::-1])
        if names.interleaved_heads and name in ("query", "key"):
            matrix = _undo_interleaving(matrix, config.head_dim)
        stacked[i] = matrix.T
    return stacked


def _undo_interleaving(matrix: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head from (0, d/2, 1, d/2 + 1, ...) back to 0 ... d - 1.

    llama.cpp's converter pairs row i with row i + d/2 for its interleaved rope (`permute` in
    convert_hf_to_gguf.py); `F.rope` uses the half-rotation order of the original checkpoint.
    """
    pairs = matrix.reshape(-1, head_dim // 2, 2, matrix.shape[1])
    return pairs.swapaxes(1, 2).reshape(matrix.shape)


def _matrix(read: Read, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = read(name)
    if values.shape != shape:
        raise _error(f"tensor {name!r} is {values.shape}, but the config asks for {shape}")
    return np.asarray(values, np.float32)


def _check_names(expected: set[str], present: set[str]) -> None:
    missing, extra = sorted(expected - present), sorted(present - expected)
    if missing:
        raise _error(f"the checkpoint lacks {len(missing)} tensors, first {missing[0]!r}")
    if extra:
        raise _error(f"the model would ignore {len(extra)} tensors, first {extra[0]!r}")


def _error(what: str) -> ModelError:
    remedy = "use a plain Llama checkpoint whose config.json belongs to its weights"
    return ModelError(what, where="Llama checkpoint", remedy=remedy)
