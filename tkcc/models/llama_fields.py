"""A LlamaConfig from GGUF metadata or from the fields of a Hugging Face `config.json`.

A field that would change the arithmetic and that `tkcc.models.llama` does not implement is refused
by name: a model that runs with a field ignored gives wrong text without any error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tkcc.models.llama_config import Llama3RopeScaling, LlamaConfig, require

# config.json fields that do not change what one forward pass computes.
_HF_IGNORED = {
    *("architectures", "attention_dropout", "chunk_size_feed_forward", "dtype", "torch_dtype"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type"),
    *("initializer_range", "is_encoder_decoder", "max_position_embeddings", "pretraining_tp"),
    *("output_attentions", "output_hidden_states", "return_dict", "use_cache"),
    "transformers_version",
}

_HF_READ = {
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"),
    *("rope_parameters", "rope_scaling", "rope_theta"),
}

# Fields that must have exactly this value where they are given.
_HF_FIXED: dict[str, Any] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "is_llama_config": True,
    "mlp_bias": False,
    "model_type": "llama",
    "rope_interleaved": False,
}

# Keys under `llama.` that are read, or that say nothing about the arithmetic (context_length).
_GGUF_KNOWN = {
    *("vocab_size", "embedding_length", "feed_forward_length", "block_count", "context_length"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.value_length", "attention.layer_norm_rms_epsilon"),
    *("rope.dimension_count", "rope.freq_base"),
}


def config_from_gguf(metadata: Mapping[str, Any], *, tied: bool) -> LlamaConfig:
    """Read the config from GGUF metadata; `tied` when the file has no `output.weight`.

    Raises:
        ModelError: another architecture, a missing key, or a key that is not implemented.
    """
    architecture = metadata.get("general.architecture")
    require(architecture == "llama", f"the GGUF architecture is {architecture!r}, not 'llama'")
    prefix = "llama."
    fields = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    _refuse("GGUF key", {prefix + name for name in set(fields) - _GGUF_KNOWN})
    heads, hidden = _count(fields, "attention.head_count"), _count(fields, "embedding_length")
    head_dim = _count(fields, "attention.key_length", hidden // heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        got = fields.get(key, head_dim)
        require(got == head_dim, f"llama.{key} is {got}, but a head has {head_dim} dimensions")
    return LlamaConfig(
        vocab_size=_count(fields, "vocab_size", _token_count(metadata)),
        hidden_size=hidden,
        intermediate_size=_count(fields, "feed_forward_length"),
        num_layers=_count(fields, "block_count"),
        num_heads=heads,
        num_kv_heads=_count(fields, "attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=_decimal(_number(fields, "attention.layer_norm_rms_epsilon")),
        rope_theta=_decimal(_number(fields, "rope.freq_base", 10000.0)),
        tie_word_embeddings=tied,
    )


def config_from_hf(config: Mapping[str, Any]) -> LlamaConfig:
    """Read the config from the fields of a Hugging Face `config.json`.

    Raises:
        ModelError: a missing field, a field that is not implemented, or a value that is not.
    """
    notes = {name for name in config if name.startswith(("_", "transformers."))}
    unknown = set(config) - _HF_READ - set(_HF_FIXED) - _HF_IGNORED - notes
    _refuse("config field", {name for name in unknown if config[name]})
    for name, only in _HF_FIXED.items():
        got = config.get(name, only)
        require(got == only, f"config field {name!r} is {got!r}; only {only!r} is implemented")
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    # transformers 5 writes one `rope_parameters`; older files have `rope_theta` and `rope_scaling`.
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    return LlamaConfig(
        vocab_size=_count(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_count(config, "intermediate_size"),
        num_layers=_count(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_count(config, "num_key_value_heads", heads),
        head_dim=_count(config, "head_dim", hidden // heads),
        rms_norm_eps=_number(config, "rms_norm_eps"),
        rope_theta=_number(rope, "rope_theta", _number(config, "rope_theta", 10000.0)),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope_scaling=_rope_scaling(rope),
    )


def _token_count(metadata: Mapping[str, Any]) -> int | None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else None


def _rope_scaling(rope: Mapping[str, Any]) -> Llama3RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    require(kind in ("default", "llama3"), f"rope type {kind!r} is not implemented")
    given = {name for name in rope if rope[name] is not None} - {"rope_type", "type", "rope_theta"}
    if kind == "default":
        _refuse("rope field", given)
        return None
    _refuse("rope field", given - set(Llama3RopeScaling.__dataclass_fields__))
    return Llama3RopeScaling(
        factor=_number(rope, "factor"),
        low_freq_factor=_number(rope, "low_freq_factor"),
        high_freq_factor=_number(rope, "high_freq_factor"),
        original_max_position_embeddings=_count(rope, "original_max_position_embeddings"),
    )


def _decimal(value: float) -> float:
    # GGUF stores f32: 1e-5 comes back as 9.9999997e-06. The shortest decimal that rounds to the
    # same f32 is the number that was meant, and equals the one in a config.json.
    return float(str(np.float32(value)))


def _count(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    given = fields.get(name)
    value: Any = default if given is None else given
    require(value is not None, f"the config has no {name!r}")
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    require(whole, f"{name} is {value!r}; it must be a whole number above 0")
    return int(value)


def _number(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    given = fields.get(name)
    value: Any = default if given is None else given
    require(value is not None, f"the config has no {name!r}")
    real = isinstance(value, int | float) and not isinstance(value, bool)
    require(real and 0 < value < float("inf"), f"{name} is {value!r}; it must be a number above 0")
    return float(value)


def _refuse(kind: str, names: set[str]) -> None:
    require(not names, f"{kind} not implemented: {', '.join(sorted(names))}")
