"""Matching: what binds, what does not, and how many steps it takes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ir.rewrite.texts import function_of, matches, module_of, node, rule_of
from tests.ir.samples import function, value
from tkcc.ir.attributes import DType
from tkcc.ir.errors import RuleError
from tkcc.ir.graph import Function, Module
from tkcc.ir.op import build
from tkcc.ir.rewrite.driver import find_sites
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.match import MAX_STEPS, _Search
from tkcc.ir.rewrite.rule import PatternRule


def _count(rule: PatternRule, lines: str, **options: Any) -> int:
    return len(matches(rule, function_of(lines), **options))


def _bound(rule: PatternRule, lines: str, **options: Any) -> dict[str, Any]:
    """The bindings of the only match."""
    (match,) = matches(rule, function_of(lines), **options)
    return match.bindings


# --- operands and results ----------------------------------------------------------------------

SCALED = "%n = lax.neg(%x) %y = lax.{op}(%n, %w)"
TWO = "%x: T[*B], %w: T[*B]"


@pytest.mark.parametrize(
    ("op", "operands", "found"),
    [
        ("add", "%n, %w", 1),
        ("add", "%w, %n", 1),
        ("mul", "%w, %n", 1),
        ("max", "%w, %n", 1),
        ("sub", "%n, %w", 1),
        ("sub", "%w, %n", 0),
        ("div", "%w, %n", 0),
    ],
)
def test_operands_of_commutative_ops_match_in_both_orders(
    op: str, operands: str, found: int
) -> None:
    rule = rule_of(SCALED.format(op=op), "%y = lax.exp(%x)", given=TWO)
    f = f"""
      arg %x: f32[2]
      arg %w: f32[2]
      %n: f32[2] = lax.neg(%x)
      %y: f32[2] = lax.{op}({operands})
      return %y
    """
    assert _count(rule, f) == found


def test_a_name_that_stands_twice_is_one_value() -> None:
    rule = rule_of("%y = lax.mul(%x, %x)", "%y = lax.exp(%x)")
    assert _count(rule, "arg %a: f32[2]\n%y: f32[2] = lax.mul(%a, %a)\nreturn %y") > 0
    assert (
        _count(rule, "arg %a: f32[2]\narg %b: f32[2]\n%y: f32[2] = lax.mul(%a, %b)\nreturn %y") == 0
    )


def test_two_names_may_be_one_value_unless_they_are_said_to_be_distinct() -> None:
    lines = "arg %a: f32[2]\n%y: f32[2] = lax.sub(%a, %a)\nreturn %y"
    match, replace = "%y = lax.sub(%x, %w)", "%y = lax.exp(%x)"
    assert _count(rule_of(match, replace, given=TWO), lines) == 1
    apart = rule_of(match, replace, given=TWO, more="where distinct(%x, %w)")
    assert _count(apart, lines) == 0


def test_lines_of_a_pattern_are_different_nodes() -> None:
    rule = rule_of("%y = lax.neg(%x) %z = lax.neg(%x)", "%y = lax.exp(%x) %z = lax.exp(%x)")
    one = "arg %a: f32[2]\n%y: f32[2] = lax.neg(%a)\nreturn %y"
    two = "arg %a: f32[2]\n%y: f32[2] = lax.neg(%a)\n%z: f32[2] = lax.neg(%a)\nreturn %y, %z"
    assert _count(rule, one) == 0
    assert _count(rule, two) == 2  # either may be %y


def test_every_result_of_a_node_is_bound() -> None:
    rule = rule_of(
        "%p, %q = split(%x) {axis=-1, sizes=(N, M)} %s = lax.add(%q, %p)",
        "%s = lax.exp(%q)",
        given="%x: T[*B, K]",
    )
    lines = """
      arg %x: f32[3,4]
      %a: f32[3,2], %b: f32[3,2] = split(%x) {axis=-1, sizes=(2, 2)}
      %s: f32[3,2] = lax.SUM
      return %s
    """
    (match,) = matches(rule, function_of(lines.replace("SUM", "add(%b, %a)")))
    assert {name: v.name for name, v in match.values.items()} == {
        "x": "x",
        "p": "a",
        "q": "b",
        "s": "s",
    }
    assert (match.bindings["N"], match.bindings["M"], match.bindings["B"]) == (2, 2, (3,))
    assert _count(rule, lines.replace("SUM", "add(%b, %b)")) == 0


def test_a_node_with_another_number_of_results_or_operands_does_not_match() -> None:
    halves = rule_of(
        "%p, %q = split(%x) {sizes=$s, ...} %y = lax.neg(%p)", "%y = lax.exp(%p)", given="%x: T[K]"
    )
    thirds = """
      arg %x: f32[6]
      %a: f32[2], %b: f32[2], %c: f32[2] = split(%x) {axis=-1, sizes=(2, 2, 2)}
      %y: f32[2] = lax.neg(%a)
      return %y
    """
    assert _count(halves, thirds) == 0
    pair = rule_of("%y = concat(%a, %b) {...}", "%y = concat(%b, %a)", given="%a: T[K], %b: T[N]")
    three = "arg %x: f32[2]\n%y: f32[6] = concat(%x, %x, %x) {axis=0}\nreturn %y"
    assert _count(pair, three) == 0


OPTIONAL = """
  arg %x: f32[3,4]
  param %w: f32[4,5]
  param %v: f32[5]
  %y: f32[3,5] = linear(%x, %w)
  %z: f32[3,5] = linear(%x, %w, bias=%v)
  return %y, %z
