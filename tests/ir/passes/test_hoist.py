"""Parameter arithmetic moves to `_prepare`: what moves, what stays, equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.passes.plain_models import (
    assert_same,
    cached_module,
    forward,
    parameters,
    random,
    run,
    some_inputs,
    tokens,
)
from tests.ir.samples import assert_round_trips, value
from tkcc.frontends.lowering import Call, lower, lower_functions
from tkcc.ir import functional as F
from tkcc.ir.errors import IRError
from tkcc.ir.graph import PREPARE, Function, Module, Node, Value
from tkcc.ir.op import build
from tkcc.ir.passes.hoist import PrepareCost, hoist, prepare_cost, run_prepare
from tkcc.ir.passes.roll import roll

BIG = 160  # a square matrix of this size is no small result: 100 KiB, and most of the parameters


def plain(target: Callable[..., Any], params: Any, *args: Any) -> Module:
    return lower(target, params, *args, parameters=("params",), recognise=False)


def check(before: Module, *names: str) -> Module:
    """Hoist; the result must print, parse and give the same results as before."""
    hoisted = hoist(before)
    assert_round_trips(hoisted)
    assert hoisted.parameters.keys() <= before.parameters.keys()
    for name in names or before.steps:
        inputs = some_inputs(before, name)
        assert_same(run(before, name, inputs), run(hoisted, name, inputs))
    return hoisted


def ops(module: Module, name: str = "main") -> list[str]:
    return [node.op for node in module.functions[name].walk() if node.op != "constant"]


def inputs(module: Module, name: str = "main") -> dict[str, str]:
    """Parameters of a function: name (without its hash) -> type."""
    found = module.functions[name].inputs_of("param")
    return {v.name.partition("~")[0]: str(v.type) for v in found}


def bodies(module: Module, name: str = "main") -> list[Function]:
    return [node.regions[0] for node in module.functions[name].nodes if node.op == "scan"]


def matrix(rows: int, columns: int, seed: int = 0, dtype: Any = jnp.float32) -> jax.Array:
    return random((rows, columns), seed, dtype)


X = jnp.ones((2, BIG))
W = {"w": matrix(BIG, BIG)}


# What moves.


def test_concatenated_weights_move_and_the_parts_are_no_longer_read() -> None:
    def model(params: Any, x: Any) -> Any:
        return x @ jnp.concatenate([params["q"], params["k"], params["v"]], axis=1)

    hoisted = check(plain(model, {n: matrix(BIG, BIG, i) for i, n in enumerate("qkv")}, X))
    assert ops(hoisted) == ["lax.dot_general"]
    assert ops(hoisted, PREPARE) == ["lax.concatenate"]
    assert list(inputs(hoisted).values()) == [f"f32[{BIG},{3 * BIG}]"]
    assert list(hoisted.parameters) == ["params.k", "params.q", "params.v"]


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        (lambda w: w.T, ["lax.transpose"]),
        (lambda w: w.astype(jnp.bfloat16).astype(jnp.float32), ["lax.convert_element_type"]),
        (lambda w: w * jnp.arange(BIG)[:, None], ["lax.mul"]),
        (lambda w: w + w.T @ w, ["lax.transpose", "lax.dot_general", "lax.add"]),
    ],
)
def test_arithmetic_on_weights_moves(change: Callable[[Any], Any], moved: list[str]) -> None:
    hoisted = check(plain(lambda params, x: x @ change(params["w"]), W, X))
    assert set(moved) <= set(ops(hoisted, PREPARE))
    assert "lax.transpose" not in ops(hoisted)


def test_what_the_step_returns_of_parameters_alone_moves() -> None:
    hoisted = check(plain(lambda params, x: (params["w"].T, x * 2.0), W, X))
    assert ops(hoisted) == ["lax.mul"]


def test_functions_that_compute_the_same_share_one_parameter() -> None:
    def step(params: Any, x: Any) -> Any:
        return x @ (params["w"].T * 2.0)

    def other(params: Any, x: Any) -> Any:
        return jnp.tanh(x) @ (params["w"].T * 2.0) + x @ (params["w"].T * 2.0) * params["g"].T

    params = {**W, "g": random((1, BIG), 1).T}
    calls = {
        "prefill": Call(step, (params, jnp.ones((7, BIG))), parameters=("params",)),
        "decode": Call(other, (params, X), parameters=("params",)),
    }
    hoisted = check(lower_functions(calls, recognise=False))
    (shared,) = (v.name for v in hoisted.function("prefill").inputs_of("param"))
    assert shared in [v.name for v in hoisted.function("decode").inputs_of("param")]
    assert len(hoisted.functions[PREPARE].outputs) == 2
    assert ops(hoisted, PREPARE).count("lax.mul") == 1


def test_whole_loops_over_parameters_move() -> None:
    def model(params: Any, x: Any) -> Any:
        w = jax.lax.fori_loop(0, 3, lambda i, w: w @ w, params["w"])
        return x @ jax.lax.scan(lambda w, _: (w @ w, None), w, None, length=2)[0]

    hoisted = check(plain(model, {"w": matrix(BIG, BIG) * 0.01}, X))
    assert ops(hoisted) == ["lax.dot_general"]


def test_states_keep_their_aliases_when_parameters_come_and_go() -> None:
    before = cached_module(2)
    hoisted = hoist(before)
    for name in ("prefill", "decode"):
        step = hoisted.function(name)
        pairs = [(step.output_names[o], step.inputs[i].name) for o, i in step.aliases]
        assert len(pairs) == 4
        assert all(new == old for new, old in pairs)


# Inside scans.


def scanned(body: Callable[..., Any], params: Any) -> Module:
    """x goes through `body(x, w, c)` for each w of params["w"]; c is params["c"]."""

    def model(params: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (body(x, w, params["c"]), None), x, params["w"])[0]

    return plain(model, params, X)


STACKED = {"w": random((3, BIG, BIG), 1), "c": matrix(BIG, BIG, 2)}


def test_arithmetic_on_each_layers_weights_becomes_one_stacked_parameter() -> None:
    hoisted = check(scanned(lambda x, w, c: jnp.tanh(x @ (w.T * 2.0)), STACKED))
    assert inputs(hoisted) == {"params.w": f"f32[3,{BIG},{BIG}]"}
    (body,) = bodies(hoisted)
    assert [node.op for node in body.nodes] == ["lax.dot_general", "lax.tanh"]
    assert "lax.mul" in ops(hoisted, PREPARE)
    (loop,) = (node for node in hoisted.function("main").nodes if node.op == "scan")
    assert len(loop.operands) == 2  # x and the new weights; the old ones are gone


def test_what_is_the_same_in_every_layer_is_computed_once_and_not_stacked() -> None:
    hoisted = check(scanned(lambda x, w, c: jnp.tanh(x @ w) @ c.T, STACKED))
    assert inputs(hoisted) == {"params.w": f"f32[3,{BIG},{BIG}]", "params.c": f"f32[{BIG},{BIG}]"}
    assert ops(hoisted, PREPARE) == ["lax.transpose"]


def test_each_layers_weights_with_shared_ones_are_stacked() -> None:
    hoisted = check(scanned(lambda x, w, c: jnp.tanh(x @ (c.T @ w)), STACKED))
    (body,) = bodies(hoisted)
    assert [node.op for node in body.nodes] == ["lax.dot_general", "lax.tanh"]
    assert list(inputs(hoisted).values()) == [f"f32[3,{BIG},{BIG}]"]


def test_reversed_scans_read_the_right_slices() -> None:
    def model(params: Any, x: Any) -> Any:
        step = lambda x, w: (jnp.tanh(x @ w.T), x[:, 0])  # noqa: E731
        return jax.lax.scan(step, x, params["w"], reverse=True)

    hoisted = check(plain(model, {"w": STACKED["w"]}, X))
    assert ops(hoisted, PREPARE) == ["scan", "lax.transpose"]


def test_scans_in_scans_are_hoisted_to_the_top() -> None:
    def model(params: Any, x: Any) -> Any:
        def inner(scale: Any) -> Any:
            return lambda x, w: (jnp.tanh(x @ (w.T * scale)) @ params["c"].T, None)

        def outer(x: Any, ws: Any) -> Any:
            return jax.lax.scan(inner(params["s"] * 2.0), x, ws)[0], None

        return jax.lax.scan(outer, x, params["w"])[0]

    params = {"w": random((2, 3, BIG, BIG), 1), "c": STACKED["c"], "s": random((BIG,), 3)}
    hoisted = check(plain(model, params, X))
    (outer,) = bodies(hoisted)
    (inner,) = (node.regions[0] for node in outer.nodes if node.op == "scan")
    assert [node.op for node in inner.nodes] == ["lax.dot_general", "lax.tanh", "lax.dot_general"]
    assert f"f32[2,3,{BIG},{BIG}]" in inputs(hoisted).values()


def test_two_scans_may_have_one_body() -> None:
    module = scanned(lambda x, w, c: jnp.tanh(x @ w.T), STACKED)
    step = module.function("main")
    (loop,) = (node for node in step.nodes if node.op == "scan")
    x = step.outputs[0]
    again = loop.replace(operands=(x, *loop.operands[1:]), results=(Value(x.type),))
    twice = step.replace(nodes=(*step.nodes, again), outputs=again.results)
    hoisted = check(Module({"main": twice}))
    assert "lax.transpose" not in ops(hoisted)
    assert len(hoisted.functions[PREPARE].outputs) == 1


def test_stacks_that_roll_makes_are_computed_once() -> None:
    before = plain(forward, parameters(4), *tokens(2, 5))
    hoisted = check(roll(before))
    assert "stack" not in ops(hoisted)
    assert ops(hoisted, PREPARE).count("stack") == 9
    assert {"params.layers.*.query", "params.layers.*.mlp_norm"} <= inputs(hoisted).keys()


# What stays.


def test_a_step_without_parameter_arithmetic_is_returned_unchanged() -> None:
    before = plain(lambda params, x: jnp.tanh(x @ params["w"]), W, X)
    assert hoist(before) is before


def test_what_depends_on_constants_alone_stays() -> None:
    def model(params: Any, x: Any) -> Any:
        return x @ (params["w"] * 2.0) + jnp.arange(BIG) * jnp.float32(2.0)

    hoisted = check(plain(model, W, X))
    assert "lax.iota" in ops(hoisted)
    assert "lax.iota" not in ops(hoisted, PREPARE)


def test_groups_stay_where_they_were_drawn() -> None:
    w, x = value(f"f32[{BIG},{BIG}]", "w"), value(f"f32[2,{BIG}]", "x")
    inner = value(f"f32[{BIG},{BIG}]")
    twice = build("lax.add", inner, inner)
    group = build(
        "group",
        w,
        attributes={"label": "g"},
        regions=[Function((inner,), (twice,), twice.results)],
    )
    product = build("linear", x, group.result)
    step = Function((w, x), (group, product), product.results, ("param", "arg"))
    before = Module({"main": step})
    assert hoist(before) is before


def test_collectives_stay() -> None:
    w, x = value(f"f32[{BIG},{BIG}]", "w"), value(f"f32[2,{2 * BIG}]", "x")
    whole = build("all_gather", w, attributes={"axis": "tp", "size": 2, "dimension": 0})
    product = build("linear", x, whole.result)
    step = Function((w, x), (whole, product), product.results, ("param", "arg"))
    before = Module({"main": step})
    assert hoist(before) is before


@pytest.mark.parametrize(
    "view",
    [
        lambda w: w.reshape(BIG // 2, 2, BIG),
        lambda w: w[None],
        lambda w: jnp.broadcast_to(w, (3, BIG, BIG)),
    ],
)
def test_a_view_of_a_parameter_stays(view: Callable[[Any], Any]) -> None:
    before = plain(lambda params, x: jnp.sum(x) * view(params["w"]), W, X)
    assert hoist(before) is before


def test_a_view_of_a_computed_parameter_is_taken_in_the_step() -> None:
    def model(params: Any, x: Any) -> Any:
        return jnp.sum(x) * jnp.broadcast_to((params["w"] * 2.0)[:, None], (BIG, 3, BIG))

    hoisted = check(plain(model, W, X))
    assert ops(hoisted, PREPARE) == ["lax.mul"]


def test_weights_are_dequantised_in_the_step() -> None:
    def model(params: Any, x: Any) -> Any:
        q, scale = F.call("quantize", params["w"], dtype=jnp.int8)
        return F.linear(x, F.call("dequantize", q, scale, dtype=jnp.float32))

    hoisted = check(plain(model, W, X))
    assert ops(hoisted, PREPARE) == ["quantize"]
    assert ops(hoisted) == ["dequantize", "linear"]
    types = [str(v.type) for v in hoisted.function("main").inputs_of("param")]
    assert types == [f"i8[{BIG},{BIG}]", f"f32[1,{BIG}]"]


def test_packed_weights_are_unpacked_in_the_step_however_that_is_written() -> None:
    """Two i4 in a byte: each half alone is as large as the packed form, so both stay."""

    def model(params: Any, x: Any) -> Any:
        low, high = params["packed"] & 15, params["packed"] >> 4
        return x @ (jnp.concatenate([low, high], axis=1).astype(jnp.float32) * 0.1)

    packed = jnp.asarray(np.random.default_rng(0).integers(0, 255, (BIG, BIG)), jnp.uint8)
    before = plain(model, {"packed": packed}, X)
    assert hoist(before) is before


def test_large_weights_are_widened_in_the_step_but_small_ones_before() -> None:
    def model(params: Any, x: Any) -> Any:
        return (x * params["norm"].astype(jnp.float32)) @ params["w"].astype(jnp.float32)

    params = {"norm": jnp.ones((BIG,), jnp.bfloat16), "w": matrix(BIG, 2 * BIG, 0, jnp.bfloat16)}
    hoisted = check(plain(model, params, X))
    assert inputs(hoisted) == {
        "params.norm": f"f32[{BIG}]",
        "params.w": f"bf16[{BIG},{2 * BIG}]",
    }


def test_a_low_rank_product_is_not_expanded() -> None:
    def model(params: Any, x: Any) -> Any:
        return x @ (params["a"] @ params["b"])

    before = plain(model, {"a": matrix(BIG, 4), "b": matrix(4, BIG)}, X)
    assert hoist(before) is before


def test_a_low_rank_update_is_merged_into_its_weights() -> None:
    def model(params: Any, x: Any) -> Any:
        return x @ (params["w"] + params["a"] @ params["b"])

    hoisted = check(plain(model, {"a": matrix(BIG, 4), "b": matrix(4, BIG), **W}, X))
    assert list(inputs(hoisted).values()) == [f"f32[{BIG},{BIG}]"]


def test_the_growth_of_all_slices_counts() -> None:
    """One layer's result would be small; those of all layers are not."""

    def model(params: Any, x: Any) -> Any:
        def step(x: Any, s: Any) -> Any:
            return jnp.tanh(x * (s[:, None] * s[None, :])[0]), None

        return jax.lax.scan(step, x, params["s"])[0] @ params["w"]

    params = {"s": random((400, BIG), 1), "w": STACKED["c"]}
    hoisted = check(plain(model, params, X))
    assert not any(text.startswith(f"f32[400,{BIG},{BIG}]") for text in inputs(hoisted).values())


