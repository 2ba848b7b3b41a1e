"""Rule text: what is parsed, what is refused and how the error helps, hostile and mutated text."""

from __future__ import annotations

import dataclasses
import importlib.resources
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.ir.rewrite.texts import pattern_of, rule_text
from tkcc.ir.errors import ParseError, TkccError
from tkcc.ir.rewrite import pattern as patterns
from tkcc.ir.rewrite.expression import MAX_EXPRESSION_DEPTH, Expression, evaluate_expression
from tkcc.ir.rewrite.records import Pattern
from tkcc.ir.rewrite.validate import MAX_OPTIONS
from tkcc.ir.types import TensorType

EVERYTHING = """# Rules may have comments.
rule everything {
  class approximate
  about "All that can be said, in one \\"rule\\"."
  error 0.25
  given %x: T[*B, K], %a: bf16[K, 4], %b: f32[4], %c: T[*B, 4]
  match {
    %y = linear(%x, %a, bias=%b) {transposed=$t}
    %z = lax.add(%c, %y) {...}
    %one, %two = split(%z) {axis=-1, sizes=(N, M)}
  }
  let P = K // 2 * (1 + 1), N = M * L
  where parameter(%a), dtype_in(%x, f32, bf16)
  where less(rank(%x) + 1, 4), divides($n, dim(%x, -1)), differ($t, none)
  choose $n in (2, 4)
  sample $t in (true, false)
  replace {
    %w = cast(%a) {dtype=T}
    %fresh = linear(%x, %w, bias=%b) {transposed=$t}
    %one, %rest = split(%fresh) {axis=-1, sizes=(N, M)}
    %two = %rest
  }
}
"""


def test_every_part_of_a_rule_is_parsed(golden: Callable[[str, str], None]) -> None:
    golden(_dump(pattern_of(EVERYTHING)), "everything.txt")


def _dump(pattern: Pattern) -> str:
    lines = []
    for field in dataclasses.fields(pattern):
        value = getattr(pattern, field.name)
        if field.name == "text":
            continue
        if isinstance(value, tuple):
            lines += [f"{field.name}:", *(f"  {_shown(item)}" for item in value)]
        else:
            lines.append(f"{field.name}: {value!r}")
    derived = ("outputs", "anchor", "suspects")
    lines += [f"{name}: {getattr(pattern, name)!r}" for name in derived]
    return "\n".join(lines) + "\n"


def _shown(item: Any) -> str:
    return re.sub(r", at=\d+", "", repr(item))


def test_several_rules_stand_in_one_text_and_each_keeps_its_own() -> None:
    first = rule_text("%y = lax.neg(%x)", "%y = lax.abs(%x)", name="first")
    second = rule_text("%y = lax.abs(%x)", "%y = lax.neg(%x)", name='"second rule"')
    parsed = patterns.parse_rules(f"# two\n{first}\n# more\n{second}")
    assert [item.name for item in parsed] == ["first", "second rule"]
    assert [item.text for item in parsed] == [first.strip(), second.strip()]
    assert [dataclasses.replace(pattern_of(item.text)) for item in parsed] == parsed


def test_every_built_in_rule_parses_to_itself() -> None:
    folder = importlib.resources.files("tkcc.ir.rules")
    for file in folder.iterdir():
        if file.name.endswith(".rules"):
            for item in patterns.parse_rules(file.read_text(encoding="utf-8")):
                assert pattern_of(item.text) == item
                assert item.about


def test_an_output_s_own_inputs_are_no_suspects() -> None:
    pattern = pattern_of(
        rule_text(
            "%y = lax.mul(%x, %a) %z = lax.mul(%y, %b)",
            "%c = lax.mul(%a, %b) %z = lax.mul(%x, %c)",
            given="%x: T[*B], %a: T[*B], %b: T[*B]",
        )
    )
    assert (pattern.outputs, pattern.anchor, pattern.suspects) == (("z",), 1, ())


def test_inputs_beside_or_below_an_output_are_suspects() -> None:
    pattern = pattern_of(
        rule_text(
            "%y = lax.neg(%x) %z = lax.mul(%y, %b)",
            "%y = lax.abs(%x) %z = lax.mul(%y, %b)",
            given="%x: T[*B], %b: T[*B]",
        )
    )
    assert (pattern.outputs, pattern.suspects) == (("y", "z"), ("b",))


# --- refusals ----------------------------------------------------------------------------------