"""


def test_optional_operands_must_be_exactly_those_of_the_pattern() -> None:
    plain = rule_of("%y = linear(%x, %w)", "%y = linear(%x, %w)", given="%x: T[*B, K], %w: T[K, N]")
    biased = rule_of(
        "%y = linear(%x, %w, bias=%b)",
        "%y = linear(%x, %w, bias=%b)",
        given="%x: T[*B, K], %w: T[K, N], %b: T[N]",
    )
    f = function_of(OPTIONAL)
    assert [m.values["y"].name for m in matches(plain, f)] == ["y"]
    (match,) = matches(biased, f)
    assert (match.values["y"].name, match.values["b"].name) == ("z", "v")


# --- attributes --------------------------------------------------------------------------------

NORM = """
  arg %x: f32[3,4]
  arg %w: f32[4]
  %y: f32[3,4] = rms_norm(%x, %w) {ATTRIBUTES}
  return %y
"""


def _norm(pattern: str, attributes: str) -> list[dict[str, Any]]:
    rule = rule_of(
        f"%y = rms_norm(%x, %w) {pattern}", "%y = lax.exp(%x)", given="%x: T[*B, K], %w: T[K]"
    )
    found = matches(rule, function_of(NORM.replace("ATTRIBUTES", attributes)))
    return [match.bindings for match in found]


def test_attributes_that_are_not_mentioned_have_their_defaults() -> None:
    assert len(_norm("", "eps=1e-06")) == 1
    assert _norm("", "eps=1e-05") == []
    assert _norm("{eps=1e-5}", "eps=1e-05, plus_one=true") == []


def test_dots_allow_any_other_attributes() -> None:
    assert len(_norm("{...}", "eps=1e-05, plus_one=true")) == 1
    assert len(_norm("{eps=1e-5, ...}", "eps=1e-05, plus_one=true")) == 1
    assert _norm("{eps=1e-6, ...}", "eps=1e-05") == []


def test_variables_bind_attributes() -> None:
    (bindings,) = _norm("{eps=$e, plus_one=$one}", "eps=1e-05, plus_one=true")
    assert (bindings["$e"], bindings["$one"]) == (1e-5, True)


def test_true_is_not_one_and_one_is_not_a_float() -> None:
    assert _norm("{plus_one=1, ...}", "plus_one=true") == []
    assert _norm("{eps=1, ...}", "eps=1.0") == []
    assert len(_norm("{eps=1.0, ...}", "eps=1.0")) == 1


def test_a_variable_that_stands_twice_has_one_value() -> None:
    rule = rule_of(
        "%y = rms_norm(%x, %w) {eps=$e} %z = rms_norm(%y, %w) {eps=$e}",
        "%z = lax.exp(%x)",
        given="%x: T[*B, K], %w: T[K]",
    )
    lines = NORM.replace("return %y", "%z: f32[3,4] = rms_norm(%y, %w) {eps=1e-05}\nreturn %z")
    assert _count(rule, lines.replace("ATTRIBUTES", "eps=1e-05")) == 1
    assert _count(rule, lines.replace("ATTRIBUTES", "eps=1e-06")) == 0


def test_an_attribute_may_be_computed_from_what_is_bound_before_or_later() -> None:
    rule = rule_of(
        "%y = reshape(%x) {keep=$k, shape=(N * M,)} %z = reshape(%y) {keep=$k, shape=(N, M)}",
        "%z = reshape(%x) {keep=$k, shape=(N, M)}",
        given="%x: T[*B]",
    )
    lines = """
      arg %x: f32[2,3,4]
      %y: f32[2,FLAT] = reshape(%x) {keep=1, shape=(FLAT,)}
      %z: f32[2,6,2] = reshape(%y) {keep=1, shape=(6, 2)}
      return %z
    """
    assert _bound(rule, lines.replace("FLAT", "12"))["N"] == 6
    other = rule_of(
        "%y = reshape(%x) {keep=$k, shape=(N * M + 1,)} %z = reshape(%y) {keep=$k, shape=(N, M)}",
        "%z = reshape(%x) {keep=$k, shape=(N, M)}",
        given="%x: T[*B]",
    )
    assert _count(other, lines.replace("FLAT", "12")) == 0


def test_an_attribute_that_cannot_be_computed_does_not_match() -> None:
    rule = rule_of(
        "%y = reshape(%x) {keep=$k, shape=(K // $k,)}", "%y = lax.neg(%x)", given="%x: T[K]"
    )
    assert (
        _count(rule, "arg %x: f32[4]\n%y: f32[4] = reshape(%x) {keep=0, shape=(4,)}\nreturn %y")
        == 0
    )


def test_options_are_bound_before_matching() -> None:
    rule = rule_of(
        "%y = reshape(%x) {keep=$k, shape=$s}",
        "%y = lax.neg(%x)",
        given="%x: T[*B]",
        more="choose $k in (0, 1)",
    )
    lines = "arg %x: f32[2,3]\n%y: f32[2,3] = reshape(%x) {keep=1, shape=(3,)}\nreturn %y"
    assert _count(rule, lines, k=1) == 1
    assert _count(rule, lines, k=0) == 0


# --- types -------------------------------------------------------------------------------------

UNARY = "arg %x: TYPE\n%y: TYPE = lax.neg(%x)\nreturn %y"


@pytest.mark.parametrize(
    ("given", "type_", "bound"),
    [
        ("T[K]", "f32[4]", {"T": DType("f32"), "K": 4}),
        ("T[K]", "f32[]", None),
        ("T[K]", "f32[4,4]", None),
        ("bf16[K]", "bf16[4]", {"K": 4}),
        ("bf16[K]", "f32[4]", None),
        ("T[4, K]", "f32[4,5]", {"K": 5}),
        ("T[4, K]", "f32[3,5]", None),
        ("T[K, K]", "f32[3,3]", {"K": 3}),
        ("T[K, K]", "f32[3,4]", None),
        ("T[*B]", "f32[]", {"B": ()}),
        ("T[*B]", "f32[2,3]", {"B": (2, 3)}),
        ("T[*B, K]", "f32[5]", {"B": (), "K": 5}),
        ("T[*B, K]", "f32[2,3,5]", {"B": (2, 3), "K": 5}),
        ("T[*B, K]", "f32[]", None),
        ("T[*B, 8]", "f32[2,4]", None),
        ("T[]", "i32[]", {"T": DType("i32")}),
        ("T[0]", "f32[0]", {}),
    ],
)
def test_given_types_bind_symbols_or_refuse(
    given: str, type_: str, bound: dict[str, Any] | None
) -> None:
    rule = rule_of("%y = lax.neg(%x)", "%y = lax.abs(%x)", given=f"%x: {given}")
    found = matches(rule, function_of(UNARY.replace("TYPE", type_)))
    if bound is None:
        assert found == []
    else:
        assert {k: found[0].bindings[k] for k in bound} == bound


def test_a_symbol_is_one_size_in_all_values_and_leading_sizes_are_alike() -> None:
    rule = rule_of(
        "%y = linear(%x, %w) %z = lax.add(%y, %r)",
        "%z = lax.add(%r, %r)",
        given="%x: T[*B, K], %w: U[K, N], %r: T[*B, N]",
    )
    lines = """
      arg %x: f32[XB,4]
      arg %w: bf16[4,5]
      arg %r: f32[RB,5]
      %y: f32[XB,5] = linear(%x, %w)
      %z: f32[XB,5] = lax.add(%y, %r)
      return %z
    """
    bound = _bound(rule, lines.replace("XB", "3").replace("RB", "3"))
    assert (bound["B"], bound["K"], bound["N"]) == ((3,), 4, 5)
    assert (bound["T"], bound["U"]) == (DType("f32"), DType("bf16"))


def test_a_dtype_symbol_is_one_dtype() -> None:
    rule = rule_of("%y = linear(%x, %w)", "%y = lax.exp(%x)", given="%x: T[*B, K], %w: T[K, N]")
    lines = "arg %x: f32[3,4]\narg %w: DTYPE[4,4]\n%y: f32[3,4] = linear(%x, %w)\nreturn %y"
    assert _count(rule, lines.replace("DTYPE", "f32")) == 1
    assert _count(rule, lines.replace("DTYPE", "bf16")) == 0


# --- let ---------------------------------------------------------------------------------------


def _let(let: str, sizes: str = "(N, M)", given: str = "%x: T[K]") -> PatternRule:
    match = f"%p, %q = split(%x) {{axis=-1, sizes={sizes}}} %y = lax.neg(%p)"
    return rule_of(match, "%y = lax.abs(%p)", given=given, more=f"let {let}")


PIECES = """
  arg %x: f32[12]
  %p: f32[8], %q: f32[4] = split(%x) {axis=-1, sizes=(8, 4)}
  %y: f32[8] = lax.neg(%p)
  return %y
