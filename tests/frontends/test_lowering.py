"""`lower` and `lower_functions`: names, roles, state and its aliases, sharing, and wrong calls."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.frontends.programs.program import LARGE, VECTOR, X
from tests.ir.samples import assert_round_trips
from tkcc.frontends.lowering import Call, lower_functions
from tkcc.frontends.lowering import lower as lower_recognised
from tkcc.ir.errors import LoweringError, TkccError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Module

lower: Callable[..., Module] = functools.partial(lower_recognised, recognise=False)


def names(f: Function) -> list[str]:
    return [v.name for v in f.inputs]


Pair = collections.namedtuple("Pair", "left right")


@functools.partial(jax.tree_util.register_dataclass, data_fields=["inner"], meta_fields=[])
@dataclasses.dataclass
class Box:
    inner: Any


def test_leaves_of_pytrees_are_named_by_their_path() -> None:
    def f(tree: Any, pair: Any, box: Any, plain: Any) -> Any:
        return tree["a"][1] + pair.right + box.inner["x"] + plain + tree["b"]

    tree = {"a": [X, X], "b": X, "none": None}
    module = lower(f, tree, Pair(X, X), Box({"x": X}), 2.0)
    assert names(module.function()) == [
        "tree.a.0",
        "tree.a.1",
        "tree.b",
        "pair.left",
        "pair.right",
        "box.inner.x",
        "plain",
    ]
    assert set(module.function().roles) == {"arg"}
    assert_round_trips(module)


def test_outputs_are_named_by_their_path_or_as_told() -> None:
    def f(x: Any) -> Any:
        return {"sum": x.sum(), "both": (x, -x)}

    assert lower(f, X).function().output_names == ("both.0", "both.1", "sum")
    assert lower(lambda x: -x, X).function().output_names == ("out",)
    told = lower(f, X, outputs=("a", "b", "c"))
    assert told.function().output_names == ("a", "b", "c")
    with pytest.raises(LoweringError, match="2 output names for 3 outputs"):
        lower(f, X, outputs=("a", "b"))


def test_arguments_without_names_are_numbered() -> None:
    assert names(lower(lambda *xs: xs[0] + xs[1], X, X).function()) == ["arg0", "arg1"]
    assert names(lower(jnp.add, X, X).function()) == ["arg0", "arg1"]
    assert names(lower(functools.partial(jnp.dot, X), X.T).function()) == ["b"]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (1.5, "f32[]"),
        (3, "i32[]"),
        (True, "bool[]"),
        (1j, "c64[]"),
        (np.float64(2), "f32[]"),
        (np.ones(2), "f32[2]"),
        (np.arange(3), "i32[3]"),
        (jnp.ones(2, jnp.bfloat16), "bf16[2]"),
        (jax.random.key(0), "key<fry>[]"),
        (jax.ShapeDtypeStruct((4,), jnp.int8), "i8[4]"),
    ],
)
def test_arguments_give_the_types_that_jax_gives_them(argument: Any, text: str) -> None:
    f = lower(lambda x: x, argument).function()
    assert [str(v.type) for v in f.inputs] == [text]
    assert [str(t) for t in f.output_types] == [text]


def test_the_module_is_named_after_its_target() -> None:
    def model(x: Any) -> Any:
        return x

    assert lower(model, X).name == "model"
    assert lower(jax.jit(model), X).name == "model"
    assert lower(model, X, name="other").name == "other"
    assert list(lower(model, X, function="step").functions) == ["step"]


def _dense(params: Any, x: Any) -> Any:
    return x @ params["w"] + params["b"]


PARAMS = {"w": LARGE[:4, :4].copy(), "b": VECTOR, "unused": LARGE}


def test_parameters_have_their_role_and_their_values() -> None:
    module = lower(_dense, PARAMS, X, parameters=["params"])
    f = module.function()
    assert dict(zip(names(f), f.roles, strict=True)) == {
        "params.b": "param",
        "params.w": "param",
        "x": "arg",
    }
    assert list(module.parameters) == ["params.b", "params.w"]
    np.testing.assert_array_equal(module.values["params.w"], PARAMS["w"])
    (got,) = evaluate(f, [PARAMS["b"], PARAMS["w"], X])
    np.testing.assert_allclose(got, _dense(PARAMS, X), rtol=1e-6)


def test_arguments_that_nobody_reads_stay() -> None:
    assert names(lower(lambda x, y: x, X, VECTOR).function()) == ["x", "y"]


def test_structs_lower_without_data() -> None:
    params = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), PARAMS)
    struct = jax.ShapeDtypeStruct(X.shape, X.dtype)
    module = lower(_dense, params, struct, parameters=["params"])
    assert module.values == {}
    assert str(module.parameters["params.w"]) == "f32[4,4]"
    with_data = lower(_dense, PARAMS, X, parameters=["params"])
    assert assert_round_trips(module) == assert_round_trips(with_data)


def _step(token: Any, keys: Any, values: Any, at: Any) -> Any:
    keys = lax.dynamic_update_slice(keys, token[None], (at, 0))
    values = lax.dynamic_update_slice(values, token[None] * 2, (at, 0))
    return {"out": keys.sum() + values.sum()}, keys, values


CACHE = np.zeros((3, 4), np.float32)
STEP_ARGS = (VECTOR, CACHE, CACHE, np.int32(1))


def test_new_state_aliases_the_old_one() -> None:
    module = lower(_step, *STEP_ARGS, state=["keys", "values"])
    f = module.function()
    assert f.roles == ("arg", "state", "state", "arg")
    assert f.aliases == ((1, 1), (2, 2))
    assert f.output_names == ("0.out", "keys", "values")
    assert list(module.state) == ["keys", "values"]
    _, keys, values = evaluate(f, [jnp.asarray(a) for a in STEP_ARGS])
    np.testing.assert_array_equal(keys[1], VECTOR)
    np.testing.assert_array_equal(values[1], VECTOR * 2)
    assert_round_trips(module)


def test_state_is_returned_in_the_order_of_its_names() -> None:
    def f(x: Any, first: Any, second: Any) -> Any:
        return x, second * 2, first * 3  # the new second, then the new first

    module = lower(f, X, VECTOR, VECTOR, state=["second", "first"])
    g = module.function()
    assert g.aliases == ((1, 2), (2, 1))
    assert g.output_names == ("0", "second", "first")


def test_state_may_be_a_tree() -> None:
    def f(caches: Any, x: Any) -> Any:
        return x, {"k": [c + 1 for c in caches["k"]], "v": caches["v"] * 2}

    caches = {"k": [CACHE, CACHE], "v": VECTOR}
    f_ = lower(f, caches, X, state=["caches"]).function()
    assert f_.output_names == ("0", "caches.k.0", "caches.k.1", "caches.v")
    assert f_.aliases == ((1, 0), (2, 1), (3, 2))


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (
            lambda x, s: (x, s.astype(jnp.bfloat16)),
            "state s is f32[4], but its new value is bf16[4]",
        ),
        (lambda x, s: (x, s[:2]), "its new value is f32[2]"),
        (lambda x, s: (s, x), "its new value is f32[3,4]"),
        (lambda x, s: (), "returns 0 arrays for 1 states"),
    ],
)
def test_wrong_new_state_is_refused(f: Any, message: str) -> None:
    with pytest.raises(LoweringError) as error:
        lower(f, X, VECTOR, state=["s"])
    assert message in error.value.what
    assert "return" in error.value.remedy


def _prefill(params: Any, tokens: Any, cache: Any) -> Any:
    return (tokens @ params["w"]).sum(0), cache + tokens


def _decode(params: Any, token: Any, cache: Any) -> Any:
    return token @ params["w"] + params["b"], cache * 2


def _two(prefill_params: Any = PARAMS, decode_params: Any = PARAMS, cache: Any = X) -> Module:
    roles: dict[str, Any] = {"parameters": ["params"], "state": ["cache"]}
    calls = {
        "prefill": Call(_prefill, (prefill_params, X, X), **roles),
        "decode": Call(_decode, (decode_params, VECTOR, cache), **roles),
    }
    return lower_functions(calls, name="model", recognise=False)


def test_functions_share_parameters_and_state_by_name() -> None:
    module = _two()
    assert module.name == "model"
    assert list(module.functions) == ["prefill", "decode"]
    assert list(module.parameters) == ["params.w", "params.b"]
    assert list(module.state) == ["cache"]
    assert set(module.values) >= {"params.w", "params.b"}
    assert names(module.function("prefill")) == ["params.w", "tokens", "cache"]
    assert_round_trips(module)
    with pytest.raises(TkccError, match="several functions"):
        module.function()
    with pytest.raises(TkccError, match="no function 'encode'"):
        module.function("encode")


def test_functions_that_disagree_on_a_type_are_refused() -> None:
    other = {**PARAMS, "w": PARAMS["w"].astype(np.float16)}
    with pytest.raises(TkccError, match="param 'params.w' is f32.* in one function and f16"):
        _two(decode_params=other)
    with pytest.raises(TkccError, match="state 'cache' is f32.* in one function"):
        _two(cache=X[:1])


def test_an_array_that_two_functions_close_over_is_one_parameter() -> None:
    weight = jnp.asarray(LARGE)
    row = LARGE[0].copy()
    calls = {
        "a": Call(lambda x: x @ weight, (row,)),
        "b": Call(lambda const0: (const0 @ weight) @ jnp.asarray(LARGE * 2), (row,)),
    }
    module = lower_functions(calls, recognise=False)
    assert list(module.parameters) == ["const1", "const2"]
    assert [v.name for v in module.function("a").inputs] == ["x", "const1"]
    np.testing.assert_array_equal(module.values["const1"], LARGE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lower(lambda x: x, "text"), "argument x is a str, not an array"),
        (lambda: lower(lambda x: x, {"a": object()}), "argument x.a is a object"),
        (lambda: lower(_dense, PARAMS, X, parameters=["weights"]), "no argument ['weights']"),
        (lambda: lower(_dense, PARAMS, X, state=["cache"]), "no argument ['cache']"),
        (lambda: lower(3, X), "int is not callable"),
        (
            lambda: lower(lambda p: p["a.b"], {"a.b": X, "a": {"b": X}}, parameters=["p"]),
            "two parameters or states are named 'p.a.b'",
        ),
        (
            lambda: lower(lambda s: s, {"a.b": X, "a": {"b": X}}, state=["s"]),
            "two parameters or states are named 's.a.b'",
        ),
    ],
)
def test_wrong_calls_are_refused_with_a_remedy(call: Any, message: str) -> None:
    with pytest.raises(LoweringError) as error:
        call()
    assert message in error.value.what
    assert error.value.remedy


def test_names_of_dictionary_keys_may_be_odd() -> None:
    tree = {"a b": X, "it's": X, 'q"': X, "ü": X}
    module = lower(lambda p: sum(p.values()), tree, parameters=["p"])
    assert set(module.parameters) == {f"p.{key}" for key in tree}
    assert_round_trips(module)