NEG = "%y = lax.neg(%x)"
ABS = "%y = lax.abs(%x)"
GOOD = rule_text(NEG, ABS)
LONG = "9" * 30


def _flaw(match: str = NEG, replace: str = ABS, **parts: str) -> str:
    return rule_text(match, replace, **parts)


# name -> (rule text, what is wrong, where: the text under the caret, part of the remedy)
FLAWS: dict[str, tuple[str, str, str, str]] = {
    "no rule": ("# nothing\n", "no rule found", "", "rule name"),
    "no name": ("rule {", "expected a name", "{", "form of a rule"),
    "not closed": ("rule a { class exact", "expected a name", "", "form of a rule"),
    "unknown section": (_flaw(more="wher used_once(%y)"), "section 'wher'", "wher", "'where'"),
    "section twice": (_flaw(more='about "a" about "b"'), "stands twice", 'about "b"', "once"),
    "match twice": (_flaw(more=f"match {{ {NEG} }}"), "stands twice", "match", "once"),
    "section missing": ("rule a { class exact }", "lacks ['given'", "rule a", "form of a rule"),
    "rule twice": (GOOD + GOOD, "defined twice", "rule example", "rename"),
    "wrong class": (_flaw(kind="exakt"), "class is 'exakt'", "exakt", "exact"),
    "unknown dtype": (_flaw(given="%x: f31[K]"), "unknown dtype", "f31", "capital"),
    "lower-case size": (_flaw(given="%x: f32[k]"), "'k' is no size", "k]", "capital"),
    "negative size": (_flaw(given="%x: f32[-3]"), "a size of -3", "-3", "sizes are 0"),
    "huge size": (_flaw(given=f"%x: f32[{LONG}]"), "a size of 9", LONG, "sizes are 0"),
    "fractional size": (_flaw(given="%x: f32[1.5]"), "expected an integer", "1.5", "form of"),
    "lead is no symbol": (_flaw(given="%x: f32[*b, K]"), "'b' is no size", "b,", "capital"),
    "given twice": (_flaw(given="%x: f32[K], %x: f32[N]"), "given twice", "f32[N]", "one type"),
    "given is not read": (_flaw(given="%x: f32[K], %u: f32[N]"), "read %u", "f32[N]", "leave it"),
    "one symbol for a dtype and a size": (_flaw(given="%x: T[T]"), "two kinds", "T[T]", "symbol"),
    "one symbol for sizes and a size": (_flaw(given="%x: T[*B, B]"), "two kinds", "T[", "symbol"),
    "empty match": (_flaw(match=""), "no lines", "{", "%y = op"),
    "empty replace": (_flaw(replace=""), "no lines", "{", "%y = op"),
    "undefined operand": (
        _flaw(match="%y = lax.neg(%q)"),
        "%q is not",
        "%y = lax.neg(%q)",
        "given",
    ),
    "undefined replacement": (_flaw(replace="%y = %q"), "%q is not defined", "%y = %q", "given"),
    "defined twice": (_flaw(match=NEG + " %y = lax.abs(%x)"), "twice", "%y = lax.abs", "other"),
    "given is defined": (_flaw(match="%x = lax.neg(%x)"), "twice", "%x = lax", "other names"),
    "replaced twice": (_flaw(replace=ABS + " %y = lax.exp(%x)"), "twice", "%y = lax.exp", "other"),
    "nothing replaced": (_flaw(replace="%z = lax.abs(%x)"), "redefines no", "%z =", "define what"),
    "a rename in match": (_flaw(match="%y = %x"), "needs an op", "%y = %x", "op(%x)"),
    "a rename to two": (_flaw(replace="%y, %z = %x"), "needs an op", "%y, %z", "op(%x)"),
    "unknown op": (_flaw(match="%y = linaer(%x)"), "unknown op", "%y = linaer", "linear"),
    "unknown primitive": (_flaw(match="%y = lax.ad(%x)"), "unknown op", "%y = lax.ad", "mean"),
    "an op with regions": (_flaw(match="%y = group(%x) {label=$l}"), "regions", "%y =", "Python"),
    "a cond": (_flaw(match="%y = cond(%x, %x)"), "has regions", "%y = cond", "Python rule"),
    "a callback": (_flaw(replace="%y = lax.pure_callback(%x)"), "cannot stand", "%y =", "host"),
    "a foreign call": (_flaw(replace="%y = lax.ffi_call(%x)"), "cannot stand", "%y =", "custom"),
    "not of lax": (_flaw(replace="%y = lax.jit(%x)"), "cannot use", "%y =", "jax.lax"),
    "too few operands": (_flaw(match="%y = linear(%x)"), "take 1 operands", "%y =", "'w'"),
    "too many operands": (_flaw(replace="%y = softmax(%x, %x)"), "take 2", "%y =", "'x'"),
    "no operand at all": (_flaw(replace="%y = concat()"), "take 0 operands", "%y =", "'x'"),
    "unknown optional": (_flaw(replace="%y = softmax(%x, mask=%x)"), "['mask']", "%y =", "[]"),
    "optional twice": (
        _flaw(replace="%y = linear(%x, %x, bias=%x, bias=%x)"),
        "operand is given twice",
        "%y =",
        "once",
    ),
    "unknown attribute": (
        _flaw(match="%y = rms_norm(%x, %x) {epsilon=1.0}"),
        "no attribute ['epsilon']",
        "%y =",
        "'eps'",
    ),
    "attribute twice": (
        _flaw(match="%y = rms_norm(%x, %x) {eps=1.0, eps=2.0}"),
        "attribute is given twice",
        "%y =",
        "once",
    ),
    "required attribute": (_flaw(match="%y = cast(%x)"), "needs ['dtype']", "%y =", "{name=$name}"),
    "dots in replace": (_flaw(replace="%y = softmax(%x) {...}"), "no value", "%y =", "write the"),
    "unbound variable": (
        _flaw(replace="%y = cast(%x) {dtype=$d}"),
        "$d is not bound",
        "%y = cast",
        "bind it",
    ),
    "sample does not bind": (
        _flaw(replace="%y = cast(%x) {dtype=$d}", more="sample $d in (f32, bf16)"),
        "$d is not bound",
        "%y = cast",
        "bind it",
    ),
    "unbound symbol": (
        _flaw(replace="%y = reshape(%x) {shape=(N, M)}"),
        "M is not bound",
        "%y = resh",
        "bind it",
    ),
    "arithmetic binds nothing": (
        _flaw(match="%y = softmax(%x) %z = reshape(%y) {shape=(N + 1,)}"),
        "N is not bound",
        "%z = resh",
        "bind it",
    ),
    "a minus without spaces": (
        _flaw(replace="%y = reshape(%x) {shape=(K-1,)}"),
        "'K-1' is one word",
        "K-1",
        "spaces",
    ),
    "a huge number": (
        _flaw(replace=f"%y = reshape(%x) {{shape=({LONG},)}}"),
        "too large",
        LONG,
        "2^62",
    ),
    "an endless number": (
        _flaw(replace="%y = reshape(%x) {shape=(" + "9" * 5_000 + ",)}"),
        "number",
        "99",
        "form of a rule",
    ),
    "a word that is no value": (
        _flaw(replace="%y = softmax(%x) {kind=relu}"),
        "unknown word 'relu'",
        "relu",
        "a number, string",
    ),
    "dim of an unknown value": (
        _flaw(replace="%y = reshape(%x) {shape=(dim(%q, 0),)}"),
        "%q is not defined",
        "%y = resh",
        "name a value",
    ),
    "dim without an index": (
        _flaw(replace="%y = reshape(%x) {shape=(dim(%x),)}"),
        "dim takes 2 arguments",
        "dim(%x)",
        "dim(%x, -1)",
    ),
    "not connected": (
        _flaw(match=NEG + " %z = lax.exp(%q)", given="%x: T[K], %q: T[K]"),
        "not connected",
        "%z = lax.exp",
        "share values",
    ),
    "unknown condition": (_flaw(more="where once(%x)"), "condition 'once'", "once", "used_once"),
    "condition without values": (
        _flaw(more="where parameter(1)"),
        "parameter has 0 values and 1 expressions",
        "parameter",
        "1 values and 0 expressions",
    ),
    "condition without numbers": (
        _flaw(more="where dtype_in(%x)"),
        "has 1 values and 0",
        "dtype_in",
        "one or more",
    ),
    "condition on an unknown value": (
        _flaw(more="where used_once(%q)"),
        "%q is not defined",
        "used_once",
        "name a value",
    ),
    "condition on a new value": (
        _flaw(replace="%n = lax.abs(%x) %y = lax.exp(%n)", more="where used_once(%n)"),
        "%n is not defined",
        "used_once",
        "name a value",
    ),
    "condition on an unbound size": (
        _flaw(more="where less(N, 3)"),
        "N is not bound",
        "less",
        "bind it",
    ),
    "let is no symbol": (_flaw(more="let n = K"), "'n' is no size", "n = K", "capital"),
    "let for a dtype": (_flaw(more="let T = K"), "T is no size", "rule example", "ties sizes"),
    "let that cannot be solved": (
        _flaw(more="let K = N * 2"),
        "['N'] in a let cannot be solved for",
        "rule example",
        "let K = known * FREE",
    ),
    "let with two unknown sizes": (
        _flaw(more="let K = N * M"),
        "['M', 'N'] in a let",
        "rule example",
        "known * FREE",
    ),
    "let of an unknown size": (
        _flaw(more="let N = 2 * M"),
        "['M'] in a let",
        "rule example",
        "with N bound",
    ),
    "let of a type": (_flaw(more="let N = dim(%x, 0)"), "value's type", "rule", "in given"),
    "choose without values": (_flaw(more="choose $n in ()"), "$n needs", "$n in", "(1, 2)"),
    "choose of one number": (_flaw(more="choose $n in 3"), "$n needs", "$n in", "(1, 2)"),
    "choose twice": (
        _flaw(more="choose $n in (1, 2) choose $n in (3, 4)"),
        "names a variable twice",
        "rule example",
        "once",
    ),
    "too many choices": (
        _flaw(
            more="choose $n in (1, 2, 3, 4, 5, 6, 7, 8, 9) choose $m in (1, 2, 3, 4, 5, 6, 7, 8)"
        ),
        "choose allows 72 combinations",
        "rule example",
        f"at most {MAX_OPTIONS}",
    ),
    "approximate without error": (
        _flaw(kind="approximate"),
        "states its relative error",
        "rule example",
        "error 0.01",
    ),
    "approximate without bound": (
        _flaw(kind="approximate", more="error inf"),
        "between 0 and 1",
        "rule example",
        "error 0.01",
    ),
    "approximate with error nan": (
        _flaw(kind="approximate", more="error nan"),
        "between 0 and 1",
        "rule example",
        "error 0.01",
    ),
}


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_named_with_its_line_column_and_remedy(name: str) -> None:
    text, what, under_caret, remedy = FLAWS[name]
    with pytest.raises(ParseError) as caught:
        patterns.parse_rules(text, "my.rules")
    error = caught.value
    assert what in error.what
    assert remedy in error.remedy
    place, shown, caret = error.where.split("\n")
    line, column = map(int, place.removeprefix("my.rules:").split(":"))
    assert text.split("\n")[line - 1][column - 1 :].startswith(under_caret)
    assert shown[caret.index("^") :].startswith(under_caret[:60])