"""


def test_let_is_a_condition_on_bound_sizes() -> None:
    assert _count(_let("N = 2 * M"), PIECES) == 1
    assert _count(_let("K = N + M, N = M * 2"), PIECES) == 1
    assert _count(_let("N = 3 * M"), PIECES) == 0
    assert _count(_let("K = N + M, N = 3 * M"), PIECES) == 0


def test_let_binds_a_new_size() -> None:
    assert _bound(_let("J = N * M - 1"), PIECES)["J"] == 31


def test_let_is_solved_for_one_free_factor() -> None:
    assert _bound(_let("N = M * J"), PIECES)["J"] == 2
    assert _bound(_let("K = M * J, N = 4 * I, I = 2"), PIECES)["J"] == 3
    assert _count(_let("N = 3 * J"), PIECES) == 0  # 8 is no multiple of 3
    assert _count(_let("N = (M - 4) * J"), PIECES) == 0  # nor of 0


def test_a_let_that_cannot_be_computed_does_not_match() -> None:
    assert _count(_let("J = N // (M - 4)"), PIECES) == 0


# --- conditions --------------------------------------------------------------------------------

CONDITIONS = """
  arg %x: f32[2,6]
  param %w: f32[6,6]
  %h: f32[2,6] = lax.neg(%x)
  %y: f32[2,6] = linear(%h, %w)
  return %y, %x