# Hoisting again.


def test_a_hoisted_module_that_is_rewritten_is_hoisted_from_the_original_parameters() -> None:
    before = plain(lambda params, x: x @ params["w"].T, W, X)
    once = hoist(before)
    step = once.function("main")
    (name,) = (v.name for v in step.inputs_of("param"))
    transposed = step.inputs_of("param")[0]
    doubled = build("lax.add", transposed, transposed)
    changed = [node.replace(operands=_with(node, transposed, doubled)) for node in step.nodes]
    rewritten = once.with_function("main", step.replace(nodes=(doubled, *changed)))
    twice = hoist(rewritten)
    prepare = twice.functions[PREPARE]
    assert [v.name for v in prepare.inputs] == ["params.w"]
    assert list(twice.parameters) == ["params.w"] == list(before.parameters)
    assert ops(twice, PREPARE) == ["lax.transpose", "lax.add"]
    assert name not in prepare.output_names  # no step reads it any more
    inputs = some_inputs(before, "main")
    expected = run(before, "main", inputs)
    assert_same({key: 2 * array for key, array in expected.items()}, run(twice, "main", inputs))


def _with(node: Node, old: Value, new: Node) -> tuple[Value, ...]:
    return tuple(new.result if operand is old else operand for operand in node.operands)