def test_a_rule_with_none_of_the_flaws_is_accepted() -> None:
    assert pattern_of(GOOD).outputs == ("y",)


# --- hostile text ------------------------------------------------------------------------------


def _refusal(text: str) -> str:
    with pytest.raises(ParseError) as caught:
        patterns.parse_rules(text)
    assert caught.value.remedy or "nested deeper" in caught.value.what
    return caught.value.what


def test_too_many_lines_are_refused() -> None:
    lines = [f"%y{i} = lax.neg(%x)" for i in range(patterns.MAX_PATTERN_NODES + 1)]
    assert "more than 32 lines" in _refusal(rule_text(" ".join(lines), "%y0 = %x"))
    pattern_of(rule_text(" ".join(lines[:-1]), "%y0 = %x"))


def test_a_very_long_text_is_refused_before_it_is_read() -> None:
    assert "characters" in _refusal(GOOD + "#" * patterns.MAX_RULE_TEXT)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 5_000 + "1" + ")" * 5_000,
        " + ".join(["1"] * 5_000),
        " * ".join(["K"] * 5_000),
        " // ".join(["K"] * (MAX_EXPRESSION_DEPTH + 1)),
        "dim(%x, " * 2_000 + "0" + ")" * 2_000,
    ],
    ids=["parentheses", "sum", "product", "quotient", "calls"],
)
def test_deep_expressions_are_refused(expression: str) -> None:
    what = _refusal(rule_text(NEG, f"%y = reshape(%x) {{shape=({expression},)}}"))
    assert "deeper than" in what


