"""The registry: what can be known of a model without its weights, and clear refusals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tkcc.models import registry
from tkcc.models.errors import ModelError


@pytest.fixture
def no_files(tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("this must not fetch anything")

    monkeypatch.setattr(registry, "fetch", refuse)


@pytest.mark.usefixtures("no_files")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_abstract_model_has_all_parameters_and_needs_no_weights(dtype):
    leaves = jax.tree.leaves(nnx.state(registry.abstract("smollm2-135m", dtype)))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(dtype)}
    assert sum(leaf.size for leaf in leaves) == 134_515_008


@pytest.mark.usefixtures("no_files")
def test_an_abstract_model_traces_to_the_shapes_of_its_step():
    graph, state = nnx.split(registry.abstract("smollm2-135m", "bfloat16"))
    cache = jax.ShapeDtypeStruct((30, 2, 32, 3, 64), jnp.bfloat16)
    tokens = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    ids = jax.ShapeDtypeStruct((2,), jnp.int32)
    step = jax.eval_shape(
        lambda s, *x: nnx.merge(graph, s).prefill(*x), state, tokens, ids, cache, cache
    )
    assert step.logits.shape == (2, 49152)
    assert step.k_cache.shape == cache.shape


def test_every_name_is_described_in_one_line():
    assert registry.names() == ("smollm2-135m",)
    text = registry.describe("smollm2-135m")
    assert "SmolLM2" in text
    assert "\n" not in text


@pytest.mark.parametrize("function", [registry.load, registry.abstract, registry.describe])
def test_an_unknown_name_lists_the_known_ones(function):
    with pytest.raises(ModelError, match="no model 'gpt-9'(.|\n)*smollm2-135m"):
        function("gpt-9")


@pytest.mark.usefixtures("no_files")
@pytest.mark.parametrize("function", [registry.load, registry.abstract])
def test_a_dtype_that_is_not_offered_is_refused_before_anything_is_fetched(function):
    with pytest.raises(ModelError, match="float16"):
        function("smollm2-135m", "float16")


def test_a_checkpoint_of_another_shape_is_refused(write_tiny_gguf, monkeypatch):
    path = write_tiny_gguf().path
    monkeypatch.setattr(registry, "fetch", lambda *_: path)
    with pytest.raises(ModelError, match="vocab_size=300"):
        registry.load("smollm2-135m")
