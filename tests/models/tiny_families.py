"""Tiny configurations of every family, saved by transformers with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VOCABULARY = 96
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "rms_norm_eps": 1e-5,
}
# Stretches short of this length, so that the tiny prompts feel it.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
_QWEN3 = {"model_type": "qwen3", **_COMMON, "intermediate_size": 48, "head_dim": 16}
_QWEN3_MOE = {
    **_QWEN3,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
_GPT_OSS = {
    "model_type": "gpt_oss",
    **_COMMON,
    "intermediate_size": 24,
    "head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 5,
    "rope_parameters": {**YARN, "truncate": False},
}
_DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    **_COMMON,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
    "routed_scaling_factor": 1.5,
    "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
}
CASES: dict[str, dict[str, Any]] = {
    "qwen3": _QWEN3,
    "qwen3-tied-yarn": {**_QWEN3, "tie_word_embeddings": True, "rope_parameters": YARN},
    "qwen3-moe": _QWEN3_MOE,
    "qwen3-moe-some-dense": {
        **_QWEN3_MOE,
        "norm_topk_prob": False,
        "decoder_sparse_step": 2,
        "num_hidden_layers": 5,
    },
    "gpt-oss": _GPT_OSS,
    "gpt-oss-odd": {**_GPT_OSS, "num_hidden_layers": 5},
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-v3-plain": {
        **_DEEPSEEK_V3,
        "q_lora_rank": None,
        "rope_interleave": False,
        "norm_topk_prob": False,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}


def reference_model(case: str) -> Any:
    """transformers' own model of that case, with weights that leave nothing flat or zero."""
    fields = dict(CASES[case])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    for name, values in [*model.named_parameters(), *model.named_buffers()]:
        if "inv_freq" in name:
            continue
        noise = torch.randn(values.shape, generator=generator) * 0.3
        values.data = 1 + noise if "norm" in name else noise
    return model.float().eval()


def save(case: str, folder: Path, shard: str = "1GB") -> Any:
    """Save the case with `save_pretrained`, in files of at most `shard`; returns the model."""
    model = reference_model(case)
    model.save_pretrained(folder, max_shard_size=shard)
    return model
