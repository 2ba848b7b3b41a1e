"""Checkpoints: GGUF and safetensors give the same parameters, in the model's own layout."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

from tkcc.models.checkpoints import read_checkpoint
from tkcc.models.errors import ModelError
from tkcc.models.llama_weights import GGUF, HUGGING_FACE

safetensors = pytest.importorskip("safetensors.flax", reason="safetensors is not installed")

HF_CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def hugging_face_names(config) -> dict[str, str]:
    """GGUF tensor name -> Hugging Face tensor name."""
    top = {GGUF.embedding: HUGGING_FACE.embedding, GGUF.final_norm: HUGGING_FACE.final_norm}
    for name, theirs in GGUF.layers.items():
        for i in range(config.num_layers):
            top[theirs.format(i=i)] = HUGGING_FACE.layers[name].format(i=i)
    return top


@pytest.fixture
def folder(tmp_path, write_tiny_gguf, tiny_config):
    """The tiny checkpoint as a Hugging Face folder; its tensors are kept beside it."""
    tensors = write_tiny_gguf().tensors
    names = hugging_face_names(tiny_config)
    path = tmp_path / "folder"
    path.mkdir()
    arrays = {names[name]: jnp.asarray(values) for name, values in tensors.items()}
    safetensors.save_file(arrays, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(HF_CONFIG))
    (path / "tokenizer.json").write_text(json.dumps(BARE_TOKENIZER))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "a"}}))
    return path


BARE_TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
}


def test_a_gguf_checkpoint_has_its_layers_stacked_transposed_and_its_heads_in_order(
    write_tiny_gguf, tiny_config
):
    tiny = write_tiny_gguf()
    config, parameters, _ = read_checkpoint(tiny.path)
    assert config == tiny_config
    np.testing.assert_array_equal(parameters["embedding"], tiny.tensors["token_embd.weight"])
    for name, theirs in GGUF.layers.items():
        for i in range(tiny_config.num_layers):
            expected = tiny.tensors[theirs.format(i=i)].T
            np.testing.assert_array_equal(parameters["layers"][name][i], expected, err_msg=name)


def test_safetensors_and_gguf_of_one_model_give_equal_parameters(write_tiny_gguf, folder):
    ours, theirs = read_checkpoint(write_tiny_gguf().path), read_checkpoint(folder)
    assert ours.config == theirs.config
    for name, values in ours.parameters["layers"].items():
        np.testing.assert_array_equal(values, theirs.parameters["layers"][name])
    for name in ("embedding", "final_norm"):
        np.testing.assert_array_equal(ours.parameters[name], theirs.parameters[name])
    assert theirs.tokenizer.encode("ab") == [0, 1]
    assert theirs.tokenizer.eos_id == 0


def test_bfloat16_safetensors_are_read(folder):
    path = folder / "model.safetensors"
    arrays = safetensors.load_file(path)
    rounded = {name: values.astype(jnp.bfloat16) for name, values in arrays.items()}
    safetensors.save_file(rounded, path)
    got = read_checkpoint(folder).parameters["final_norm"]
    assert got.dtype == np.float32
    expected = np.asarray(rounded[HUGGING_FACE.final_norm].astype(jnp.float32))
    np.testing.assert_array_equal(got, expected)


def test_an_untied_head_is_stored_in_by_out(folder):
    path = folder / "model.safetensors"
    head = np.random.default_rng(1).standard_normal((300, 64), np.float32)
    arrays = {**safetensors.load_file(path), HUGGING_FACE.head: jnp.asarray(head)}
    safetensors.save_file(arrays, path)
    (folder / "config.json").write_text(json.dumps({**HF_CONFIG, "tie_word_embeddings": False}))
    np.testing.assert_array_equal(read_checkpoint(folder).parameters["head"], head.T)


def test_a_tensor_that_is_missing_extra_or_misshapen_is_named(folder):
    path = folder / "model.safetensors"
    whole = safetensors.load_file(path)
    key = "model.layers.1.mlp.up_proj.weight"
    bias = "model.layers.0.self_attn.q_proj.bias"
    cases = [
        ({name: values for name, values in whole.items() if name != key}, f"lacks 1 .*{key}"),
        ({**whole, bias: jnp.zeros(64)}, f"ignore 1 .*{bias}"),
        ({**whole, key: whole[key].T}, f"{key}' is .64, 96."),
    ]
    for arrays, message in cases:
        safetensors.save_file(arrays, path)
        with pytest.raises(ModelError, match=message):
            read_checkpoint(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_or_missing_file_of_a_folder_is_named(folder, name):
    (folder / name).write_bytes(b"{\x00 no")
    with pytest.raises(ModelError, match=name.removesuffix(".json").split(".")[-1]):
        read_checkpoint(folder)
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name.split(".")[0]):
        read_checkpoint(folder)


def test_a_gguf_that_claims_a_billion_layers_is_refused_at_once(write_tiny_gguf):
    tiny = write_tiny_gguf(extra={"tkcc.note": "x"})
    raw = bytearray(tiny.path.read_bytes())
    at = raw.index(b"llama.block_count") + len(b"llama.block_count") + 4
    raw[at : at + 4] = (10**9).to_bytes(4, "little")
    tiny.path.write_bytes(raw)
    with pytest.raises(ModelError, match="too few for 1,000,000,000 layers"):
        read_checkpoint(tiny.path)