"""


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("parameter(%w)", True),
        ("parameter(%x)", False),
        ("not_parameter(%x)", True),
        ("not_parameter(%w)", False),
        ("used_once(%h)", True),
        ("used_once(%x)", False),  # it is an output too
        ("used_once(%y)", True),
        ("constant(%x)", False),
        ("is_float(%x)", True),
        ("same_type(%x, %h)", True),
        ("same_type(%x, %w)", False),
        ("distinct(%x, %h)", True),
        ("dtype_in(%x, bf16, f32)", True),
        ("dtype_in(%x, bf16)", False),
        ("rank(%x, 2)", True),
        ("rank(%x, 1 + 2)", False),
        ("equal(K, dim(%w, 1))", True),
        ("differ(K, dim(%w, 1))", False),
        ("less(rank(%x), K)", True),
        ("less(K, 6)", False),
        ("less(none, 6)", False),
        ('less("a", 6)', False),
        ("less(false, 6)", False),
        ("divides(3, K)", True),
        ("divides(4, K)", False),
        ("divides(0, K)", False),
        ('divides("a", K)', False),
        ("divides(2, none)", False),
        ("parameter(%w), less(1, K), used_once(%h)", True),
        ("parameter(%w), less(K, 1), used_once(%h)", False),
    ],
)
def test_conditions(condition: str, holds: bool) -> None:
    rule = rule_of(
        "%h = lax.neg(%x) %y = linear(%h, %w)",
        "%y = lax.exp(%x)",
        given="%x: T[*B, K], %w: T[K, K]",
        more=f"where {condition}",
    )
    assert _count(rule, CONDITIONS) == holds


def test_a_constant_is_known_as_one() -> None:
    rule = rule_of(
        "%y = lax.mul(%x, %k)",
        "%y = lax.neg(%x)",
        given="%x: T[], %k: T[]",
        more="where constant(%k)",
    )
    lines = """
      arg %x: f32[]
      %k: f32[] = constant() {value=f32[](2.0)}
      %y: f32[] = lax.mul(%k, %x)
      return %y
    """
    assert _count(rule, lines) == 1


def test_a_condition_that_cannot_be_computed_is_an_error_at_its_site() -> None:
    rule = rule_of("%y = lax.neg(%x)", "%y = lax.abs(%x)", more="where less(dim(%x, 3), 2)")
    with pytest.raises(RuleError, match="out of range") as caught:
        find_sites(module_of(UNARY.replace("TYPE", "f32[4]")), rule)
    assert "main/0" in caught.value.where


LOOP = """
  arg %c: f32[4]
  arg %x: f32[4]
  param %w: f32[4,4]
  param %stack: f32[3,4,4]
  %out: f32[4] = scan(%w, %c, %stack) {carry=1, consts=1, length=3} {
    region 0 {
      arg %const: f32[4,4]
      arg %carry: f32[4]
      arg %slice: f32[4,4]
      %t: f32[4,4] = transpose(%slice)
      %a: f32[4] = linear(%carry, OPERAND)
      return %a
    }
  }
  return %out
