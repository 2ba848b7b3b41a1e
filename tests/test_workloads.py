"""A model on disk as a module: through `tkcc.lower`, and as a model named on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import tkcc
from tests.models.tiny_families import save
from tests.quick import quick_jit
from tkcc.cli import main
from tkcc.ir.errors import LoweringError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Module
from tkcc.ir.hashing import module_hash
from tkcc.ir.passes.paging import PageShape, page_caches
from tkcc.ir.rewrite.driver import apply_rule
from tkcc.ir.rewrite.rule import get_rule
from tkcc.ir.text import parse_module, print_module
from tkcc.language import StepShape
from tkcc.models.errors import ModelError
from tkcc.models.loading import load_folder
from tkcc.workloads import load_module

SHAPE = StepShape(batch=2, context=16, prompt=4)
FAMILIES = ("qwen3-moe-some-dense", "gpt-oss-odd", "deepseek-v3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    made = {case: tmp_path_factory.mktemp(case) for case in FAMILIES}
    for case, folder in made.items():
        save(case, folder)
    return made


def arguments(module: Module, function: str, given: dict) -> list:
    """Inputs in the function's order: parameters, zero caches, and those given."""
    body, values = module.functions[function], {**module.values, **given}
    return [
        values[v.name] if v.name in values else jnp.zeros(v.type.shape, v.type.struct().dtype)
        for v in body.inputs
    ]


@pytest.mark.parametrize("case", FAMILIES)
def test_a_folder_lowers_to_prefill_and_decode_with_its_weights(case, folders):
    module = tkcc.lower(folders[case], shape=SHAPE)
    assert list(module.functions) == ["prefill", "decode"]
    assert set(module.values) == set(module.parameters)
    given = {"tokens": jnp.array([5, 60]), "positions": jnp.array([0, 0])}
    body = module.functions["decode"]
    inputs = arguments(module, "decode", given)
    logits = quick_jit(lambda *xs: evaluate(body, xs)[1])(*inputs)
    model = load_folder(folders[case])
    graph, state = nnx.split(model)
    step = quick_jit(lambda state, *xs: nnx.merge(graph, state).decode(*xs).logits)
    want = step(state, *given.values(), *model.empty_caches(2, 16))
    np.testing.assert_allclose(logits, want, atol=1e-5)


@pytest.mark.parametrize("case", FAMILIES)
def test_a_lowered_folder_round_trips_as_text_and_its_caches_can_be_paged(case, folders):
    module = tkcc.lower(str(folders[case]), shape=SHAPE)
    assert module_hash(parse_module(print_module(module), "x")) == module_hash(module)
    decode = module.replace(functions={"decode": module.functions["decode"]})
    carried, _ = apply_rule(decode, get_rule("carry_caches"))
    paged = page_caches(carried, PageShape(9, 4))
    layers = {name: type_.shape[0] for name, type_ in module.state.items()}
    pools = {name: (n, 9, 4) for name, n in layers.items()}
    assert {name: type_.shape[:3] for name, type_ in paged.state.items()} == pools


def test_a_bare_config_lowers_to_shapes_and_the_same_program(folders, tmp_path):
    folder = folders["deepseek-v3"]
    bare = Path(shutil.copy(folder / "config.json", tmp_path / "some.json"))
    module = tkcc.lower(bare, shape=SHAPE)
    assert module.name == "some"
    assert not module.values
    assert module_hash(module) == module_hash(tkcc.lower(folder, shape=SHAPE))
    assert module_hash(load_module(str(bare), SHAPE)) == module_hash(module)
    half = tkcc.lower(bare, shape=SHAPE, dtype="bfloat16")
    assert {type_.dtype for type_ in half.state.values()} == {"bf16"}


def test_the_command_line_takes_a_folder_or_a_config(folders, tmp_path, capsys):
    folder = folders["gpt-oss-odd"]
    for model in (str(folder), shutil.copy(folder / "config.json", tmp_path / "some.json")):
        assert main(["lower", str(model), "--print", "--context", "16", "--prompt", "4"]) == 0
        assert "window=5" in capsys.readouterr().out


def test_a_config_that_is_not_implemented_is_refused_by_name(folders, tmp_path):
    fields = json.loads((folders["deepseek-v3"] / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**fields, "index_topk": 64}))
    with pytest.raises(ModelError, match="index_topk"):
        tkcc.lower(path)


def test_a_path_takes_no_example_arguments_and_a_function_no_step_shape(folders):
    with pytest.raises(LoweringError, match="no example arguments"):
        tkcc.lower(folders["deepseek-v3"], jnp.zeros(3))
    with pytest.raises(LoweringError, match="for a model on disk"):
        tkcc.lower(jnp.sin, jnp.zeros(3), shape=SHAPE)


def test_a_path_that_is_not_there_is_named():
    with pytest.raises(ModelError, match=r"(?s)cannot be read.*nowhere"):
        tkcc.lower("nowhere")
