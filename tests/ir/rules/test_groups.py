"""Group rules: what a group holds, its label, its border, and groups that would make a cycle."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ir.rewrite.texts import assert_same_results, function_of, module_of, named, ops
from tests.ir.rules.functions import ACTIVATED, ATTENTION, CHAIN, LOOP, MLP, NORM_LINEAR
from tests.ir.rules.llama import tiny_llama
from tests.ir.samples import assert_round_trips
from tkcc.ir.graph import Function, Node
from tkcc.ir.hashing import function_hash
from tkcc.ir.passes.clean import clean
from tkcc.ir.rewrite.driver import apply_rule, find_sites, rewrite
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import get_rule
from tkcc.ir.rules.groups import ELEMENTWISE, MAX_CHAIN, form_group, region_of


def _grouped(lines: str, rule: str) -> tuple[Function, Node]:
    """The function after the rule, and its only group."""
    module = module_of(lines)
    changed, fired = apply_rule(module, get_rule(rule))
    assert fired
    assert_round_trips(changed)
    assert_same_results(module.function(), changed.function())
    (group,) = [node for node in changed.function().walk() if node.op == "group"]
    return changed.function(), group


def _names(values: Any) -> list[str]:
    return [value.name for value in values]


# --- what stands in a group --------------------------------------------------------------------

WHOLE = {
    "group_elementwise": (CHAIN, "elementwise", ["x"]),
    "group_norm_linear": (NORM_LINEAR, "norm_linear", ["x", "w", "a"]),
    "group_mlp": (MLP, "mlp", ["x", "g", "u", "d"]),
    "group_linear_activation": (ACTIVATED, "linear_activation", ["x", "a"]),
    "group_attention": (ATTENTION, "attention", ["q", "k", "v", "p"]),
    "group_step": (MLP, "step", ["x", "g", "u", "d"]),
}


@pytest.mark.parametrize("rule", WHOLE)
def test_a_group_holds_the_ops_it_replaces(rule: str) -> None:
    lines, kind, inputs = WHOLE[rule]
    _, group = _grouped(lines, rule)
    assert group.attribute("kind") == kind
    assert _names(group.operands) == inputs
    f = function_of(lines)
    used = [value for value in f.inputs if value in f.uses]
    whole = f.replace(inputs=tuple(used), roles=())
    (body,) = group.regions
    assert function_hash(body) == function_hash(_in_order(whole, inputs))
    assert group.attribute("label") == f"{kind}.{function_hash(body)[:8]}"


def _in_order(f: Function, names: list[str]) -> Function:
    return f.replace(inputs=tuple(named(f)[name] for name in names), roles=())


def test_a_layer_is_the_whole_body_of_a_loop() -> None:
    changed, group = _grouped(LOOP, "group_layer")
    before = function_of(LOOP).nodes[0].regions[0]
    after = changed.nodes[0].regions[0]
    assert ops(after) == ["group"]
    assert group.attribute("kind") == "layer"
    body = group.regions[0]
    order = [after.inputs.index(value) for value in group.operands]
    inputs = tuple(before.inputs[i] for i in order)
    assert function_hash(body) == function_hash(before.replace(inputs=inputs, roles=()))
    assert after.outputs == group.results


def test_labels_are_the_same_for_the_same_body_whatever_the_names() -> None:
    labels = [_grouped(MLP, "group_mlp")[1].attribute("label")]
    for name in "gudpqsxy":
        labels.append(
            _grouped(MLP.replace(f"%{name}", f"%new_{name}"), "group_mlp")[1].attribute("label")
        )
    assert len(set(labels)) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [("6", "7"), ("f32", "bf16"), ("swiglu(%p, %q)", 'swiglu(%p, %q) {activation="gelu"}')],
)
def test_labels_differ_for_other_bodies(old: str, new: str) -> None:
    labels = [
        _grouped(text, "group_mlp")[1].attribute("label") for text in (MLP, MLP.replace(old, new))
    ]
    assert labels[0] != labels[1]


def test_equal_layers_of_an_unrolled_model_share_a_label() -> None:
    module, _ = apply_rule(tiny_llama(), get_rule("unroll_layers"), None)
    changed, fired = apply_rule(module, get_rule("group_mlp"))
    labels = {n.attribute("label") for n in changed.function("decode").nodes if n.op == "group"}
    assert len(fired) == 2 * 4
    assert len(labels) == 1


# --- the border --------------------------------------------------------------------------------


def test_values_that_are_read_outside_are_results_in_program_order() -> None:
    lines = """
      arg %x: f32[3,4]
      param %a: f32[4,12]
      param %e: f32[4,6]
      %h: f32[3,12] = linear(%x, %a)
      %p: f32[3,4], %q: f32[3,4], %r: f32[3,4] = split(%h) {sizes=(4, 4, 4)}
      %s: f32[3,4] = swiglu(%q, %p)
      %t: f32[3,4] = lax.exp(%r)
      %y: f32[3,6] = linear(%s, %e)
      return %y, %t, %r
    """
    changed, group = _grouped(lines, "group_mlp")
    assert ops(group.regions[0]) == ["linear", "split", "swiglu", "linear"]
    assert _names(group.results) == ["r", "y"]
    assert ops(changed) == ["group", "lax.exp"]


def test_a_swiglu_of_one_value_is_grouped_once() -> None:
    lines = MLP.replace("swiglu(%p, %q)", "swiglu(%p, %p)").replace(
        "  %q: f32[3,6] = linear(%x, %u)\n", ""
    )
    _, group = _grouped(lines, "group_mlp")
    assert ops(group.regions[0]) == ["linear", "swiglu", "linear"]


def test_a_group_reads_each_outer_value_once() -> None:
    f = function_of(CHAIN)
    region, outer = region_of(f.nodes, f.outputs)
    assert _names(outer) == ["x"]
    assert ops(region) == ops(f)
    assert _names(region.inputs) == ["x"]
    assert region.inputs[0] is not outer[0]  # regions are closed


def test_merged_gate_and_up_are_grouped_with_their_split() -> None:
    module, _ = apply_rule(module_of(MLP), get_rule("merge_linears"))
    changed, fired = apply_rule(module, get_rule("group_mlp"))
    assert len(fired) == 1
    (group,) = [node for node in changed.function().nodes if node.op == "group"]
    assert ops(group.regions[0]) == ["linear", "split", "swiglu", "linear"]
    assert ops(changed.function()) == ["concat", "group"]  # joining weights stays outside
    assert_same_results(module_of(MLP).function(), changed.function())


# --- chains ------------------------------------------------------------------------------------


def test_a_chain_ends_at_other_shapes_shared_values_and_other_ops() -> None:
    lines = """
      arg %x: f32[3,4]
      arg %row: f32[4]
      %r: f32[4] = lax.exp(%row)
      %b: f32[3,4] = lax.broadcast_in_dim(%r)
        {broadcast_dimensions=(1,), shape=(3, 4), sharding=none}
      %shared: f32[3,4] = lax.neg(%x)
      %p: f32[3,4] = lax.mul(%shared, %b)
      %q: f32[3,4] = lax.sub(%p, %shared)
      %m: f32[3] = lax.reduce_max(%q) {axes=(1,), out_sharding=none}
      %n: f32[3] = lax.abs(%m)
      %o: f32[3] = lax.floor(%n)
      return %o
    """
    module = module_of(lines)
    changed, fired = apply_rule(module, get_rule("group_elementwise"))
    bodies = [ops(node.regions[0]) for node in changed.function().nodes if node.op == "group"]
    assert bodies == [["lax.mul", "lax.sub"], ["lax.abs", "lax.floor"]]
    assert len(fired) == 2
    assert_same_results(module.function(), changed.function())


def test_a_diamond_of_single_uses_is_one_chain() -> None:
    lines = """
      arg %x: f32[4]
      arg %z: f32[4]
      %a: f32[4] = lax.exp(%x)
      %b: f32[4] = lax.neg(%z)
      %c: f32[4] = lax.mul(%b, %a)
      %p: bool[4] = lax.lt(%x, %z)
      %o: f32[4] = lax.select_n(%p, %c, %x)
      return %o
    """
    changed, group = _grouped(lines, "group_elementwise")
    assert sorted(ops(group.regions[0])) == sorted(ops(function_of(lines)))
    assert ops(changed) == ["group"]


def test_a_very_long_chain_becomes_groups_of_bounded_size() -> None:
    count = 2 * MAX_CHAIN + 5
    lines = ["arg %v0: f32[2]"]
    lines += [f"%v{i + 1}: f32[2] = lax.neg(%v{i})" for i in range(count)]
    module = module_of("\n".join([*lines, f"return %v{count}"]))
    changed = rewrite(module, [get_rule("group_elementwise")]).function()
    sizes = [len(node.regions[0].nodes) for node in changed.nodes]
    assert sizes == [5, MAX_CHAIN, MAX_CHAIN]
    assert_same_results(module.function(), changed)


def test_every_elementwise_op_exists() -> None:
    from tkcc.ir.op import lookup

    assert [lookup(name).name for name in ELEMENTWISE] == list(ELEMENTWISE)


# --- cycles and repetition ---------------------------------------------------------------------


def test_nodes_with_something_between_them_are_not_grouped() -> None:
    f = function_of("""
      arg %x: f32[2]
      %a: f32[2] = lax.neg(%x)
      %b: f32[2] = softmax(%a)
      %c: f32[2] = lax.mul(%a, %b)
      return %c
    """)
    first, between, last = f.nodes
    assert form_group(Editor(f), [first, last], "elementwise") is None
    editor = Editor(f)
    editor.at(last, "test")
    replacement = form_group(editor, [last, first, between], "any")
    assert replacement is not None
    editor.replace_all(replacement)
    (group,) = editor.freeze().nodes
    assert ops(group.regions[0]) == ["lax.neg", "softmax", "lax.mul"]


def test_nodes_that_nobody_reads_are_not_grouped() -> None:
    f = function_of("arg %x: f32[2]\n%a: f32[2] = lax.neg(%x)\nreturn %x")
    assert form_group(Editor(f), f.nodes, "any") is None


CYCLES = {
    "group_mlp": """
      arg %x: f32[3,4]
      param %a: f32[4,18]
      %h: f32[3,18] = linear(%x, %a)
      %p: f32[3,6], %q: f32[3,6], %r: f32[3,6] = split(%h) {sizes=(6, 6, 6)}
      %w: f32[6,3] = transpose(%r)
      %s: f32[3,6] = swiglu(%p, %q)
      %y: f32[3,3] = linear(%s, %w)
      return %y
    """,
    "group_linear_activation": """
      arg %x: f32[3,6]
      param %a: f32[6,12]
      %h: f32[3,12] = linear(%x, %a)
      %p: f32[3,6], %q: f32[3,6] = split(%h) {sizes=(6, 6)}
      %e: f32[3,6] = lax.exp(%q)
      %i: f32[3,12] = linear(%e, %a)
      %r: f32[3,6], %t: f32[3,6] = split(%i) {sizes=(6, 6)}
      %s: f32[3,6] = swiglu(%r, %p)
      return %s, %t
    """,
}


@pytest.mark.parametrize("rule", CYCLES)
def test_a_group_that_would_read_what_it_feeds_is_refused(rule: str) -> None:
    assert find_sites(module_of(CYCLES[rule]), get_rule(rule)) == []


def test_a_unit_of_two_splits_is_grouped_in_the_order_of_its_values() -> None:
    lines = CYCLES["group_linear_activation"].replace("linear(%e, %a)", "linear(%q, %a)")
    lines = lines.replace("      %e: f32[3,6] = lax.exp(%q)\n", "")
    _, group = _grouped(lines, "group_linear_activation")
    assert ops(group.regions[0]) == ["linear", "split", "linear", "split", "swiglu"]
    assert _names(group.results) == ["t", "s"]


@pytest.mark.parametrize("rule", [*WHOLE, "group_layer"])
def test_a_group_is_formed_once(rule: str) -> None:
    lines = LOOP if rule == "group_layer" else WHOLE[rule][0]
    changed, _ = apply_rule(module_of(lines), get_rule(rule))
    assert find_sites(changed, get_rule(rule)) == []


def test_a_body_with_a_group_is_no_layer() -> None:
    loop = LOOP.replace("return %t, %s", "%u: f32[3] = softmax(%t)\n return %u, %row")
    assert find_sites(module_of(loop), get_rule("group_layer")) == ["main/0"]
    module, fired = apply_rule(module_of(loop), get_rule("group_elementwise"))
    assert fired == ["main/0.0/1"]
    assert ops(module.function().nodes[0].regions[0]) == ["group", "softmax"]
    assert find_sites(module, get_rule("group_layer")) == []


def test_a_loop_that_computes_nothing_for_its_results_is_no_layer() -> None:
    lines = LOOP.replace("return %t, %s", "return %state, %row")
    assert find_sites(module_of(lines), get_rule("group_layer")) == []


def test_a_step_becomes_one_group_with_its_state_aliased_as_before() -> None:
    before = tiny_llama()
    changed, fired = apply_rule(before, get_rule("group_step"))
    assert fired == ["*"]
    for name, function in changed.steps.items():
        old = before.function(name)
        assert ops(function) == ["group"]
        assert function.inputs == old.inputs
        assert (function.roles, function.aliases) == (old.roles, old.aliases)
        assert function.output_names == old.output_names
        (body,) = function.nodes[0].regions
        assert sorted(ops(body)) == sorted(ops(old))


@pytest.mark.parametrize("rule", [*WHOLE, "group_layer"])
def test_groups_keep_what_a_clean_pass_does(rule: str) -> None:
    lines = LOOP if rule == "group_layer" else WHOLE[rule][0]
    changed, _ = apply_rule(module_of(lines), get_rule(rule))
    assert function_hash(clean(changed.function())) == function_hash(changed.function())
