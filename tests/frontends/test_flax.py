"""Flax nnx and linen modules: parameters, state, bound methods, abstract modules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from tests.frontends.programs.program import VECTOR, X
from tests.ir.samples import assert_round_trips
from tests.tolerances import assert_same_program
from tkcc.frontends.lowering import Call, lower_functions
from tkcc.frontends.lowering import lower as lower_recognised
from tkcc.ir.errors import LoweringError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Module

lower: Callable[..., Module] = functools.partial(lower_recognised, recognise=False)


class Mlp(nnx.Module):
    """Two layers in a list, and a second method."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)])
        self.scale = nnx.Param(jnp.ones(2))

    def __call__(self, x: Any) -> Any:
        return self.head(jax.nn.relu(self.layers[0](x)))

    def head(self, hidden: Any) -> Any:
        return self.layers[1](hidden) * self.scale


class Counter(nnx.Module):
    """Counts its calls in a variable of its own kind, and draws noise."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.count = nnx.Variable(jnp.int32(0))
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        self.count.set_value(self.count.get_value() + 1)
        return self.dropout(x) * self.count.get_value()


class Accumulator(nnx.Module):
    """State of its own and state that is passed."""

    def __init__(self) -> None:
        self.total = nnx.Variable(jnp.zeros(4))

    def __call__(self, x: Any, cache: Any) -> Any:
        self.total.set_value(self.total.get_value() + x)
        return self.total.get_value() * 2, cache + x


def inputs_of(module: Module, *args: Any) -> list[Any]:
    """Parameters from the module's values, then state and arguments as given."""
    given = iter(args)
    f = module.function()
    return [
        module.values[v.name] if role == "param" else jnp.asarray(next(given))
        for v, role in zip(f.inputs, f.roles, strict=True)
    ]


@pytest.fixture
def mlp() -> Mlp:
    return Mlp(nnx.Rngs(0))


def test_nnx_parameters_are_named_by_their_path(mlp: Mlp) -> None:
    module = lower(mlp, X)
    assert module.name == "Mlp"
    assert sorted(module.parameters) == [
        "layers.0.bias",
        "layers.0.kernel",
        "layers.1.bias",
        "layers.1.kernel",
        "scale",
    ]
    assert module.state == {}
    np.testing.assert_array_equal(module.values["scale"], np.ones(2))
    (got,) = evaluate(module.function(), inputs_of(module, X))
    assert_same_program(got, mlp(X))
    assert_round_trips(module)


def test_a_bound_method_is_lowered_with_the_parameters_it_reads(mlp: Mlp) -> None:
    hidden = np.ones((3, 8), np.float32)
    module = lower(mlp.head, hidden)
    assert module.name == "Mlp"
    assert sorted(module.parameters) == ["layers.1.bias", "layers.1.kernel", "scale"]
    assert [v.name for v in module.function().inputs_of("arg")] == ["hidden"]
    (got,) = evaluate(module.function(), inputs_of(module, hidden))
    assert_same_program(got, mlp.head(hidden))


def test_methods_of_one_module_share_its_parameters(mlp: Mlp) -> None:
    calls = {"whole": Call(mlp, (X,)), "head": Call(mlp.head, (np.ones((3, 8), np.float32),))}
    module = lower_functions(calls, recognise=False)
    assert len(module.parameters) == 5
    assert module.values["layers.1.kernel"] is mlp.layers[1].kernel.get_value()