def test_an_expression_as_deep_as_allowed_is_evaluated() -> None:
    product = " + ".join(["K"] * (MAX_EXPRESSION_DEPTH - 2))
    pattern = pattern_of(rule_text(NEG, f"%y = reshape(%x) {{shape=({product},)}}"))
    shape = pattern.replace[0].attributes[0][1]
    assert evaluate_expression(shape, {"K": 3}, {}) == (3 * (MAX_EXPRESSION_DEPTH - 2),)


def _value(text: str, **bindings: Any) -> Any:
    pattern = pattern_of(
        rule_text(
            "%y = lax.neg(%x) {...} %z = reshape(%y) {keep=$k, shape=$s}",
            f"%z = reshape(%x) {{shape={text}}}",
        )
    )
    types = {"x": TensorType("bf16", (4, 6))}
    full = {"K": 6, "B": (4,), "T": "bf16", "$k": 1, "$s": (2, 3), **bindings}
    return evaluate_expression(pattern.replace[0].attributes[0][1], full, types)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 - 2 - 1", 4),
        ("K // 4 * 4", 4),
        ("-1", -1),
        ("K - -1", 7),
        ("(K,)", (6,)),
        ("()", ()),
        ("B + (K, 1)", (4, 6, 1)),
        ("$s + $s", (2, 3, 2, 3)),
        ("(dim(%x, 0), dim(%x, -1), rank(%x), bytes(%x))", (4, 6, 2, 48)),
        ("dim(%x, $k)", 6),
        ('"relu"', "relu"),
        ("none", None),
        ("0.5", 0.5),
    ],
)
def test_expressions_mean_what_they_say(text: str, value: Any) -> None:
    got = _value(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "bindings", "what"),
    [
        ("K // (K - 6)", {}, "division by zero"),
        ("K * 4611686018427387904", {}, "too large"),
        ("K + none", {}, "cannot compute"),
        ("K + true", {}, "cannot compute"),
        ("$s + $s", {"$s": (1,) * 40}, "a tuple of 80 items"),
        ("$s * 2", {}, "cannot compute"),
        ("dim(%x, 2)", {}, "out of range"),
        ("dim(%x, -3)", {}, "out of range"),
        ("dim(%x, none)", {}, "out of range"),
        ("1e308 // 1e-308 * 0 + K // 0.0", {}, "division by zero"),
    ],
)
def test_what_cannot_be_computed_is_a_rule_error(text: str, bindings: Any, what: str) -> None:
    with pytest.raises(TkccError, match=what) as caught:
        _value(text, **bindings)
    assert caught.value.remedy