def test_hoisting_again_changes_nothing() -> None:
    once = hoist(plain(lambda params, x: x @ (params["w"].T * 2.0), W, X))
    assert hoist(once) is once


def test_what_no_step_reads_any_more_leaves_prepare() -> None:
    once = hoist(plain(lambda params, x: x @ params["w"].T, W, X))
    step = once.function("main")
    simple = build("lax.neg", step.inputs_of("arg")[0])
    without = Function(step.inputs_of("arg"), (simple,), simple.results)
    assert PREPARE not in hoist(once.with_function("main", without)).functions


def test_names_say_the_sources_and_do_not_depend_on_the_rest_of_the_module() -> None:
    def one(params: Any, x: Any) -> Any:
        return x @ (params["w"].T * 2.0)

    def other(params: Any, x: Any) -> Any:
        return jnp.sin(x @ (params["v"] @ params["v"])) @ (params["w"].T * 2.0)

    (name,) = (v.name for v in hoist(plain(one, W, X)).function("main").inputs_of("param"))
    module = hoist(plain(other, {**W, "v": matrix(BIG, BIG, 5)}, X))
    assert name in [v.name for v in module.function("main").inputs_of("param")]
    assert name.startswith("params.w~")


# Running it.


def test_run_prepare_gives_what_the_steps_read() -> None:
    def model(params: Any, x: Any) -> Any:
        return (x @ params["w"].T) * params["g"]

    params = {"w": W["w"], "g": random((BIG,), 2)}
    hoisted = hoist(plain(model, params, X))
    values = {"params.w": params["w"], "params.g": params["g"]}
    got = run_prepare(hoisted, values)
    names = [v.name for v in hoisted.function("main").inputs_of("param")]
    assert list(got) == names
    assert got["params.g"] is params["g"]
    (new,) = set(names) - {"params.g"}
    np.testing.assert_array_equal(got[new], params["w"].T)


