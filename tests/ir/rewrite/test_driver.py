"""The driver: sites, replay, limits, the log, fixed points, regions, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.ir.rewrite.texts import assert_same_results, module_of, ops, rule_of
from tests.ir.samples import assert_round_trips, function, small_module, value
from tkcc.frontends.lowering import lower
from tkcc.ir.errors import RuleError
from tkcc.ir.graph import Function, Module, Node, Source
from tkcc.ir.hashing import module_hash
from tkcc.ir.op import build
from tkcc.ir.rewrite.driver import Event, Log, apply_rule, find_sites, rewrite
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import EXACT, ModuleRule, PythonRule, Rule
from tkcc.ir.text import print_module

NEG_TO_ABS = rule_of("%y = lax.neg(%x)", "%y = lax.abs(%x)", name="neg_to_abs")
ABS_TO_NEG = rule_of("%y = lax.abs(%x)", "%y = lax.neg(%x)", name="abs_to_neg")
CANCEL = rule_of("%y = lax.neg(%x) %z = lax.neg(%y)", "%z = %x", name="cancel")

NESTED = """
  arg %x: f32[2]
  %a: f32[2] = lax.neg(%x)
  %b: f32[2] = scan(%a) {carry=1, length=3} {
    region 0 {
      arg %c: f32[2]
      %d: f32[2] = lax.exp(%c)
      %i: i32[] = constant() {value=i32[](1)}
      %e: f32[2] = cond(%i, %d) {
        region 0 {
          arg %f: f32[2]
          %g: f32[2] = lax.abs(%f)
          %h: f32[2] = lax.neg(%g)
          return %h
        }
        region 1 {
          arg %f: f32[2]
          %g: f32[2] = lax.neg(%f)
          return %g
        }
      }
      return %e
    }
  }
  %z: f32[2] = lax.neg(%b)
  return %z
"""
NESTED_SITES = ["main/1.0/2.0/1", "main/1.0/2.1/0", "main/0", "main/2"]

GROUPED = """
  arg %x: f32[2]
  %g: f32[2] = group(%x) {label="g"} {
    region 0 {
      arg %a: f32[2]
      %b: f32[2] = lax.neg(%a)
      return %b
    }
  }
  %z: f32[2] = lax.neg(%g)
  return %z
