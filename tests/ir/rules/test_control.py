"""Rules over loops and branches."""

from __future__ import annotations

import pytest

from tests.ir.rewrite.texts import assert_same_results, function_of, module_of, ops
from tests.ir.rules.functions import BRANCHES, LOOP
from tests.ir.samples import assert_round_trips, function, value
from tkcc.ir.graph import Function, Module, Node
from tkcc.ir.hashing import function_hash
from tkcc.ir.op import build
from tkcc.ir.rewrite.driver import apply_rule, find_sites, rewrite
from tkcc.ir.rewrite.rule import get_rule

SHARE, UNROLL, LAYERS = map(get_rule, ("share_across_branches", "unroll_scan", "unroll_layers"))


def _shared(module: Module) -> tuple[Function, Node]:
    """The function after sharing, checked, and its cond."""
    changed, fired = apply_rule(module, SHARE)
    assert fired
    assert_round_trips(changed)
    for seed in range(3):  # the index decides which branch is taken
        assert_same_results(module.function(), changed.function(), seed=seed)
    (cond,) = [node for node in changed.function().nodes if node.op == "cond"]
    return changed.function(), cond


def _branches(*bodies: str) -> str:
    regions = "\n".join(
        f"    region {i} {{\n      arg %a: f32[2,4]\n      arg %b: f32[4]\n{body}\n    }}"
        for i, body in enumerate(bodies)
    )
    return f"""
  arg %i: i32[]
  arg %x: f32[2,4]
  arg %w: f32[4]
  %y: f32[2,4] = cond(%i, %x, %w) {{
{regions}
  }}
  return %y
"""


def test_what_all_branches_compute_alike_moves_before_them() -> None:
    changed, cond = _shared(module_of(BRANCHES))
    assert ops(changed) == ["rms_norm", "lax.exp", "cond"]
    assert [ops(region) for region in cond.regions] == [["lax.neg"], ["lax.abs", "lax.add"]]


def test_a_branch_that_only_returns_what_is_shared_becomes_empty() -> None:
    same = "      %n: f32[2,4] = lax.exp(%a)\n      return %n"
    other = "      %m: f32[2,4] = lax.exp(%a)\n      %o: f32[2,4] = lax.neg(%m)\n      return %o"
    changed, cond = _shared(module_of(_branches(same, other, same)))
    assert ops(changed) == ["lax.exp", "cond"]
    assert [ops(region) for region in cond.regions] == [[], ["lax.neg"], []]
    assert find_sites(Module({"main": changed}), SHARE) == []


def test_optional_operands_and_several_results_move_too() -> None:
    body = """
      %p: f32[2,2], %q: f32[2,2] = split(%a) {sizes=(2, 2)}
      %l: f32[2,4] = layer_norm(%a, %b, bias=%b) {eps=1e-3}
      %c: f32[2,4] = concat(%q, %p)
      %s: f32[2,4] = lax.OP(%l, %c)
      return %s"""
    text = _branches(body.replace("OP", "sub"), body.replace("OP", "mul"))
    changed, cond = _shared(module_of(text))
    assert sorted(ops(changed)) == ["concat", "cond", "layer_norm", "split"]
    assert [ops(region) for region in cond.regions] == [["lax.sub"], ["lax.mul"]]


def test_a_branch_that_is_one_object_with_another_is_shared_right() -> None:
    a = value("f32[2,4]", "a")
    inner = build("lax.exp", a)
    branch = function([a], [inner], inner.result)
    i, x = value("i32[]", "i"), value("f32[2,4]", "x")
    cond = build("cond", i, x, regions=[branch, branch])
    changed, node = _shared(Module({"main": function([i, x], [cond], cond.result)}))
    assert ops(changed) == ["lax.exp", "cond"]
    assert [ops(region) for region in node.regions] == [[], []]