def test_run_prepare_of_a_module_without_prepare_picks_the_parameters() -> None:
    before = plain(lambda params, x: x @ params["w"], W, X)
    assert run_prepare(before, {"params.w": W["w"], "unused": X}) == {"params.w": W["w"]}


def test_a_missing_parameter_is_named() -> None:
    hoisted = hoist(plain(lambda params, x: x @ params["w"].T, W, X))
    with pytest.raises(IRError, match=r"no value for parameter 'params\.w'"):
        run_prepare(hoisted, {})


def test_a_parameter_of_another_shape_is_refused() -> None:
    hoisted = hoist(plain(lambda params, x: x @ params["w"].T, W, X))
    with pytest.raises(IRError, match=r"params\.w"):
        run_prepare(hoisted, {"params.w": jnp.ones((3, 3))})


def test_the_cost_counts_new_and_released_bytes_and_flops() -> None:
    def model(params: Any, x: Any) -> Any:
        return (x @ (params["w"] @ params["w"])) @ params["v"].T + params["v"][0]

    before = plain(model, {**W, "v": matrix(BIG, BIG, 1)}, X)
    assert prepare_cost(before) == PrepareCost()
    cost = prepare_cost(hoist(before))
    square = 4 * BIG * BIG
    assert cost.released_bytes == 2 * square
    assert cost.new_bytes == 2 * square + 4 * BIG
    assert cost.flops == 2 * BIG**3