"""


@pytest.mark.parametrize(
    ("operand", "sites"),
    [("%const", ["main/0.0/1"]), ("%slice", ["main/0.0/1"]), ("%t", ["main/0.0/1"])],
)
def test_constants_and_slices_of_a_scan_over_parameters_are_parameters(
    operand: str, sites: list[str]
) -> None:
    rule = rule_of(
        "%y = linear(%x, %w)",
        "%t = transpose(%w) %y = linear(%x, %t) {transposed=true}",
        given="%x: T[K], %w: T[K, N]",
        more="where parameter(%w), not_parameter(%x)",
    )
    assert find_sites(module_of(LOOP.replace("OPERAND", operand)), rule) == sites


def test_a_carry_is_no_parameter_even_if_it_starts_as_one() -> None:
    rule = rule_of("%y = lax.neg(%x)", "%y = lax.abs(%x)", more="where parameter(%x)")
    lines = """
      param %w: f32[4]
      %out: f32[4] = scan(%w, %w) {carry=1, consts=1, length=2} {
        region 0 {
          arg %const: f32[4]
          arg %carry: f32[4]
          %a: f32[4] = lax.neg(%carry)
          %b: f32[4] = lax.neg(%const)
          %c: f32[4] = lax.add(%a, %b)
          return %c
        }
      }
      return %out
    """
    assert find_sites(module_of(lines), rule) == ["main/0.0/1"]


def test_branches_and_loops_pass_parameters_on() -> None:
    rule = rule_of("%y = lax.neg(%x)", "%y = lax.abs(%x)", more="where parameter(%x)")
    lines = """
      arg %i: i32[]
      arg %x: f32[4]
      param %w: f32[4]
      %one: f32[4] = cond(%i, %w, %x) {
        region 0 {
          arg %a: f32[4]
          arg %b: f32[4]
          %y: f32[4] = lax.neg(%a)
          return %y
        }
        region 1 {
          arg %a: f32[4]
          arg %b: f32[4]
          %y: f32[4] = lax.neg(%b)
          return %y
        }
      }
      %two: f32[4] = while(%w, %w, %w) {body_consts=1, condition_consts=1} {
        region 0 {
          arg %u: f32[4]
          arg %c: f32[4]
          %y: f32[4] = lax.neg(%u)
          %z: f32[4] = lax.neg(%c)
          %s: f32[4] = lax.add(%y, %z)
          %r: f32[] = lax.reduce_sum(%s) {axes=(0,), out_sharding=none}
          %k: f32[] = constant() {value=f32[](0.0)}
          %p: bool[] = lax.lt(%r, %k)
          return %p
        }
        region 1 {
          arg %u: f32[4]
          arg %c: f32[4]
          %y: f32[4] = lax.neg(%u)
          %z: f32[4] = lax.neg(%c)
          %s: f32[4] = lax.add(%y, %z)
          return %s
        }
      }
      return %one, %two
    """
    assert find_sites(module_of(lines), rule) == ["main/0.0/0", "main/1.0/0", "main/1.1/0"]


# --- steps -------------------------------------------------------------------------------------


def _readers(count: int, op: str = "lax.neg") -> Function:
    """One value with many readers."""
    x = value("f32[2]", "x")
    nodes = [build(op, x) for _ in range(count)]
    return function([x], nodes, *(n.result for n in nodes))


HOSTILE = "%a = lax.neg(%x) %b = lax.neg(%x) %c = lax.neg(%x) %d = lax.mul(%c, %q)"


def test_a_pattern_that_tries_all_readers_of_a_widely_read_value_is_refused() -> None:
    rule = rule_of(HOSTILE, "%a = lax.abs(%x)", given="%x: T[*B], %q: T[*B]")
    with pytest.raises(RuleError, match=f"more than {MAX_STEPS} steps") as caught:
        matches(rule, _readers(10_000))
    assert "few nodes read" in caught.value.remedy


def test_the_refusal_of_a_dear_pattern_names_the_site() -> None:
    rule = rule_of(HOSTILE, "%a = lax.abs(%x)", given="%x: T[*B], %q: T[*B]")
    with pytest.raises(RuleError, match="steps") as caught:
        find_sites(Module({"main": _readers(200)}), rule)
    assert caught.value.where == "at main/0"


def _steps(rule: PatternRule, f: Function, anchor: int = 0) -> int:
    assert rule.pattern is not None
    search = _Search(rule.pattern, Editor(f), {})
    list(search.run(node(f, rule.roots[0], anchor)))
    return search.steps


def test_readers_with_another_op_cost_no_steps() -> None:
    rule = rule_of("%y = lax.neg(%x) %z = lax.exp(%x)", "%y = lax.abs(%x)")
    few, many = _readers(1), _readers(10_000)
    assert _steps(rule, few) == _steps(rule, many) == 1


def test_the_value_with_the_fewest_readers_leads_to_the_next_node() -> None:
    rule = rule_of("%y = lax.exp(%x) %z = lax.neg(%y) %u = lax.mul(%x, %z)", "%y = lax.abs(%x)")
    x = value("f32[2]", "x")
    first = build("lax.exp", x)
    second = build("lax.neg", first.result)
    third = build("lax.mul", x, second.result)
    many = [build("lax.mul", x, x) for _ in range(MAX_STEPS)]
    f = function([x], [*many, first, second, third], third.result, *(n.result for n in many))
    assert _steps(rule, f) < 10
    assert len(matches(rule, f)) == 1


CHAIN = rule_of(
    "%h = rms_norm(%x, %w) %y = linear(%h, %m) %z = linear(%h, %n) %u = lax.mul(%y, %z)",
    "%u = linear(%h, %m)",
    given="%x: T[*B, K], %w: T[K], %m: T[K, K], %n: T[K, K]",
)


def _layers(count: int) -> Function:
    x, w, m, n = value("f32[2,4]"), value("f32[4]"), value("f32[4,4]"), value("f32[4,4]")
    inputs, nodes = [x, w, m, n], []
    for _ in range(count):
        norm = build("rms_norm", x, w)
        left, right = build("linear", norm.result, m), build("linear", norm.result, n)
        product = build("lax.mul", left.result, right.result)
        nodes += [norm, left, right, product]
        x = product.result
    return function(inputs, nodes, x)


@pytest.mark.parametrize("place", ["first", "last"])
def test_the_steps_of_a_match_do_not_grow_with_the_graph(place: str) -> None:
    counts = []
    for layers in (1, 10, 500):
        f = _layers(layers)
        counts.append(_steps(CHAIN, f, 0 if place == "first" else layers - 1))
    assert counts[0] == counts[1] == counts[2] < 20
    assert len(matches(CHAIN, _layers(10))) == 2 * 10  # %y and %z may be either linear