"""


def python_rule(
    rewriter: Callable[..., Any], *roots: str, name: str = "python", **options: Any
) -> PythonRule:
    return PythonRule(name, EXACT, "", options, "test", roots, rewriter)


def module_rule(change: Callable[..., Module | None], **options: Any) -> ModuleRule:
    return ModuleRule("whole", EXACT, "", options, "test", change)


def two_functions() -> Module:
    first = module_of("arg %x: f32[2]\n%y: f32[2] = lax.neg(%x)\nreturn %y").function()
    second = module_of(
        "arg %x: f32[2]\n%n: f32[2] = lax.exp(%x)\n%y: f32[2] = lax.neg(%n)\nreturn %y"
    ).function()
    return Module({"prefill": first, "decode": second})


# --- sites -------------------------------------------------------------------------------------


def test_sites_name_function_regions_and_node() -> None:
    assert find_sites(module_of(NESTED), NEG_TO_ABS) == NESTED_SITES
    assert find_sites(two_functions(), NEG_TO_ABS) == ["prefill/0", "decode/1"]
    assert find_sites(two_functions(), ABS_TO_NEG) == []


def test_finding_sites_changes_nothing() -> None:
    x = value("f32[2]", "x")
    first, second = build("lax.neg", x), build("lax.neg", x)
    second.result.name = "second"  # and the first has no name that could be lost
    module = Module({"main": function([x], [first, second], first.result, second.result)})
    share = rule_of("%y = lax.neg(%x) %z = lax.neg(%x)", "%z = %y")
    before, hashed = print_module(module), module_hash(module)
    assert len(find_sites(module, share)) == 1
    assert (print_module(module), module_hash(module)) == (before, hashed)


@pytest.mark.parametrize(
    "sites", [NESTED_SITES, NESTED_SITES[:1], NESTED_SITES[2:], list(reversed(NESTED_SITES)), []]
)
def test_a_rule_is_applied_at_the_chosen_sites_only(sites: list[str]) -> None:
    module = module_of(NESTED)
    changed, fired = apply_rule(module, NEG_TO_ABS, sites)
    assert sorted(fired) == sorted(sites)
    left = find_sites(changed, NEG_TO_ABS)
    assert sorted(left) == sorted(set(NESTED_SITES) - set(sites))
    assert sum(node.op == "lax.neg" for node in changed.function().walk()) == 4 - len(sites)
    assert find_sites(module, NEG_TO_ABS) == NESTED_SITES


@pytest.mark.parametrize("text", [NESTED, GROUPED])
def test_replay_at_the_recorded_sites_gives_the_same_program(text: str) -> None:
    module = module_of(text)
    changed, sites = apply_rule(module, NEG_TO_ABS)
    again, fired = apply_rule(module, NEG_TO_ABS, tuple(sites))
    assert fired == sites
    assert module_hash(again) == module_hash(changed) != module_hash(module)
    assert print_module(again) == print_module(changed)


@pytest.mark.parametrize("site", ["main/7", "main/1.0/0", "other/0", "main/2.0/0", "*", "", "main"])
def test_a_site_without_a_match_is_an_error(site: str) -> None:
    with pytest.raises(RuleError, match="neg_to_abs has no match at") as caught:
        apply_rule(module_of(NESTED), NEG_TO_ABS, ["main/0", site])
    assert repr(site) in caught.value.what
    assert "find_sites" in caught.value.remedy
    assert "main/0" in caught.value.remedy


def test_an_overlapping_match_fires_once() -> None:
    module = module_of("""
      arg %x: f32[2]
      %a: f32[2] = lax.neg(%x)
      %b: f32[2] = lax.neg(%a)
      %c: f32[2] = lax.neg(%b)
      return %c
    """)
    changed, sites = apply_rule(module, CANCEL)
    assert sites == ["main/1"]
    assert ops(changed.function()) == ["lax.neg"]
    assert_same_results(module.function(), changed.function())


def test_nodes_that_the_rule_adds_are_not_visited_again() -> None:
    grow = rule_of("%y = lax.neg(%x)", "%a = lax.neg(%x) %b = lax.neg(%a) %y = lax.neg(%b)")
    module = module_of("arg %x: f32[2]\n%y: f32[2] = lax.neg(%x)\nreturn %y")
    changed, sites = apply_rule(module, grow)
    assert sites == ["main/0"]
    assert ops(changed.function()) == ["lax.neg"] * 3


def test_dead_code_that_a_rewrite_leaves_is_removed() -> None:
    module = module_of("""
      arg %x: f32[2]
      %a: f32[2] = lax.exp(%x)
      %y: f32[2], %rows: f32[3,2] = scan(%a) {carry=1, length=3} {
        region 0 {
          arg %c: f32[2]
          %d: f32[2] = lax.neg(%c)
          return %d, %d
        }
      }
      %z: f32[3,2] = lax.abs(%rows)
      return %y, %x
    """)
    changed, _ = apply_rule(module, NEG_TO_ABS)
    assert ops(changed.function()) == ["lax.exp", "scan"]
    assert len(changed.function().nodes[1].results) == 1


# --- options -----------------------------------------------------------------------------------


def _shift(editor: Editor, node: Node, by: int) -> Any:
    new = node.operands[0]
    for _ in range(by):
        (new,) = editor.add("lax.exp", new)
    return {node.result: new}


def test_options_have_defaults_and_are_checked() -> None:
    rule = python_rule(_shift, "lax.neg", by=(1, 2))
    module = module_of("arg %x: f32[2]\n%y: f32[2] = lax.neg(%x)\nreturn %y")
    assert ops(apply_rule(module, rule)[0].function()) == ["lax.exp"]
    assert ops(apply_rule(module, rule, None, {"by": 2})[0].function()) == ["lax.exp"] * 2
    for wrong in ({"by": 3}, {"of": 1}):
        with pytest.raises(RuleError, match="option") as caught:
            apply_rule(module, rule, None, wrong)
        assert "'by': (1, 2)" in caught.value.remedy


# --- log ---------------------------------------------------------------------------------------


def test_the_log_holds_number_rule_site_path_and_new_nodes() -> None:
    x = value("f32[2]", "x")
    first = build("lax.neg", x, source=Source("layers.1.mlp", "model.py:4"))
    second = build("lax.neg", first.result)
    module = Module({"main": function([x], [first, second], second.result)})
    seen: list[Event] = []
    log = Log(on_event=seen.append)
    changed, _ = apply_rule(module, NEG_TO_ABS, log=log)
    assert [(e.number, e.rule, e.site, e.path) for e in log.events] == [
        (1, "neg_to_abs", "main/0", "layers.1.mlp"),
        (2, "neg_to_abs", "main/1", ""),
    ]
    assert seen == log.events
    assert all("lax.abs(" in event.after[0] for event in log.events)
    assert "layers.1.mlp" in str(log.events[0])
    apply_rule(changed, ABS_TO_NEG, log=log)
    assert [event.number for event in log.events] == [1, 2, 3, 4]


def test_new_nodes_remember_where_they_come_from_and_which_rewrite_made_them() -> None:
    x = value("f32[2]", "x")
    node = build("lax.neg", x, source=Source("mlp", "model.py:4", ("roll#1",)))
    module = Module({"main": function([x], [node], node.result)})
    log = Log()
    for rule in (NEG_TO_ABS, ABS_TO_NEG):
        module, _ = apply_rule(module, rule, log=log)
    (made,) = module.function().nodes
    wanted = ("roll#1", "neg_to_abs#1", "abs_to_neg#2")
    assert made.source == Source("mlp", "model.py:4", wanted)
    assert_round_trips(module)


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 9])
def test_a_limit_stops_after_that_many_rewrites(limit: int) -> None:
    module = module_of(NESTED)
    log = Log(limit=limit)
    changed, fired = apply_rule(module, NEG_TO_ABS, log=log)
    assert fired == NESTED_SITES[:limit]
    assert len(log.events) == min(limit, 4)
    assert module_hash(apply_rule(module, NEG_TO_ABS, fired)[0]) == module_hash(changed)
    log = Log(limit=limit)
    rewrite(module, [NEG_TO_ABS], log)
    assert len(log.events) == min(limit, 4)


def test_a_limit_over_several_calls_counts_all_rewrites() -> None:
    log = Log(limit=5)
    module, _ = apply_rule(module_of(NESTED), NEG_TO_ABS, log=log)
    module, fired = apply_rule(module, ABS_TO_NEG, log=log)
    assert len(fired) == 1
    assert log.full
    assert apply_rule(module, module_rule(lambda m: m), log=log) == (module, [])


def test_sites_beyond_the_limit_are_no_error() -> None:
    log = Log(limit=1)
    _, fired = apply_rule(module_of(NESTED), NEG_TO_ABS, NESTED_SITES, log=log)
    assert fired == NESTED_SITES[:1]


def test_the_module_is_shown_after_each_step_that_changed_it() -> None:
    seen: list[tuple[str, str]] = []
    log = Log(on_module=lambda name, module: seen.append((name, module_hash(module))))
    module = module_of(NESTED)
    apply_rule(module, rule_of("%y = softmax(%x)", "%y = %x"), log=log)
    assert seen == []
    changed, _ = apply_rule(module, NEG_TO_ABS, log=log)
    whole = module_rule(lambda m: module)
    apply_rule(changed, whole, log=log)
    rewrite(module, [NEG_TO_ABS], log)
    hashes = [module_hash(changed), module_hash(module), module_hash(changed)]
    assert [name for name, _ in seen] == ["neg_to_abs", "whole", "rewrite to a fixed point"]
    assert [item for _, item in seen] == hashes


# --- module rules ------------------------------------------------------------------------------


def test_a_module_rule_has_one_site() -> None:
    module, other = two_functions(), module_of(NESTED)
    rule = module_rule(lambda m: other)
    log = Log()
    assert apply_rule(module, rule, log=log) == (other, ["*"])
    assert apply_rule(module, rule, ["*"]) == (other, ["*"])
    assert apply_rule(module, rule, []) == (module, [])
    assert [(event.rule, event.site) for event in log.events] == [("whole", "*")]
    assert apply_rule(module, module_rule(lambda m: None)) == (module, [])


@pytest.mark.parametrize(
    ("result", "sites"), [(None, ["*"]), ("module", ["main/0"]), ("module", ["*", "main/0"])]
)
def test_a_module_rule_that_does_not_apply_where_it_should_is_an_error(
    result: str | None, sites: list[str]
) -> None:
    module = two_functions()
    rule = module_rule(lambda m: m if result else None)
    with pytest.raises(RuleError, match="whole has no match at"):
        apply_rule(module, rule, sites)


def test_a_module_rule_gets_its_options() -> None:
    seen: list[int] = []

    def note(module: Module, k: int) -> Module:
        seen.append(k)
        return module

    for options in (None, {"k": 5}):
        apply_rule(two_functions(), module_rule(note, k=(4, 5)), None, options)
    assert seen == [4, 5]


# --- fixed points ------------------------------------------------------------------------------


def _chain(count: int, op: str = "lax.neg") -> Module:
    x = value("f32[2]", "x")
    nodes: list[Node] = []
    for _ in range(count):
        nodes.append(build(op, nodes[-1].result if nodes else x))
    return Module({"main": function([x], nodes, nodes[-1].result)})


@pytest.mark.parametrize("count", [1, 2, 9, 10])
def test_rewriting_goes_on_until_no_rule_matches(count: int) -> None:
    log = Log()
    module = rewrite(_chain(count), [CANCEL], log)
    assert ops(module.function()) == ["lax.neg"] * (count % 2)
    assert len(log.events) == count // 2
    assert find_sites(module, CANCEL) == []


def test_what_a_rewrite_enables_without_adding_a_node_is_found() -> None:
    module = module_of("""
      arg %x: f32[2]
      %a: f32[2] = lax.exp(%x)
      %b: f32[2] = lax.neg(%a)
      %c: f32[2] = lax.floor(%a)
      %d: f32[2] = lax.max(%c, %x)
      return %b, %d
    """)
    alone = rule_of(
        "%a = lax.exp(%x) %b = lax.neg(%a)", "%b = lax.log(%x)", more="where used_once(%a)"
    )
    forget = rule_of(
        "%c = lax.floor(%a) %d = lax.max(%c, %x)", "%d = %x", given="%x: T[K], %a: T[K]"
    )
    assert find_sites(module, alone) == []  # %a is read twice
    changed = rewrite(module, [alone, forget]).function()
    assert ops(changed) == ["lax.log"]
    assert changed.outputs[1] is changed.inputs[0]


def test_several_rules_work_together_in_every_function_and_region() -> None:
    to_exp = rule_of("%y = lax.abs(%x)", "%y = lax.exp(%x)", name="to_exp")
    module = rewrite(module_of(NESTED), [NEG_TO_ABS, to_exp])
    found = {node.op for node in module.function().walk()}
    assert found == {"lax.exp", "scan", "cond", "constant"}


def test_rules_that_undo_each_other_are_stopped() -> None:
    with pytest.raises(RuleError, match="do not come to rest") as caught:
        rewrite(_chain(3), [NEG_TO_ABS, ABS_TO_NEG], max_rewrites=50)
    assert "undo each other" in caught.value.remedy


def test_a_rule_that_grows_without_end_is_stopped() -> None:
    grow = rule_of("%y = lax.neg(%x)", "%a = lax.neg(%x) %y = lax.neg(%a)")
    with pytest.raises(RuleError, match="do not come to rest"):
        rewrite(_chain(1), [grow], max_rewrites=50)


def test_a_rule_that_changes_nothing_does_not_fire() -> None:
    def nothing(editor: Editor, node: Node) -> Any:
        editor.add("lax.exp", node.operands[0])
        return {node.result: node.result}

    module = _chain(2)
    for rule in (python_rule(nothing, "lax.neg"), python_rule(lambda e, n: {}, "lax.neg")):
        changed, fired = apply_rule(module, rule)
        assert fired == []
        assert changed.function() is module.function()
        assert module_hash(rewrite(module, [rule])) == module_hash(module)


def test_functions_that_no_rule_touches_stay_the_same_objects() -> None:
    module = two_functions()
    changed, _ = apply_rule(module, NEG_TO_ABS, ["decode/1"])
    assert changed.function("prefill") is module.function("prefill")
    assert rewrite(small_module(), [NEG_TO_ABS]).functions.keys() == {"prefill", "decode"}


# --- regions and groups ------------------------------------------------------------------------


def test_results_inside_loops_and_branches_follow_the_rule() -> None:
    twice = rule_of("%y = lax.neg(%x)", "%a = lax.neg(%x) %b = lax.neg(%a) %y = lax.neg(%b)")
    module = module_of(NESTED)
    changed, sites = apply_rule(module, twice)
    assert sites == NESTED_SITES
    assert_same_results(module.function(), changed.function())
    assert_round_trips(changed)


def test_groups_are_not_entered() -> None:
    module = module_of(GROUPED)
    assert find_sites(module, NEG_TO_ABS) == ["main/1"]
    changed = rewrite(module, [NEG_TO_ABS]).function()
    assert ops(changed) == ["group", "lax.abs"]
    assert ops(changed.nodes[0].regions[0]) == ["lax.neg"]


def test_regions_of_primitives_are_not_entered() -> None:
    def f(x: Any) -> Any:
        return jax.lax.reduce(x, jnp.float32(0), lambda a, b: a - (-b), (0,))

    module = lower(f, jax.ShapeDtypeStruct((4,), jnp.float32), recognise=False)
    assert "lax.neg" in [node.op for node in module.function().walk()]
    rule = rule_of("%y = lax.neg(%x)", "%y = lax.abs(%x)", given="%x: T[*B]")
    assert find_sites(module, rule) == []


def test_roles_aliases_and_names_of_a_function_are_kept() -> None:
    module = small_module()
    rule = rule_of(
        "%y = embedding(%t, %i)",
        "%a = embedding(%t, %i) %b = lax.neg(%a) %y = lax.neg(%b)",
        given="%t: T[V, D], %i: i32[*B]",
    )
    changed, fired = apply_rule(module, rule)
    assert fired == ["prefill/0"]
    before, after = module.function("prefill"), changed.function("prefill")
    assert after.inputs == before.inputs
    assert (after.roles, after.aliases, after.output_names) == (
        before.roles,
        before.aliases,
        before.output_names,
    )
    assert changed.name == module.name


# --- refusals ----------------------------------------------------------------------------------


def _refused(module: Module, rule: Rule) -> RuleError:
    before, hashed = print_module(module), module_hash(module)
    with pytest.raises(RuleError) as caught:
        apply_rule(module, rule)
    assert (print_module(module), module_hash(module)) == (before, hashed)
    with pytest.raises(RuleError):
        rewrite(module, [rule])
    return caught.value


IN_LOOP = "main/1.0/0"
LOOP = """
  arg %x: f32[2]
  %s: f32[2] = lax.exp(%x)
  %y: f32[2] = scan(%s) {carry=1, length=2} {
    region 0 {
      arg %c: f32[2]
      %d: f32[2] = lax.neg(%c)
      return %d
    }
  }
  return %y