# Random programs.


@st.composite
def programs(draw: st.DrawFn) -> Function:
    """Nodes over parameters, constants and an argument, some of them in a scan's body."""
    names = [value("f32[3]", "a"), value("f32[3]", "p"), value("f32[3]", "q")]
    rows = [value("f32[2,3]", "ps"), value("f32[2,3]", "xs")]
    constant = build("constant", attributes={"value": np.arange(3, dtype=np.float32)})
    pool, nodes = [*names, constant.result], [constant]
    for _ in range(draw(st.integers(1, 8))):
        nodes.append(_random_node(draw, pool))
        pool.append(nodes[-1].result)
    loop = _random_scan(draw, pool, rows)
    nodes.append(loop)
    pool += loop.results[:1]
    for _ in range(draw(st.integers(0, 4))):
        nodes.append(_random_node(draw, pool))
        pool.append(nodes[-1].result)
    outputs = (loop.results[1], *draw(st.lists(st.sampled_from(pool), min_size=1, max_size=4)))
    return Function((*names, *rows), tuple(nodes), outputs, ("arg", *("param",) * 3, "arg"))


def _random_node(draw: st.DrawFn, pool: list[Value]) -> Node:
    a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
    op = draw(st.sampled_from(["lax.add", "lax.sub", "lax.max", "lax.neg", "lax.sin"]))
    if op in ("lax.neg", "lax.sin"):
        return build(op, a, attributes={"accuracy": None} if op == "lax.sin" else {})
    return build(op, a, b)


def _random_scan(draw: st.DrawFn, pool: list[Value], rows: list[Value]) -> Node:
    consts = draw(st.lists(st.sampled_from(pool), max_size=3))
    start = draw(st.sampled_from(pool))
    inner = [Value(v.type) for v in (*consts, start)] + [value("f32[3]") for _ in rows]
    known, nodes = list(inner), []
    for _ in range(draw(st.integers(1, 8))):
        nodes.append(_random_node(draw, known))
        known.append(nodes[-1].result)
    outputs = tuple(draw(st.sampled_from(known)) for _ in range(2))
    attributes = {"consts": len(consts), "carry": 1, "length": 2, "reverse": draw(st.booleans())}
    body = Function(tuple(inner), tuple(nodes), outputs)
    return build("scan", *consts, start, *rows, attributes=attributes, regions=[body])


@given(programs())
@settings(max_examples=60)
def test_any_program_keeps_its_results_and_leaves_no_growth_behind(program: Function) -> None:
    before = Module({"main": program})
    hoisted = check(before)
    assert hoist(hoisted) is hoisted
    read = sum(v.type.bytes for v in hoisted.function("main").inputs_of("param"))
    assert read <= 12 * (program.size() + 4)
