"""Configs of every family: what they make, and what is refused by name."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.quick import quick_jit
from tkcc.models.causal import Decoder
from tkcc.models.errors import ModelError
from tkcc.models.families import FAMILIES, family_of
from tkcc.models.qwen3 import Qwen3Layer

ROPE = {"rope_scaling": None, "rope_theta": 1e6}
QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "max_window_layers": 3,
    "tie_word_embeddings": True,
    **ROPE,
}
# Fields of the published config.json of Qwen3-30B-A3B, gpt-oss-120b and DeepSeek-V3, without
# their notes on quantisation.
QWEN3_30B = {
    **{**QWEN3, "model_type": "qwen3_moe", "tie_word_embeddings": False},
    **{"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768},
    **{"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
    **{"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8},
    **{"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "vocab_size": 151936,
}
GPT_OSS_120B = {
    **{"model_type": "gpt_oss", "attention_bias": True, "hidden_act": "silu"},
    **{"hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 201088, "head_dim": 64},
    **{"num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 36},
    **{"num_local_experts": 128, "num_experts_per_tok": 4, "experts_per_token": 4},
    **{"sliding_window": 128, "swiglu_limit": 7.0, "rms_norm_eps": 1e-5, "rope_theta": 150000},
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3 = {
    **{"model_type": "deepseek_v3", "hidden_act": "silu", "attention_bias": False},
    **{"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048},
    **{"num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61},
    **{"first_k_dense_replace": 3, "moe_layer_freq": 1, "n_routed_experts": 256},
    **{"n_shared_experts": 1, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8},
    **{"norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid"},
    **{"topk_method": "noaux_tc", "q_lora_rank": 1536, "kv_lora_rank": 512, "v_head_dim": 128},
    **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "num_nextn_predict_layers": 1},
    **{"rms_norm_eps": 1e-6, "rope_theta": 10000, "vocab_size": 129280, "ep_size": 1},
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "tie_word_embeddings": False,
}
ALL = {"qwen3": QWEN3, "qwen3_moe": QWEN3_30B, "gpt_oss": GPT_OSS_120B, "deepseek_v3": DEEPSEEK_V3}


def abstract(fields: dict, dtype: str = "bfloat16"):
    family = family_of(fields)
    return family.abstract(family.config(fields), dtype)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen3_moe", 30_532_122_624),
        ("gpt_oss", 116_829_156_672),
        ("deepseek_v3", 671_026_419_200),
    ],
)
def test_published_models_have_their_published_number_of_parameters(name, parameters):
    leaves = jax.tree.leaves(nnx.state(abstract(ALL[name])))
    assert sum(leaf.size for leaf in leaves) == parameters


def test_a_latent_cache_holds_the_latent_and_the_rotated_key_of_each_token():
    keys, values = abstract(DEEPSEEK_V3).cache_types(2, 64)
    assert {name: x.shape for name, x in keys.items()} == {
        "dense_0": (3, 2, 64, 1, 576),
        "moe_3": (58, 2, 64, 1, 576),
    }
    assert not jax.tree.leaves(values)


def test_one_scan_per_run_over_as_many_layers_as_the_config_says():
    for fields, lengths in ((QWEN3, [3]), (GPT_OSS_120B, [18]), (DEEPSEEK_V3, [3, 58])):
        model = abstract(fields)
        graph, state = nnx.split(model)
        trace = jax.make_jaxpr(lambda s, *x, graph=graph: nnx.merge(graph, s).decode(*x))
        row = jax.ShapeDtypeStruct((1,), jnp.int32)
        step = trace(state, row, row, *model.cache_types(1, 8))
        scans = [eqn for eqn in step.eqns if eqn.primitive.name == "scan"]
        assert [eqn.params["length"] for eqn in scans] == lengths


def test_only_what_routing_needs_stays_in_float32():
    state = nnx.to_flat_state(nnx.state(abstract(DEEPSEEK_V3)))
    wide = {path[-1] for path, leaf in state if leaf.get_value().dtype == jnp.float32}
    assert wide == {"router", "router_bias"}


def test_an_unknown_model_type_is_refused_and_the_known_ones_are_named():
    for name in ("mamba", None, ["qwen3"]):
        with pytest.raises(ModelError, match=f"(?s)model_type .*{'.*'.join(FAMILIES)}"):
            family_of({"model_type": name})


REFUSED = [
    ("qwen3", {"attention_bias": True}, "attention_bias"),
    ("qwen3", {"hidden_act": "gelu"}, "hidden_act"),
    ("qwen3", {"use_sliding_window": True}, "use_sliding_window"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "sliding_attention"),
    ("qwen3", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("qwen3", {"new_thing": 7, "other": "x"}, "new_thing, other"),
    ("qwen3", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
    ("qwen3", {"rope_scaling": {"rope_type": ["yarn"]}}, "rope type"),
    ("qwen3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("qwen3", {"rope_parameters": {"long_factor": [1.0]}}, "long_factor"),
    ("qwen3", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "original_max"),
    ("qwen3", {"num_key_value_heads": 3}, "num_attention_heads"),
    ("qwen3", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ("qwen3", {"hidden_size": True}, "hidden_size"),
    ("qwen3", {"head_dim": 15}, "even"),
    ("qwen3", {"rms_norm_eps": float("inf")}, "rms_norm_eps"),
    ("qwen3", {"vocab_size": None}, "no 'vocab_size'"),
    ("qwen3_moe", {"num_experts_per_tok": 129}, "num_experts_per_tok"),
    ("qwen3_moe", {"num_local_experts": 64}, "num_experts, num_local_experts"),
    ("qwen3_moe", {"mlp_only_layers": "0"}, "mlp_only_layers"),
    ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit"),
    ("gpt_oss", {"attention_bias": False}, "attention_bias"),
    ("gpt_oss", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gpt_oss", {"experts_per_token": 2}, "num_experts_per_tok, experts_per_token"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func"),
    ("deepseek_v3", {"topk_method": "greedy"}, "topk_method"),
    ("deepseek_v3", {"num_key_value_heads": 8}, "num_key_value_heads"),
    ("deepseek_v3", {"n_group": 7}, "n_group"),
    ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
    ("deepseek_v3", {"index_topk": 2048}, "index_topk"),
]


@pytest.mark.parametrize(("name", "change", "word"), REFUSED)
def test_a_field_that_is_not_implemented_is_refused_by_name(name, change, word):
    fields = json.loads(json.dumps({**ALL[name], **change}))
    family_of(ALL[name]).config(ALL[name])  # what is refused is the change alone
    with pytest.raises(ModelError, match=word):
        family_of(fields).config(fields)


def test_fields_without_effect_and_empty_ones_are_let_pass():
    more = {"_name_or_path": "x", "torch_dtype": "bfloat16", "new_thing": None, "other": []}
    family = family_of(QWEN3)
    assert family.config({**QWEN3, **more}) == family.config(QWEN3)


def test_an_untrained_model_runs_and_its_layers_differ():
    model = Decoder(FAMILIES["qwen3"].config(QWEN3), Qwen3Layer, rngs=nnx.Rngs(0))
    first, second = np.asarray(model.layers["query"][:2])
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.1
    assert (np.asarray(model.layers["query_norm"]) == 1).all()
    graph, state = nnx.split(model)
    run = quick_jit(lambda state, *given: nnx.merge(graph, state).decode(*given).logits)
    zero = jnp.zeros(1, jnp.int32)
    logits = run(state, zero, zero, *model.empty_caches(1, 4))
    assert np.isfinite(logits).all()
    assert logits.std() > 0
