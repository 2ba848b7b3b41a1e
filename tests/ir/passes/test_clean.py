"""Dead code, common subexpressions, constant folding: what goes, what stays, equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings

from tests.ir.samples import (
    assert_function_round_trips,
    function,
    functions,
    one_node,
    random_inputs,
    value,
)
from tests.tolerances import assert_identical
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Module, Node, Value
from tkcc.ir.op import build
from tkcc.ir.passes.clean import (
    clean,
    clean_module,
    each_function,
    fold_constants,
    in_regions,
    remove_dead,
    share_common,
)
from tkcc.ir.text import parse_function

Pass = Callable[[Function], Function]


def ops(f: Function) -> list[str]:
    return [node.op for node in f.nodes]


def constant(array: Any) -> Node:
    return build("constant", attributes={"value": np.asarray(array)})


@pytest.mark.parametrize("change", [remove_dead, share_common, fold_constants, clean])
@settings(max_examples=40)
@given(drawn=functions(2))
def test_results_types_and_roles_stay(change: Pass, drawn: Function) -> None:
    changed = change(drawn)
    assert changed.inputs == drawn.inputs
    assert changed.roles == drawn.roles
    assert changed.output_types == drawn.output_types
    assert changed.size() <= drawn.size()
    assert_function_round_trips(changed)
    inputs = random_inputs(drawn)
    with jax.disable_jit():  # loops op by op: nothing is compiled anew for each example
        pairs = zip(evaluate(changed, inputs), evaluate(drawn, inputs), strict=True)
        for got, want in pairs:
            assert_identical(got, want)


@settings(max_examples=40)
@given(functions(2))
def test_cleaning_twice_is_cleaning_once(drawn: Function) -> None:
    once = clean(drawn)
    assert ops(clean(once)) == ops(once)


def test_dead_nodes_and_their_operands_go() -> None:
    x = value("f32[2]")
    used, dead = build("lax.neg", x), build("lax.abs", x)
    deader = build("lax.sign", dead.result)
    f = function((x,), (used, dead, deader), used.result)
    assert ops(remove_dead(f)) == ["lax.neg"]


def test_a_node_with_one_live_result_stays_whole() -> None:
    x = value("f32[4]")
    pieces = build("split", x, attributes={"sizes": (1, 3)})
    f = function((x,), (pieces,), pieces.results[1])
    assert remove_dead(f).nodes[0].results == pieces.results


LOOP = """func main {
  arg %used: f32[]
  arg %unused: f32[]
  arg %carry: f32[]
  arg %rows: f32[3]
  arg %dead_rows: f32[3]
  %last: f32[], %out: f32[3], %dead: f32[3] = scan(%used, %unused, %carry, %rows, %dead_rows)
    {carry=1, consts=2, length=3} {
    region 0 {
      arg %u: f32[]
      arg %n: f32[]
      arg %c: f32[]
      arg %r: f32[]
      arg %d: f32[]
      %new: f32[] = lax.add(%c, %u)
      %o: f32[] = lax.mul(%r, %c)
      %w: f32[] = lax.mul(%d, %n)
      return %new, %o, %w
    }
  }
  return %last, %out
}"""


def test_a_loop_loses_results_that_nobody_reads_and_operands_it_does_not_read() -> None:
    f = parse_function(LOOP)
    trimmed = remove_dead(f)
    (loop,) = trimmed.nodes
    assert [v.name for v in loop.operands] == ["used", "carry", "rows"]
    assert [v.name for v in loop.results] == ["last", "out"]
    assert loop.attribute("consts") == 1
    assert ops(loop.regions[0]) == ["lax.add", "lax.mul"]
    inputs = random_inputs(f)
    for got, want in zip(evaluate(trimmed, inputs), evaluate(f, inputs), strict=True):
        assert_identical(got, want)


def test_a_loop_keeps_a_carry_that_only_the_loop_reads() -> None:
    f = parse_function(LOOP)
    only_out = remove_dead(f.replace(outputs=f.outputs[1:]))
    (loop,) = only_out.nodes
    assert [v.name for v in loop.results] == ["last", "out"]
    inputs = random_inputs(f)
    assert_identical(evaluate(only_out, inputs)[0], evaluate(f, inputs)[1])


def test_a_loop_that_nobody_reads_goes() -> None:
    f = parse_function(LOOP)
    assert remove_dead(f.replace(outputs=f.inputs[:1])).nodes == ()


def test_dead_nodes_inside_branches_go() -> None:
    x = value("f32[2]")
    y = value("f32[2]")
    dead = build("lax.abs", y)
    branch = function((y,), (dead,), y)
    index = value("i32[]")
    node = build("cond", index, x, regions=[branch])
    cleaned = remove_dead(function((index, x), (node,), node.result))
    assert cleaned.nodes[0].regions[0].nodes == ()


def test_equal_nodes_are_merged_through_chains() -> None:
    x = value("f32[2]")
    first, second = build("lax.neg", x), build("lax.neg", x)
    left, right = build("lax.abs", first.result), build("lax.abs", second.result)
    total = build("lax.add", left.result, right.result)
    shared = share_common(function((x,), (first, second, left, right, total), total.result))
    assert ops(shared) == ["lax.neg", "lax.abs", "lax.add"]
    assert shared.nodes[-1].operands == (left.result, left.result)


def test_outputs_that_were_merged_are_read_from_the_first() -> None:
    x = value("f32[2]")
    first, second = build("lax.neg", x), build("lax.neg", x)
    shared = share_common(function((x,), (first, second), second.result, first.result))
    assert shared.outputs == (first.result, first.result)


def test_nodes_that_differ_in_attributes_operand_order_or_operands_stay() -> None:
    x, y = value("f32[2]"), value("f32[2]")
    nodes = [
        build("softmax", x),
        build("softmax", y),
        build("activation", x, attributes={"kind": "relu"}),
        build("activation", x, attributes={"kind": "tanh"}),
        build("lax.sub", x, y),
        build("lax.sub", y, x),
        constant(np.float32(0)),
        constant(np.float32(-0.0)),
        constant(np.int32(0)),
    ]
    f = function((x, y), nodes, *(node.result for node in nodes))
    assert share_common(f).nodes == f.nodes


def _branches(first: str, second: str) -> Function:
    """Two groups around one op each."""
    x = value("f32[2]")
    nodes = []
    for op in (first, second):
        y = value("f32[2]")
        inner = build(op, y)
        body = function((y,), (inner,), inner.result)
        nodes.append(build("group", x, attributes={"label": "g"}, regions=[body]))
    return function((x,), nodes, *(node.result for node in nodes))


def test_nodes_with_equal_regions_are_merged_and_with_other_regions_are_not() -> None:
    assert len(share_common(_branches("lax.neg", "lax.neg")).nodes) == 1
    assert len(share_common(_branches("lax.neg", "lax.abs")).nodes) == 2


def test_equal_nodes_inside_regions_are_merged() -> None:
    x, y = value("f32[2]"), value("f32[2]")
    first, second = build("lax.neg", y), build("lax.neg", y)
    total = build("lax.add", first.result, second.result)
    body = function((y,), (first, second, total), total.result)
    node = build("group", x, attributes={"label": "g"}, regions=[body])
    shared = share_common(one_node(node))
    assert ops(shared.nodes[0].regions[0]) == ["lax.neg", "lax.add"]


def test_arithmetic_of_constants_is_folded_to_what_jax_computes() -> None:
    x = value("f32[2]")
    one, two = constant(np.array([1, 2], np.float32)), constant(np.array([0.1, 0.2], np.float32))
    product = build("lax.mul", one.result, two.result)
    total = build("lax.add", x, product.result)
    folded = fold_constants(function((x,), (one, two, product, total), total.result))
    assert ops(folded) == ["constant", "lax.add"]
    np.testing.assert_array_equal(
        folded.nodes[0].attribute("value").array(),
        np.array([1, 2], np.float32) * np.array([0.1, 0.2], np.float32),
    )


def test_folding_keeps_64_bit_types() -> None:
    one = constant(np.array([1 / 3]))
    double = build("lax.add", one.result, one.result)
    folded = fold_constants(function((), (one, double), double.result))
    assert folded.output_types == (double.result.type,)
    np.testing.assert_array_equal(folded.nodes[0].attribute("value").array(), [2 / 3])


def test_every_result_of_a_folded_node_becomes_a_constant() -> None:
    made = constant(np.arange(3, dtype=np.float32))
    pieces = build("split", made.result, attributes={"sizes": (1, 2)})
    folded = fold_constants(function((), (made, pieces), *pieces.results))
    assert ops(folded) == ["constant", "constant"]
    assert folded.outputs == pieces.results


def _stays(*nodes: Node) -> bool:
    f = function((), nodes, *nodes[-1].results)
    return ops(fold_constants(f))[-1] == nodes[-1].op


def test_what_is_large_random_or_needs_a_device_is_not_folded() -> None:
    small = constant(np.float32(1))
    wide = {"shape": (65,), "broadcast_dimensions": (), "sharding": None}
    assert _stays(small, build("lax.broadcast_in_dim", small.result, attributes=wide))
    reduced = {"axis": "x", "size": 1}
    assert _stays(small, build("all_reduce", small.result, attributes=reduced))
    assert _stays(build("lax.platform_index", attributes={"platforms": (("cpu",), None)}))
    seed = constant(np.zeros(4, np.uint32))
    drawn = {"shape": (2,), "dtype": np.dtype("uint32"), "algorithm": jax.lax.RandomAlgorithm(0)}
    bits = jax.make_jaxpr(lambda k: jax.lax.rng_bit_generator(k, (2,)))(np.zeros(4, np.uint32))
    given = {**bits.eqns[0].params, **drawn}
    assert _stays(seed, build("lax.rng_bit_generator", seed.result, attributes=given))


def test_constants_inside_regions_are_folded() -> None:
    x, y = value("f32[]"), value("f32[]")
    one = constant(np.float32(1))
    two = build("lax.add", one.result, one.result)
    total = build("lax.add", y, two.result)
    body = function((y,), (one, two, total), total.result)
    node = build("group", x, attributes={"label": "g"}, regions=[body])
    assert ops(fold_constants(one_node(node)).nodes[0].regions[0]) == ["constant", "lax.add"]


def test_in_regions_changes_innermost_first_and_leaves_the_function() -> None:
    seen: list[int] = []

    def note(f: Function) -> Function:
        seen.append(len(f.nodes))
        return f

    inner, outer = value("f32[]"), value("f32[]")
    leaf = build("lax.neg", inner)
    body = function((inner,), (leaf, build("lax.abs", inner)), leaf.result)
    group = build("group", outer, attributes={"label": "g"}, regions=[body])
    middle = function((outer,), (group,), group.result)
    top = build("group", Value(outer.type), attributes={"label": "h"}, regions=[middle])
    f = one_node(top)
    assert in_regions(f, note) is f
    assert seen == [2, 1]


def test_each_function_and_clean_module_change_every_function() -> None:
    f = _branches("lax.neg", "lax.neg")
    module = Module({"a": f, "b": f})
    emptied = each_function(module, lambda g: g.replace(nodes=(), outputs=()))
    assert [len(g.nodes) for g in emptied.functions.values()] == [0, 0]
    assert [len(g.nodes) for g in clean_module(module).functions.values()] == [1, 1]