def test_an_abstract_module_lowers_without_data(mlp: Mlp) -> None:
    abstract = nnx.eval_shape(lambda: Mlp(nnx.Rngs(0)))
    module = lower(abstract, jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert module.values == {}
    text = assert_round_trips(module, sources=False)
    assert text == assert_round_trips(lower(mlp, X), sources=False)


def test_batch_statistics_are_state_and_change() -> None:
    norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    module = lower(norm, X)
    f = module.function()
    assert sorted(module.parameters) == ["bias", "scale"]
    assert sorted(module.state) == ["mean", "var"]
    assert sorted(f.output_names) == ["mean", "out", "var"]
    assert sorted(f.inputs[i].name for _, i in f.aliases) == ["mean", "var"]
    state = [getattr(norm, v.name).get_value() for v in f.inputs_of("state")]
    results = dict(zip(f.output_names, evaluate(f, inputs_of(module, *state, X)), strict=True))
    want = norm(X)  # changes the module
    assert_same_program(results["out"], want)
    assert_same_program(results["mean"], norm.mean.get_value())
    assert_same_program(results["var"], norm.var.get_value())


def test_a_module_in_evaluation_leaves_its_state() -> None:
    norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    norm.eval()
    f = lower(norm, X).function()
    for output, position in f.aliases:
        assert f.outputs[output] is f.inputs[position]


def test_counters_and_random_streams_are_state() -> None:
    counter = Counter(nnx.Rngs(0))
    module = lower(counter, X)
    assert "count" in module.state
    assert {str(t) for n, t in module.state.items() if n != "count"} == {"key<fry>[]", "u32[]"}
    state = {name: _variable(counter, name) for name in module.state}
    results = _run(module, state, X)
    assert_same_program(results["out"], counter(X))
    assert int(results["count"]) == 1
    again = _run(module, {name: results[name] for name in module.state}, X)
    assert_same_program(again["out"], counter(X))


def _variable(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module.get_value()


def _run(module: Module, state: dict[str, Any], *args: Any) -> dict[str, Any]:
    f = module.function()
    given = [state[v.name] for v in f.inputs_of("state")]
    return dict(zip(f.output_names, evaluate(f, inputs_of(module, *given, *args)), strict=True))


def test_state_of_the_module_and_of_an_argument_are_told_apart() -> None:
    module = lower(Accumulator(), VECTOR, VECTOR, state=["cache"])
    f = module.function()
    assert f.roles == ("state", "arg", "state")
    assert f.output_names == ("0", "cache", "total")
    assert [(f.output_names[o], f.inputs[i].name) for o, i in f.aliases] == [
        ("cache", "cache"),
        ("total", "total"),
    ]
    got = evaluate(f, [jnp.ones(4), jnp.asarray(VECTOR), jnp.zeros(4)])
    assert_same_program(got[0], jnp.asarray(VECTOR + 1) * 2)
    assert_same_program(got[1], jnp.asarray(VECTOR))
    assert_same_program(got[2], jnp.asarray(VECTOR + 1))


def test_attention_of_nnx_lowers() -> None:
    attention = nnx.MultiHeadAttention(
        num_heads=2, in_features=4, decode=False, rngs=nnx.Rngs(0), deterministic=True
    )
    x = jnp.stack([X, X + 1])
    module = lower(attention, x)
    got = evaluate(module.function(), inputs_of(module, *_state_values(module, attention), x))
    assert_same_program(got[0], attention(x))


def _state_values(module: Module, owner: Any) -> list[Any]:
    return [_variable(owner, v.name) for v in module.function().inputs_of("state")]


class LinenMlp(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.relu(linen.Dense(8)(x))
        return linen.LayerNorm()(linen.Dense(2)(x))


def test_linen_variables_are_parameters() -> None:
    model = LinenMlp()
    variables = model.init(jax.random.key(0), X)
    module = lower(model, variables, X)
    assert module.name == "LinenMlp"
    assert "variables.params.Dense_0.kernel" in module.parameters
    assert len(module.parameters) == 6
    (got,) = evaluate(module.function(), inputs_of(module, X))
    assert_same_program(got, model.apply(variables, X))
    assert_round_trips(module)


def test_linen_lowers_from_abstract_variables() -> None:
    model = LinenMlp()
    variables = jax.eval_shape(model.init, jax.random.key(0), X)
    module = lower(model, variables, jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert module.values == {}
    assert str(module.parameters["variables.params.Dense_1.kernel"]) == "f32[8,2]"


def test_a_wrong_argument_of_a_module_is_refused(mlp: Mlp) -> None:
    with pytest.raises(LoweringError, match="argument x is a str"):
        lower(mlp, "text")
