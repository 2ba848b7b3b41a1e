"""Folders as transformers saves them: one file or several, checked by name, safetensors only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.tiny_families import save
from tests.quick import quick_jit
from tkcc.models.errors import ModelError
from tkcc.models.loading import abstract_folder, load_folder, load_path

safetensors = pytest.importorskip("safetensors.flax", reason="safetensors is not installed")

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A DeepSeek-V3 in one file; it has dense and mixture layers."""
    folder = tmp_path_factory.mktemp("whole")
    save("deepseek-v3", folder)
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    save("deepseek-v3", folder, shard="50KB")
    return folder


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


@pytest.fixture
def sharded_copy(sharded, tmp_path) -> Path:
    return Path(shutil.copytree(sharded, tmp_path / "copy"))


def change(folder: Path, **tensors) -> None:
    """Set tensors by name, or drop those that are None."""
    path = folder / "model.safetensors"
    arrays = {**safetensors.load_file(path), **tensors}
    safetensors.save_file({k: v for k, v in arrays.items() if v is not None}, path)


def state(model) -> dict:
    return nnx.to_pure_dict(nnx.state(model))


def prefill(model):
    graph, state = nnx.split(model)
    run = quick_jit(lambda state, *given: nnx.merge(graph, state).prefill(*given))
    tokens = jnp.array([[5, 17, 80, 3]], jnp.int32)
    return run(state, tokens, jnp.array([4]), *model.empty_caches(1, 8))


def test_several_files_with_an_index_give_the_parameters_of_one_file(saved, sharded):
    assert len(list(sharded.glob("*.safetensors"))) > 3
    one, several = state(load_folder(saved)), state(load_folder(sharded))
    jax.tree.map(np.testing.assert_array_equal, one, several)


def test_a_missing_tensor_is_named(copy):
    change(copy, **{"model.layers.2.mlp.experts.5.up_proj.weight": None})
    with pytest.raises(ModelError, match=r"lacks 1 tensors.*layers\.2\.mlp\.experts\.5\.up_proj"):
        load_folder(copy)


def test_an_unexpected_tensor_is_named(copy):
    change(copy, **{"model.layers.1.self_attn.o_proj.bias": jnp.zeros(32)})
    with pytest.raises(ModelError, match=r"ignore 1 tensors.*layers\.1\.self_attn\.o_proj\.bias"):
        load_folder(copy)


def test_a_tensor_of_another_shape_is_named(copy):
    change(copy, **{"model.layers.1.mlp.gate.weight": jnp.zeros((32, 8))})
    with pytest.raises(ModelError, match=r"mlp\.gate\.weight' is \(32, 8\).*\(8, 32\)"):
        load_folder(copy)


def test_a_quantised_tensor_is_named(copy):
    change(copy, **{"model.layers.1.mlp.gate.weight": jnp.zeros((8, 32), jnp.int8)})
    with pytest.raises(ModelError, match=r"mlp\.gate\.weight' is int8"):
        load_folder(copy)


def test_draft_layers_that_the_config_counts_are_left_and_others_are_not(copy):
    change(copy, **{"model.layers.4.eh_proj.weight": jnp.zeros(3)})
    load_folder(copy)  # num_nextn_predict_layers is 1, and the model has layers 0 to 3
    change(copy, **{"model.layers.5.eh_proj.weight": jnp.zeros(3)})
    with pytest.raises(ModelError, match=r"layers\.5\.eh_proj"):
        load_folder(copy)


def test_a_head_that_is_stored_beside_the_embedding_it_is_tied_to_is_left(tmp_path):
    save("qwen3-tied-yarn", tmp_path)
    change(tmp_path, **{"lm_head.weight": jnp.zeros((96, 32))})
    assert "head" not in state(load_folder(tmp_path))


def test_pickled_weights_are_not_read(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(ModelError, match="neither model.safetensors nor"):
        load_folder(copy)


def test_a_damaged_file_is_named(copy):
    (copy / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match="cannot be read"):
        load_folder(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"(?s)cannot be read.*config\.json"):
        load_folder(copy)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/x.safetensors", "a.bin", 3])
def test_an_index_may_name_safetensors_files_of_its_own_folder_only(sharded_copy, name):
    index = json.loads((sharded_copy / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (sharded_copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match="of this folder"):
        load_folder(sharded_copy)


def test_an_index_that_contradicts_its_files_is_refused(sharded_copy):
    index = json.loads((sharded_copy / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    moved = next(f for f in files if f != index["weight_map"]["model.norm.weight"])
    index["weight_map"]["model.norm.weight"] = moved
    (sharded_copy / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"differ about 'model\.norm\.weight'"):
        load_folder(sharded_copy)
    (sharded_copy / moved).unlink()
    with pytest.raises(ModelError, match=moved):
        load_folder(sharded_copy)


def test_bfloat16_parameters_give_close_logits(saved):
    exact, rounded = load_folder(saved), load_folder(saved, "bfloat16")
    ours, want = prefill(rounded), prefill(exact).logits
    assert ours.k_cache["moe_1"].dtype == jnp.bfloat16
    error = np.abs(ours.logits - want).max() / np.abs(want).max()
    assert 0 < error < 0.2


def test_a_bare_config_gives_shapes_and_a_folder_with_weights_gives_arrays(saved, tmp_path):
    bare = shutil.copy(saved / "config.json", tmp_path / "some.json")
    shapes, arrays = abstract_folder(bare), load_path(saved)
    kinds = {type(leaf) for leaf in jax.tree.leaves(nnx.state(load_path(bare)))}
    assert kinds == {jax.ShapeDtypeStruct}
    want = jax.tree.map(lambda x: (x.shape, x.dtype), state(shapes))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state(arrays)) == want


def test_a_dtype_that_is_not_offered_is_refused_before_anything_is_read(tmp_path):
    for function in (load_folder, abstract_folder):
        with pytest.raises(ModelError, match="float16"):
            function(tmp_path / "nowhere", "float16")