def test_expressions_know_what_they_read() -> None:
    expression = Expression(
        "+", (Expression("call", ("dim", "x", Expression("variable", ("$i",)))), _symbol("K"))
    )
    assert (expression.names(), expression.values()) == ({"$i", "K"}, {"x"})


def _symbol(name: str) -> Expression:
    return Expression("symbol", (name,))


# --- mutations ---------------------------------------------------------------------------------

_PIECES = re.findall(r"\w+|\s+|.", EVERYTHING)
_EXTRA = [*'%*(){}=,-"\\\x00é', "%x", "$n", "K", "...", "1e999", "//", "none", "@0", "rule", "let"]
_EXTRA += ["f32[2](1, 2)", "dim(%x, 0)", "9" * 400]


def _mutated(generator: random.Random) -> str:
    pieces = list(_PIECES)
    for _ in range(generator.randint(1, 3)):
        at = generator.randrange(len(pieces))
        kind = generator.randrange(4)
        if kind == 0:
            del pieces[at : at + generator.randint(1, 4)]
        elif kind == 1:
            pieces[at] = generator.choice(_EXTRA)
        elif kind == 2:
            pieces.insert(at, generator.choice(_EXTRA))
        else:
            other = generator.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
    return "".join(pieces)


def test_mutated_rules_parse_or_are_refused_with_a_remedy() -> None:
    generator = random.Random(1)
    texts = [_mutated(generator) for _ in range(1_500)]
    errors = [error for text in texts if (error := _error(text)) is not None]
    assert 50 < len(errors) < len(texts) - 50
    assert all(error.remedy for error in errors)
    assert all(error.where.startswith("<rules>:") for error in errors)


def _error(text: str) -> TkccError | None:
    """The refusal of the text, or None; any other exception is a failure."""
    try:
        patterns.parse_rules(text)
    except TkccError as error:
        return error
    return None