def test_what_a_branch_computes_twice_is_shared_once() -> None:
    twice = """
      %m: f32[2,4] = lax.exp(%a)
      %n: f32[2,4] = lax.exp(%a)
      %o: f32[2,4] = lax.add(%m, %n)
      return %o"""
    once = "      %m: f32[2,4] = lax.exp(%a)\n      return %m"
    changed, cond = _shared(module_of(_branches(twice, once)))
    assert ops(changed) == ["lax.exp", "cond"]
    assert [ops(region) for region in cond.regions] == [["lax.exp", "lax.add"], []]


def test_loops_inside_branches_are_shared_if_their_bodies_are_alike() -> None:
    body = """
      %n: f32[2,4] = scan(%a) {carry=1, length=2} {
        region 0 {
          arg %c: f32[2,4]
          %d: f32[2,4] = lax.OP(%c)
          return %d
        }
      }
      return %n"""
    same = _branches(body.replace("OP", "neg"), body.replace("OP", "neg"))
    assert ops(_shared(module_of(same))[0]) == ["scan", "cond"]
    other = _branches(body.replace("OP", "neg"), body.replace("OP", "abs"))
    assert find_sites(module_of(other), SHARE) == []


def test_constants_and_a_single_branch_are_left_alone() -> None:
    constant = "      %k: f32[] = constant() {value=f32[](1.0)}\n      return %a"
    assert find_sites(module_of(_branches(constant, constant)), SHARE) == []
    single = "      %e: f32[2,4] = lax.exp(%a)\n      return %e"
    assert find_sites(module_of(_branches(single)), SHARE) == []


def test_sharing_comes_to_rest() -> None:
    module = rewrite(module_of(BRANCHES), [SHARE])
    assert find_sites(module, SHARE) == []


# --- loops -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "factors"), [(6, [2, 3]), (12, [2, 3, 4, 6]), (7, []), (1, []), (20, [2, 4, 5, 10])]
)
def test_a_loop_is_unrolled_by_what_divides_its_length(length: int, factors: list[int]) -> None:
    module = module_of(LOOP.replace("6", str(length)))
    fits = [k for k in UNROLL.options["k"] if find_sites(module, UNROLL, {"k": k})]
    assert fits == factors


@pytest.mark.parametrize("reverse", ["false", "true"])
def test_unrolling_keeps_results_and_body(reverse: str) -> None:
    module = module_of(LOOP.replace("length=6", f"length=6, reverse={reverse}"))
    changed, _ = apply_rule(module, UNROLL, None, {"k": 3})
    assert_same_results(module.function(), changed.function())
    (loop,) = changed.function().nodes
    assert loop.attribute("unroll") == 3
    (before,) = module.function().nodes
    assert function_hash(loop.regions[0]) == function_hash(before.regions[0])


def test_layers_read_parameters_that_are_prepared_and_other_rows_as_they_are() -> None:
    text = LOOP.replace("param %w", "param %w0: f32[6,3]\n  arg %w")
    plain = apply_rule(module_of(text), LAYERS)[0].function()
    assert ops(plain).count("prepared") == 0
    assert ops(plain).count("take_row") == 6
    own = apply_rule(module_of(LOOP), LAYERS)[0].function()
    assert ops(own).count("prepared") == 6
    assert_same_results(module_of(text).function(), plain)


def test_a_loop_of_many_nodes_is_not_laid_out() -> None:
    text = LOOP.replace("length=6", "length=10001").replace("[6,3]", "[10001,3]")
    assert find_sites(module_of(text), LAYERS) == []


def test_a_loop_without_stacked_results_is_laid_out() -> None:
    text = """
      arg %x: f32[3]
      %y: f32[3] = scan(%x) {carry=1, length=3} {
        region 0 {
          arg %c: f32[3]
          %d: f32[3] = lax.neg(%c)
          return %d
        }
      }
      return %y
    """
    changed, _ = apply_rule(module_of(text), LAYERS)
    assert ops(changed.function()) == ["lax.neg"] * 3
    assert_same_results(function_of(text), changed.function())
