"""Unrolled layers become one scan: what is rolled, what is not, equal results."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.passes.plain_models import (
    EPS,
    LENGTH,
    WIDTH,
    assert_same,
    attention,
    cached,
    cached_module,
    caches,
    forward,
    head,
    layer,
    parameters,
    random,
    run,
    some_inputs,
    tokens,
)
from tests.ir.samples import assert_round_trips, function, random_inputs, value
from tkcc.frontends.lowering import Call, lower, lower_functions
from tkcc.ir import functional as F
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import PACK, UNPACK, Function, Module, Node, Source, Value
from tkcc.ir.hashing import function_hash
from tkcc.ir.op import build
from tkcc.ir.passes.clean import clean_module
from tkcc.ir.passes.hoist import hoist
from tkcc.ir.passes.roll import roll, roll_function, unmerged_states
from tkcc.ir.text import parse_module, print_module


def plain(target: Callable[..., Any], *args: Any, **options: Any) -> Module:
    return lower(target, *args, recognise=False, **options)


def scans(module: Module, name: str = "main") -> list[tuple[int, int]]:
    """(length, nodes of the body) of every scan, outer ones first."""
    nodes = [node for node in module.function(name).walk() if node.op == "scan"]
    return [(node.attribute("length"), node.regions[0].size()) for node in nodes]


def lengths(module: Module, name: str = "main") -> list[int]:
    return [length for length, _ in scans(module, name)]


def scan_of(module: Module, name: str = "main") -> Node:
    (node,) = [node for node in module.function(name).nodes if node.op == "scan"]
    return node


def ops(module: Module, name: str = "main") -> list[str]:
    return [node.op for node in module.function(name).walk()]


def check(before: Module, *names: str) -> Module:
    """Roll; the result must print, parse and give the same values as before."""
    rolled = roll(before)
    assert_round_trips(rolled)
    for name in names or ("main",):
        inputs = some_inputs(before, name)
        assert_same(run(before, name, inputs), run(rolled, name, inputs))
    return rolled


def weights(count: int, width: int = WIDTH) -> list[jax.Array]:
    return [random((width, width), 40 + i) for i in range(count)]


X = jnp.ones((3, WIDTH))


# Llama-like models.


@pytest.mark.parametrize("layers", [2, 3, 32])
def test_a_loop_over_layers_with_caches_becomes_one_scan(layers: int) -> None:
    before = cached_module(layers)
    rolled = check(before, *(("prefill", "decode") if layers == 2 else ("decode",)))
    for name in ("prefill", "decode"):
        assert lengths(rolled, name) == [layers]
        assert rolled.function(name).size() < 150


def test_a_loop_over_layers_without_caches_becomes_one_scan() -> None:
    rolled = check(plain(forward, parameters(4), *tokens(2, 5), parameters=("params",)))
    assert lengths(rolled) == [4]


@pytest.mark.parametrize("layers", [2, 3, 6])
def test_what_all_layers_share_does_not_keep_the_first_layer_out(layers: int) -> None:
    """After common subexpressions are merged, masks and angles are computed in layer 0 only."""
    rolled = check(clean_module(cached_module(layers)), "prefill")
    assert lengths(rolled, "prefill") == lengths(rolled, "decode") == [layers]


def test_values_that_the_first_layer_makes_from_parameters_do_not_keep_it_out() -> None:
    def model(params: Any, x: Any) -> Any:
        for w in params["layers"]:
            x = x + jnp.tanh(x @ w) * jnp.sin(x[0, 0] * 0 + params["scale"])
        return x

    def model_with_angles(params: Any, places: Any, x: Any) -> Any:
        for w in params["layers"]:
            x = x + jnp.tanh(x @ w) * jnp.sin(places * params["scale"])
        return x

    given_parameters = {"layers": weights(5), "scale": random((WIDTH,), 2)}
    before = plain(model, given_parameters, X, parameters=("params",))
    assert lengths(check(before)) == [5]
    places = jnp.arange(3)[:, None]
    before = plain(model_with_angles, given_parameters, places, X, parameters=("params",))
    assert lengths(check(clean_module(before))) == [5]


def test_only_the_length_depends_on_the_number_of_layers() -> None:
    seven, eleven = (hoist(roll(cached_module(n))) for n in (7, 11))
    for name in ("prefill", "decode"):
        assert function_hash(scan_of(seven, name).regions[0]) == function_hash(
            scan_of(eleven, name).regions[0]
        )
        text = print_module(Module({name: eleven.function(name)}), sources=False)
        shorter = parse_module(re.sub(r"\[11,|=11\b", lambda m: m[0].replace("11", "7"), text))
        assert function_hash(shorter.function(name)) == function_hash(seven.function(name))


def test_named_ops_roll_like_plain_code() -> None:
    def model(params: Any, x: Any) -> Any:
        for p in params:
            h = F.rms_norm(x, p["attention_norm"])
            x = x + F.swiglu(F.linear(h, p["query"]), F.linear(h, p["key"]))
        return x

    rolled = check(plain(model, parameters(3)["layers"], X, parameters=("params",)))
    assert scans(rolled) == [(3, 5)]


def test_a_flax_module_with_a_list_of_layers_rolls() -> None:
    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
            self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return x + nnx.gelu(self.linear(self.norm(x)))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.blocks = nnx.List([Block(rngs) for _ in range(4)])

        def __call__(self, x: jax.Array) -> jax.Array:
            for block in self.blocks:
                x = block(x)
            return x

    rolled = check(plain(Model(nnx.Rngs(0)), X))
    assert lengths(rolled) == [4]


# Parameters and state.


def test_weights_that_are_stacked_already_are_used_as_they_are() -> None:
    layers = parameters(4)["layers"]
    stacked = {**parameters(1), "layers": jax.tree.map(lambda *a: jnp.stack(a), *layers)}

    def model(params: Any, ids: Any, places: Any) -> Any:
        x = params["embedding"][ids]
        for i in range(4):
            x, _ = layer(jax.tree.map(lambda a, i=i: a[i], params["layers"]), x, places)
        return head(params, x)

    rolled = check(plain(model, stacked, *tokens(2, 5), parameters=("params",)))
    assert lengths(rolled) == [4]
    assert "stack" not in ops(rolled)
    assert [v.name for v in scan_of(rolled).operands if v.name.startswith("params.layers")]


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_stacked_cache_that_each_layer_updates_in_place_is_a_carry(cleaned: bool) -> None:
    def model(params: Any, k: Any, v: Any, ids: Any, places: Any) -> Any:
        x = params["embedding"][ids]
        for i, p in enumerate(params["layers"]):
            x, (new_k, new_v) = layer(p, x, places, (k[i], v[i]))
            k, v = k.at[i].set(new_k), v.at[i].set(new_v)
        return head(params, x), k, v

    cache = jnp.stack(caches(4))
    before = plain(
        model,
        parameters(4),
        cache,
        cache,
        *tokens(2, 3),
        parameters=("params",),
        state=("k", "v"),
    )
    rolled = check(clean_module(before) if cleaned else before)
    assert lengths(rolled) == [4]
    assert scan_of(rolled).attribute("carry") == 3


def test_a_stacked_cache_that_is_taken_apart_and_stacked_again_goes_straight_through() -> None:
    def model(params: Any, k: Any, v: Any, ids: Any, places: Any) -> Any:
        x, new_k, new_v = params["embedding"][ids], [], []
        for i, p in enumerate(params["layers"]):
            x, (one, other) = layer(p, x, places, (k[i], v[i]))
            new_k.append(one)
            new_v.append(other)
        return head(params, x), jnp.stack(new_k), jnp.stack(new_v)

    cache = jnp.stack(caches(3))
    before = plain(
        model,
        parameters(3),
        cache,
        cache,
        *tokens(2, 3),
        parameters=("params",),
        state=("k", "v"),
    )
    rolled = check(before)
    loop = scan_of(rolled)
    assert rolled.function().outputs[1:] == loop.results[1:]
    assert set(rolled.function().inputs_of("state")) <= set(loop.operands)


def test_state_of_each_layer_becomes_one_stacked_state_in_all_functions() -> None:
    before = cached_module(3)
    rolled = roll(before)
    kept = before.state["k_cache.0"]
    assert rolled.state == {
        "k_cache.*": kept.with_shape((3, *kept.shape)),
        "v_cache.*": kept.with_shape((3, *kept.shape)),
    }
    for name in ("prefill", "decode"):
        step = rolled.function(name)
        pairs = [(step.output_names[o], step.inputs[i].name) for o, i in step.aliases]
        assert pairs == [("k_cache.*", "k_cache.*"), ("v_cache.*", "v_cache.*")]
    assert unmerged_states(rolled) == {}


def test_pack_and_unpack_convert_between_the_two_forms_of_state() -> None:
    before = cached_module(3)
    rolled = roll(before)
    old = {name: random(type_.shape, i) for i, (name, type_) in enumerate(before.state.items())}
    pack, unpack = rolled.functions[PACK], rolled.functions[UNPACK]
    assert [v.name for v in pack.inputs] == list(before.state) == list(unpack.output_names)
    packed = evaluate(pack, [old[v.name] for v in pack.inputs])
    np.testing.assert_array_equal(packed[0], jnp.stack([old[f"k_cache.{i}"] for i in range(3)]))
    again = evaluate(unpack, packed)
    for name, array in zip(unpack.output_names, again, strict=True):
        np.testing.assert_array_equal(array, old[name])


def test_state_that_was_packed_before_is_packed_further() -> None:
    before = cached_module(4)
    step = before.function("decode")
    twice = {v.name: Value(v.type, v.name) for v in step.inputs_of("state")}
    double = [build("lax.neg", v) for v in twice.values()]
    inputs = tuple(twice.values())
    negated = Function(
        inputs,
        tuple(double),
        tuple(node.result for node in double),
        ("state",) * len(inputs),
        output_names=tuple(twice),
    )
    rolled = roll(before.replace(functions={**before.functions, PACK: negated, UNPACK: negated}))
    array = random(next(iter(before.state.values())).shape, 5)
    given_state = [array] * len(inputs)
    packed = evaluate(rolled.functions[PACK], given_state)
    np.testing.assert_array_equal(packed[0], -jnp.stack([array] * 4))
    for out in evaluate(rolled.functions[UNPACK], packed):
        np.testing.assert_array_equal(out, array)


def test_state_stays_apart_and_is_listed_if_a_function_treats_it_differently() -> None:
    k, v = caches(3), caches(3)

    def peek(params: Any, k_cache: Any, v_cache: Any) -> Any:
        return k_cache[1].sum() + params["final_norm"].sum(), k_cache, v_cache

    names = {"parameters": ("params",), "state": ("k_cache", "v_cache")}
    calls = {
        "decode": Call(cached, (parameters(3), k, v, *tokens(2, 1, 4)), **names),
        "peek": Call(peek, (parameters(3), k, v), **names),
    }
    before = lower_functions(calls, recognise=False)
    rolled = check(before, "decode", "peek")
    assert lengths(rolled, "decode") == [3]
    assert unmerged_states(rolled) == {"decode": (("k_cache.0", "k_cache.1", "k_cache.2"),)}
    assert list(rolled.state) == ["k_cache.0", "k_cache.1", "k_cache.2", "v_cache.*"]


# Kinds of layers.


@pytest.mark.parametrize("cleaned", [False, True])
def test_alternating_layers_roll_as_pairs(cleaned: bool) -> None:
    def model(params: Any, x: Any) -> Any:
        for i, w in enumerate(params):
            x = x + (jnp.tanh(x @ w) if i % 2 else jax.nn.silu(x @ w))
        return x

    before = plain(model, weights(6), X, parameters=("params",))
    assert scans(check(clean_module(before) if cleaned else before)) == [(3, 7)]


@pytest.mark.parametrize("layers", [6, 7])
def test_layers_that_take_turns_with_two_masks_roll_as_pairs(layers: int) -> None:
    def model(params: Any, ids: Any, places: Any) -> Any:
        x = params["embedding"][ids]
        for i, p in enumerate(params["layers"]):
            x, _ = layer(p, x, places, window=2 if i % 2 else None)
        return head(params, x)

    before = plain(model, parameters(layers), *tokens(2, 5), parameters=("params",))
    rolled = check(clean_module(before))
    assert lengths(rolled) == [3]
    masks = [v for v in scan_of(rolled).operands if v.type.dtype == "bool"]
    assert [mask.type.rank for mask in masks] == [4, 4]  # not stacked


def test_layers_that_share_weights_in_pairs_read_each_weight_once() -> None:
    def model(params: Any, x: Any) -> Any:
        for i in range(8):
            x = x + jnp.tanh(x @ params[i // 2])
        return x

    rolled = check(plain(model, weights(4), X, parameters=("params",)))
    (stacked,) = [node for node in rolled.function().nodes if node.op == "stack"]
    assert len(stacked.operands) == 4
    assert lengths(rolled)[0] == 4


def test_one_layer_for_all_steps_becomes_a_scan_without_slices() -> None:
    def model(params: Any, ids: Any, places: Any) -> Any:
        x = params["embedding"][ids]
        for _ in range(5):
            x, _ = layer(params["layers"][0], x, places)
        return head(params, x)

    rolled = check(plain(model, parameters(1), *tokens(2, 5), parameters=("params",)))
    loop = scan_of(rolled)
    assert len(loop.operands) == loop.attribute("consts") + loop.attribute("carry")


def test_a_block_of_layers_that_repeats_becomes_a_scan_in_a_scan() -> None:
    def model(params: Any, x: Any) -> Any:
        rest = iter(params)
        for _ in range(3):
            for _ in range(4):
                x = x + jnp.tanh(x @ next(rest))
            x = x * jnp.sin(x @ next(rest))
        return x

    rolled = check(plain(model, weights(15), X, parameters=("params",)))
    assert lengths(rolled) == [3, 4]


def test_bodies_of_loops_are_rolled() -> None:
    def model(params: Any, x: Any) -> Any:
        def step(x: Any, ws: Any) -> Any:
            for i in range(3):
                x = x + jnp.tanh(x @ ws[i])
            return x, None

        return jax.lax.scan(step, x, params)[0]

    rolled = check(plain(model, random((2, 3, WIDTH, WIDTH), 1), X, parameters=("params",)))
    assert lengths(rolled) == [2, 3]


# Values that are read elsewhere.


def test_results_of_all_layers_are_given_one_by_one() -> None:
    def model(params: Any, x: Any) -> Any:
        out = []
        for w in params:
            x = x + jnp.tanh(x @ w)
            out.append(x)
        return out[0] + out[2], x, out[1]

    rolled = check(plain(model, weights(4), X, parameters=("params",)))
    assert lengths(rolled) == [4]


def test_results_of_all_layers_that_are_stacked_come_from_the_scan() -> None:
    def model(params: Any, x: Any) -> Any:
        out = []
        for w in params:
            x = x + jnp.tanh(x @ w)
            out.append(x)
        return jnp.stack(out), x

    rolled = check(plain(model, weights(4), X, parameters=("params",)))
    assert rolled.function().outputs[0] is scan_of(rolled).results[1]


def test_a_value_of_the_first_layer_that_all_others_read_is_a_constant_of_the_scan() -> None:
    def model(params: Any, x: Any) -> Any:
        first = None
        for w, u in zip(params["w"], params["u"], strict=True):
            v = x @ w
            first = v if first is None else first
            x = x + jnp.tanh((v + first) @ u)
        return x

    both = {"w": weights(5), "u": weights(5)}
    rolled = check(plain(model, both, X, parameters=("params",)))
    assert lengths(rolled) == [4]


def test_what_was_computed_for_each_layer_before_all_moves_into_the_scan() -> None:
    def model(params: Any, x: Any, memory: Any) -> Any:
        keys = [memory @ w for w in params["key"]]
        for w, k in zip(params["query"], keys, strict=True):
            x = x + jnp.tanh(x @ w) * k
        return x

    both = {"key": weights(4), "query": weights(4)}
    rolled = check(plain(model, both, X, X, parameters=("params",)))
    assert scans(rolled) == [(4, 5)]
    assert "lax.dot_general" not in [node.op for node in rolled.function().nodes]


def test_what_was_computed_before_stays_there_if_it_serves_the_first_layer_in_another_way() -> None:
    inputs = [value("f32[4]", "x"), *(value("f32[4]", f"w_{i}") for i in range(4))]
    roles = ("arg", *("param",) * 4)
    sine, other = {"accuracy": None}, {"out_dtype": None}
    nodes: list[Node] = []
    last = inputs[0]
    for i, w in enumerate(inputs[1:]):
        one = build("lax.tanh", w, attributes=sine)
        two = one if i == 0 else build("lax.sin", w, attributes=sine)
        nodes += [one] if i == 0 else [one, two]
        nodes.append(build("lax.neg", two.result))
        nodes.append(build("lax.mul", last, nodes[-1].result, attributes=other))
        nodes.append(build("lax.add", nodes[-1].result, one.result))
        last = nodes[-1].result
    before = Module({"main": Function(tuple(inputs), tuple(nodes), (last,), roles)})
    assert lengths(check(before)) == [4]


def test_several_values_go_from_layer_to_layer() -> None:
    def model(params: Any, x: Any, y: Any) -> Any:
        for w in params:
            x, y = y + jnp.tanh(x @ w), x * 2.0
        return x, y

    rolled = check(plain(model, weights(5), X, X, parameters=("params",)))
    assert lengths(rolled) == [5]
    assert scan_of(rolled).attribute("carry") == 2


# What is not rolled.


def test_a_layer_with_another_constant_splits_the_roll() -> None:
    def model(params: Any, ids: Any, places: Any) -> Any:
        x = params["embedding"][ids]
        for i, p in enumerate(params["layers"]):
            x, _ = layer(p, x, places, eps=1e-6 if i == 3 else EPS)
        return head(params, x)

    rolled = check(plain(model, parameters(6), *tokens(2, 5), parameters=("params",)))
    assert lengths(rolled) == [3, 2]


def test_a_layer_with_another_attribute_splits_the_roll() -> None:
    def model(params: Any, x: Any) -> Any:
        for i, p in enumerate(params):
            x = x + F.linear(F.rms_norm(x, p["mlp_norm"], eps=0.1 if i == 2 else 0.2), p["query"])
        return x

    rolled = check(plain(model, parameters(5)["layers"], X, parameters=("params",)))
    assert lengths(rolled) == [2, 2]


def test_a_layer_of_another_shape_splits_the_roll() -> None:
    def model(params: Any, x: Any) -> Any:
        for w, u in params:
            x = x + jnp.tanh(x @ w) @ u
        return x

    sizes = [8, 8, 5, 8, 8, 8]
    pairs = [(random((WIDTH, n), i), random((n, WIDTH), 50 + i)) for i, n in enumerate(sizes)]
    rolled = check(plain(model, pairs, X, parameters=("params",)))
    assert lengths(rolled) == [2, 3]


def test_a_layer_that_reads_two_layers_back_starts_a_new_scan() -> None:
    def model(params: Any, x: Any) -> Any:
        seen = [x]
        for i, w in enumerate(params):
            seen.append(seen[-1] + jnp.tanh(seen[-3 if i == 3 else -1] @ w))
        return seen[-1]

    rolled = check(plain(model, weights(8), X, parameters=("params",)))
    assert lengths(rolled) == [3, 5]  # what the first copy of a scan reads is free


def test_a_module_where_nothing_repeats_is_returned_unchanged() -> None:
    def model(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params[0]) @ params[1] + jnp.sin(x)

    before = plain(model, weights(2), X, parameters=("params",))
    assert roll(before) is before


def test_products_side_by_side_are_no_layers() -> None:
    def model(params: Any, x: Any) -> Any:
        q, k, v = (x @ w for w in params)
        return q * k + v

    before = plain(model, weights(3), X, parameters=("params",))
    assert roll(before) is before


def test_fewer_copies_than_the_minimum_stay() -> None:
    before = plain(lambda params, x: forward_tanh(params, x), weights(4), X, parameters=("params",))
    assert roll(before, minimum=5) is before
    assert lengths(roll(before, minimum=4)) == [4]


def forward_tanh(params: Any, x: Any) -> Any:
    for w in params:
        x = x + jnp.tanh(x @ w)
    return x


def chain(count: int) -> Module:
    start = value("f32[4]", "x")
    nodes: list[Node] = []
    for _ in range(count):
        operand = nodes[-1].result if nodes else start
        nodes.append(build("lax.sin", operand, attributes={"accuracy": None}))
    return Module({"main": function([start], nodes, nodes[-1].result)})


def test_a_short_chain_of_elementwise_ops_is_left_to_be_fused() -> None:
    before = chain(8)
    assert roll(before) is before


def test_a_chain_of_ten_thousand_nodes_becomes_one_node_in_a_scan() -> None:
    assert scans(roll(chain(10_000))) == [(10_000, 1)]


def test_groups_are_neither_rolled_nor_left_out_of_layers() -> None:
    body = chain(16).function()

    def block(x: Value, w: Value) -> list[Node]:
        grouped = build("group", x, attributes={"label": "g"}, regions=[body])
        return [grouped, build("lax.mul", grouped.result, w, attributes={"out_dtype": None})]

    inputs = [value("f32[4]", "x"), *(value("f32[4]", f"w_{i}") for i in range(4))]
    nodes: list[Node] = []
    for w in inputs[1:]:
        nodes += block(nodes[-1].result if nodes else inputs[0], w)
    rolled = roll(Module({"main": function(inputs, nodes, nodes[-1].result)}))
    assert scans(rolled) == [(4, 18)]
    (group,) = [node for node in rolled.function().walk() if node.op == "group"]
    assert group.regions[0].size() == 16


# Provenance.


def test_the_number_of_the_layer_in_a_path_becomes_a_star() -> None:
    inputs = [value("f32[4]", "x"), *(value("f32[4]", f"w_{i}") for i in range(3))]
    nodes: list[Node] = []
    for i, w in enumerate(inputs[1:]):
        operand = nodes[-1].result if nodes else inputs[0]
        source = Source(f"model/layers_{i}/mul", "model.py:7", ("earlier",))
        nodes.append(build("lax.mul", operand, w, attributes={"out_dtype": None}, source=source))
        nodes.append(build("lax.neg", nodes[-1].result, source=source))
    rolled = roll(Module({"main": function(inputs, nodes, nodes[-1].result)}))
    loop = scan_of(rolled)
    inner = Source("model/layers_*/mul", "model.py:7", ("earlier",))
    assert [node.source for node in loop.regions[0].nodes] == [inner, inner]
    assert loop.source == inner.touched("roll")
    assert [v.name for v in loop.regions[0].inputs[1:]] == ["w_*"]


# Random programs.

_BINARY = ("lax.add", "lax.sub", "lax.mul", "lax.max")
_UNARY = ("lax.neg", "lax.sin", "lax.tanh")


@st.composite
def programs(draw: st.DrawFn, regular: bool) -> tuple[Function, int]:
    """A random chunk repeated; unless `regular`, copies may differ and be read from outside."""
    carries, shared = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    steps = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 9)),
                          min_size=3, max_size=9))  # fmt: skip
    moves = draw(st.lists(st.integers(0, 8), min_size=carries, max_size=carries))
    copies = draw(st.integers(4 if regular else 2, 7))
    odd = -1 if regular else draw(st.integers(-1, copies - 1))
    inputs = [value("f32[3]", f"in{i}") for i in range(carries + shared)]
    state, common = inputs[:carries], inputs[carries:]
    nodes: list[Node] = []
    seen: list[Value] = []
    for copy in range(copies):
        own = value("f32[3]", f"own_{copy}")
        inputs.append(own)
        reads = [*state, *common, own]
        made: list[Value] = []
        for number, (which, a, b) in enumerate(steps):
            if copy == odd and number == 1:
                which = (which + 1) % 7
            pool = [*reads, *made]
            nodes.append(_random_node(which, pool[a % len(pool)], pool[b % len(pool)]))
            made.append(nodes[-1].result)
        seen.append(made[0])
        # Every copy uses its own input and the last value of the one before.
        nodes.append(build("lax.add", made[-1], own))
        nodes.append(build("lax.add", nodes[-1].result, state[0]))
        handed = made if regular else [*reads, *made]
        state = [nodes[-1].result, *(handed[m % len(handed)] for m in moves)]
        state = state[:carries]
    outputs = list(state)
    if not regular:
        outputs += [seen[i] for i in draw(st.lists(st.integers(0, copies - 1), max_size=4))]
    return function(inputs, nodes, *outputs), copies


def _random_node(which: int, a: Value, b: Value) -> Node:
    if which < len(_BINARY):
        attributes = {"out_dtype": None} if _BINARY[which] == "lax.mul" else {}
        return build(_BINARY[which], a, b, attributes=attributes)
    name = _UNARY[which - len(_BINARY)]
    return build(name, a, attributes={} if name == "lax.neg" else {"accuracy": None})


def assert_equal_results(before: Function, after: Function) -> None:
    inputs = random_inputs(before)
    pairs = zip(evaluate(before, inputs), evaluate(after, inputs), strict=True)
    for expected, got in pairs:
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@given(programs(regular=True))
@settings(max_examples=40)
def test_any_chunk_that_is_repeated_rolls_into_one_scan(program: tuple[Function, int]) -> None:
    before, copies = program
    rolled = roll_function(before)
    assert_round_trips(Module({"main": rolled}))
    assert_equal_results(before, rolled)
    module = Module({"main": rolled})
    assert max(lengths(module)) >= copies - 1
    assert rolled.size() < before.size()


@given(programs(regular=False))
@settings(max_examples=60)
def test_any_irregular_program_keeps_its_results(program: tuple[Function, int]) -> None:
    before, _ = program
    rolled = roll_function(before)
    assert_round_trips(Module({"main": rolled}))
    assert_equal_results(before, rolled)
    cleaned = clean_module(Module({"main": before}))
    assert_equal_results(before, roll(cleaned).function())


@given(programs(regular=False))
@settings(max_examples=30)
def test_rolling_again_changes_nothing(program: tuple[Function, int]) -> None:
    rolled = roll(Module({"main": program[0]}))
    assert roll(rolled) is rolled


def test_rolling_twice_changes_nothing_more() -> None:
    rolled = roll(cached_module(3))
    assert roll(rolled) is rolled


def test_attention_helper_masks_by_window() -> None:
    """The models above differ where a test says so: a window changes the result."""
    q = random((1, LENGTH, 2, 6), 1)
    places = jnp.arange(LENGTH)[None]
    assert not np.allclose(attention(q, q, q, places), attention(q, q, q, places, window=2))