"""


def test_an_ill_typed_new_node_is_refused_with_its_site() -> None:
    rule = rule_of("%y = lax.neg(%x)", "%y = linear(%x, %x)", given="%x: T[K]")
    error = _refused(module_of(LOOP), rule)
    assert "built an ill-typed node: linear" in error.what
    assert f"at {IN_LOOP}" in error.where
    assert error.remedy


def test_a_replacement_of_another_type_is_refused_with_its_site() -> None:
    rule = rule_of("%y = lax.neg(%x)", "%y = cast(%x) {dtype=bf16}")
    error = _refused(module_of(LOOP), rule)
    assert "type f32[2] by one of type bf16[2]" in error.what
    assert f"at {IN_LOOP}" in error.where


def test_a_wrong_number_of_results_is_refused_with_its_site() -> None:
    rule = rule_of("%y = lax.neg(%x)", "%y = split(%x) {sizes=(1, 1)}", given="%x: T[K]")
    error = _refused(module_of(LOOP), rule)
    assert "gives 2 results, not 1" in error.what
    assert f"at {IN_LOOP}" in error.where
    assert error.remedy


def test_an_expression_that_cannot_be_computed_is_refused_with_its_site() -> None:
    rule = rule_of("%y = lax.neg(%x)", "%y = reshape(%x) {shape=(K // (K - 2),)}", given="%x: T[K]")
    error = _refused(module_of(LOOP), rule)
    assert "division by zero" in error.what
    assert f"at {IN_LOOP}" in error.where


def test_a_replacement_that_is_no_value_of_the_function_is_refused() -> None:
    rule = python_rule(lambda editor, node: {node.result: value("f32[2]")}, "lax.neg")
    error = _refused(module_of(LOOP), rule)
    assert "no value of the function" in error.what
    assert f"at {IN_LOOP}" in error.where


def test_a_cycle_that_a_python_rule_makes_is_refused_with_its_function() -> None:
    def around(editor: Editor, node: Node) -> Any:
        return {node.result: editor.add("lax.exp", node.result)[0]}

    error = _refused(module_of(LOOP), python_rule(around, "lax.neg"))
    assert "cycle" in error.what
    assert error.where == "in main/1.0"


# Rules whose replacement would read what it replaces, at matches where that makes a cycle.

JOIN = rule_of(
    "%y = lax.mul(%x, %a) %z = lax.mul(%x, %b)",
    "%ab = concat(%a, %b) {axis=0} %y, %z = split(%ab) {axis=0, sizes=(K, K)}",
    given="%x: T[K], %a: T[K], %b: T[K]",
    more="where distinct(%a, %b)",
)


@pytest.mark.parametrize(("second", "fires"), [("%b", True), ("%y", False), ("%c", False)])
def test_values_that_depend_on_each_other_are_not_joined(second: str, fires: bool) -> None:
    module = module_of(f"""
      arg %x: f32[2]
      arg %a: f32[2]
      arg %b: f32[2]
      %y: f32[2] = lax.mul(%x, %a)
      %c: f32[2] = lax.exp(%y)
      %z: f32[2] = lax.mul(%x, {second})
      %s: f32[2] = lax.add(%y, %z)
      return %s, %c
    """)
    assert find_sites(module, JOIN) == (["main/0"] if fires else [])


def test_parameters_that_depend_on_each_other_are_not_joined_either() -> None:
    module = module_of("""
      param %x: f32[2]
      param %a: f32[2]
      %y: f32[2] = lax.mul(%x, %a)
      %z: f32[2] = lax.mul(%x, %y)
      return %y, %z
    """)
    assert find_sites(module, JOIN) == []


def test_a_single_value_is_not_computed_from_what_is_computed_from_it() -> None:
    rule = rule_of(
        "%y = lax.neg(%x) %z = lax.mul(%y, %w)", "%y = lax.sub(%x, %w)", given="%x: T[K], %w: T[K]"
    )
    lines = """
      arg %x: f32[2]
      arg %v: f32[2]
      %y: f32[2] = lax.neg(%x)
      %w: f32[2] = lax.exp(OPERAND)
      %z: f32[2] = lax.mul(%y, %w)
      return %z
    """
    assert find_sites(module_of(lines.replace("OPERAND", "%v")), rule) == ["main/0"]
    assert find_sites(module_of(lines.replace("OPERAND", "%y")), rule) == []


def test_a_value_cannot_be_replaced_by_a_function_of_itself() -> None:
    rule = rule_of("%y = lax.neg(%x)", "%z = lax.exp(%y) %y = lax.abs(%z)")
    assert find_sites(_chain(2), rule) == []


def test_a_function_of_one_node_may_have_no_match_left() -> None:
    f = Function((x := value("f32[2]"),), (), (x,))
    assert find_sites(Module({"main": f}), NEG_TO_ABS) == []
