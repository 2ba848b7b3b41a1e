"""The text form: exact round trips, errors with their place, and hostile text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.samples import (
    assert_function_round_trips,
    assert_round_trips,
    function,
    functions,
    small_module,
    value,
)
from tkcc.ir.errors import ParseError, TkccError
from tkcc.ir.graph import Function, Module, Source
from tkcc.ir.hashing import function_hash
from tkcc.ir.op import build
from tkcc.ir.text import lexer, parse_function, parse_module, print_function, print_module

SMALL = print_module(small_module())
ODD_NAMES = [
    "a b",
    'q"uote',
    "tick'2",
    "'",
    "12",
    "²",
    "über",
    "a\nb",
    "-x",
    "a-",
    "x.y",
    "\\",
    "%",
]
names = st.text(st.characters(codec=None), max_size=6) | st.sampled_from(["a", "a'2", "1", "nan"])


def test_the_text_of_a_small_module(golden: Callable[[str, str], None]) -> None:
    golden(SMALL, "small_module.txt")


def test_a_module_round_trips_exactly() -> None:
    assert assert_round_trips(small_module()) == SMALL
    assert "loc(" not in assert_round_trips(small_module(), sources=False)


def test_a_parsed_module_keeps_names_roles_aliases_and_provenance() -> None:
    module = parse_module(SMALL)
    prefill = module.functions["prefill"]
    assert module.name == "small"
    assert [v.name for v in prefill.inputs] == ["tokens", "table", "cache"]
    assert prefill.roles == ("arg", "param", "state")
    assert prefill.aliases == ((1, 2),)
    assert prefill.output_names == ("logits", "cache")
    loop = module.functions["decode"].nodes[0]
    assert loop.source == Source("layers", "model.py:9", ("roll#1", "fuse#2"))
    assert list(module.parameters) == ["table", "stack"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_value_names_survive(name: str) -> None:
    text = print_function(_identity(name))
    assert parse_function(text).inputs[0].name == name
    assert print_function(parse_function(text)) == text


@given(st.lists(names, min_size=1, max_size=5))
def test_any_value_names_survive_duplicates_too(given_names: list[str]) -> None:
    inputs = [value("f32[]", name) for name in given_names]
    text = print_function(function(inputs, (), *inputs))
    again = parse_function(text)
    assert [v.name for v in again.inputs] == given_names
    assert print_function(again) == text


@given(names.filter(bool), names, names)
def test_any_function_output_and_module_names_survive(name: str, output: str, title: str) -> None:
    x = value("f32[]")
    named = function((x,), (), x).replace(output_names=(output,))
    module = Module({name: named}, title)
    text = assert_round_trips(module)
    again = parse_module(text)
    assert (again.name, list(again.functions)) == (title, [name])
    assert again.functions[name].output_names == (output,)


@given(names, names, st.lists(names, max_size=2))
def test_any_provenance_survives(path: str, file: str, rewrites: list[str]) -> None:
    x, source = value("f32[]"), Source(path, file, tuple(rewrites))
    node = build("lax.neg", x, source=source)
    text = print_function(function((x,), (node,), node.result))
    assert parse_function(text).nodes[0].source == source


@settings(max_examples=40)
@given(functions(2))
def test_random_functions_round_trip(drawn: Function) -> None:
    assert_function_round_trips(drawn)


def test_comments_and_layout_do_not_count() -> None:
    text = "# a comment\n" + SMALL.replace("\n", "\r\n\t").replace("(", " ( ")
    assert print_module(parse_module(text)) == SMALL


def test_results_may_be_left_unread_and_functions_empty() -> None:
    assert_function_round_trips(function((), ()))
    x = value("f32[2]")
    pieces = build("split", x, attributes={"sizes": (1, 1)})
    assert_function_round_trips(function((x,), (pieces,), pieces.results[1]))


def _identity(name: str) -> Function:
    x = value("f32[]", name)
    return function((x,), (), x)


# text, line:column of the caret, part of the message
MALFORMED = [
    ("", "1:1", "expected 'module'"),
    ("module small", "1:8", "expected a string"),
    ('module "m"', "1:11", "the module has no function"),
    ('module "m" func f { return } func f { return }', "1:30", "defined twice"),
    ('module "m" func f { return', "1:27", "expected '}'"),
    ('module "m"\nfunc f {\n  arg %x f32[2]\n  return\n}', "3:10", "expected ':'"),
    ('module "m"\nfunc f {\n  arg %x: f31[2]\n  return\n}', "3:11", "unknown dtype 'f31'"),
    ('module "m"\nfunc f {\n  arg %x: f32[2\n  return\n}', "4:3", "expected ','"),
    ('module "m"\nfunc f {\n  arg %x: f32[-2]\n  return\n}', "3:15", "a dimension of -2"),
    ('module "m"\nfunc f {\n  arg %x: f32[2.5]\n  return\n}', "3:15", "expected an integer"),
    ('module "m"\nfunc f {\n  arg %x: f32[2]@(a,b)\n  return\n}', "3:17", "2 entries for 1"),
    ('module "m"\nfunc f {\n  arg %x: f32[]\n  arg %x: f32[]\n  return\n}', "4:7", "defined twice"),
    ('module "m"\nfunc f {\n  return %y\n}', "3:10", "%y is not defined here"),
    ('module "m"\nfunc f {\n  %y: f32[] = lax.nex()\n  return\n}', "3:3", "unknown op 'lax.nex'"),
    ('module "m"\nfunc f {\n  %y: f32[] = lax.neg(%y)\n  return\n}', "3:23", "not defined here"),
    (
        'module "m"\nfunc f {\n  arg %x: f32[2]\n  %y: f32[3] = lax.neg(%x)\n  return\n}',
        "4:3",
        "gives f32[2], but f32[3] was written",
    ),
    (
        'module "m"\nfunc f {\n  arg %x: f32[2]\n  %y: f32[2] = softmax(%x) {a=1, a=2}\n}',
        "4:34",
        "given twice",
    ),
    (
        'module "m"\nfunc f {\n  arg %x: f32[2]\n  %y: f32[2] = softmax(%x) {a=1}\n  return\n}',
        "4:3",
        "no attribute ['a']",
    ),
    (
        'module "m"\nfunc f {\n  arg %x: f32[2]\n  %y: f32[2] = softmax(%x) {a=?}\n  return\n}',
        "4:31",
        "unexpected character '?'",
    ),
    (
        'module "m"\nfunc f {\n  arg %x: f32[]\n  return %x as "a", %x\n}',
        "4:3",
        "name all outputs or none",
    ),
    (
        'module "m"\nfunc f {\n  arg %x: f32[]\n  state %s: f32[2]\n  return %x -> %s\n}',
        "5:3",
        "an output of f32[] cannot alias an input of f32[2]",
    ),
    (
        'module "m"\nfunc f {\n  arg %x: f32[]\n  %y: f32[] = lax.neg(%x)\n  return %y -> %y\n}',
        "5:3",
        "may only alias an input",
    ),
    (
        'module "m"\nfunc f {\n  arg %x: f32[]\n  %y: f32[] = lax.neg(%x) loc("a")\n  return\n}',
        "4:27",
        "loc takes a path",
    ),
    (
        'module "m"\nfunc f {\n  arg %x: f32[]\n  %y: f32[] = group(%x) {label="a"} {\n'
        "    region 1 {\n      return\n    }\n  }\n  return\n}",
        "5:5",
        "regions are numbered in order",
    ),
    (
        'module "m"\nfunc f {\n  arg %x: f32[]\n  %y: f32[] = softmax(%x) {\n'
        "    region 0 {\n      return\n    }\n  }\n  return\n}",
        "4:3",
        "takes 0 regions",
    ),
    ('module "m" func f { return } func g', "1:36", "expected '{'"),
]


@pytest.mark.parametrize(("text", "place", "message"), MALFORMED, ids=lambda part: part[-24:])
def test_malformed_text_is_an_error_with_line_column_and_caret(
    text: str, place: str, message: str
) -> None:
    with pytest.raises(ParseError) as error:
        parse_module(text, "m.ir")
    where = error.value.where.splitlines()
    assert message in error.value.what
    assert where[0] == f"m.ir:{place}"
    line, column = map(int, place.split(":"))
    assert where[1] == (text.splitlines() or [""])[line - 1]
    assert where[2] == " " * (column - 1) + "^"


def test_an_ill_typed_line_shows_the_line_the_operands_and_the_remedy() -> None:
    text = """func f {
  arg %x: bf16[2,8]
  param %w: bf16[9]
  %y: bf16[2,8] = rms_norm(%x, %w) loc("layers/norm", "model.py:61", "tie#14")
  return %y
}"""
    with pytest.raises(ParseError) as error:
        parse_function(text, "f.ir")
    message = str(error.value)
    assert "rms_norm: w is (9,), but the last axis of x is (8,)" in message
    assert "f.ir:4:3" in message
    assert "rms_norm(%x, %w) {}" in message
    assert "operands: bf16[2,8], bf16[9]" in message
    assert "from layers/norm (model.py:61) ; last changed by tie#14" in message
    assert "remedy: give w one entry per channel" in message


def test_a_long_line_is_shown_around_the_caret() -> None:
    text = 'module "m" func f { return ' + " " * 500 + "? }"
    with pytest.raises(ParseError) as error:
        parse_module(text)
    _, shown, caret = error.value.where.splitlines()
    assert len(shown) <= 160
    assert shown[caret.index("^")] == "?"


@pytest.mark.parametrize("depth", [70, 5000])
def test_deep_nesting_is_refused(depth: int) -> None:
    region = 'group() {label="a"} { region 0 { '
    with pytest.raises(ParseError, match="nested deeper than 64"):
        parse_module('module "m" func f { ' + region * depth)
    with pytest.raises(ParseError, match="nested deeper than 64"):
        parse_module('module "m" func f { %x: f32[] = constant() {value=' + "(" * depth)


def test_too_long_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexer, "MAX_TEXT", 10)
    with pytest.raises(ParseError, match="characters"):
        parse_module(SMALL)


def test_text_after_a_function_is_refused() -> None:
    with pytest.raises(ParseError, match="after the function"):
        parse_function("func f { return } func g { return }")


def test_functions_that_disagree_on_a_parameter_are_refused() -> None:
    text = 'module "m" func f { param %w: f32[2] return } func g { param %w: f32[3] return }'
    with pytest.raises(TkccError, match="is f32\\[2\\] in one function and f32\\[3\\] in another"):
        parse_module(text)


tokens = st.sampled_from(
    ["%", "%x", "%0", "{", "}", "(", ")", "[", "]", ",", ":", "=", "->", "@", "@0", "-", '"', "\\"]
    + ["9" * 30, "-1", "1e400", "nan", "f32", "i4[1](3)", "key<fry>", "complex", "hex", "region"]
    + ["lax.dot_general", "while", "cond", "loc", "none", "true", "\x00", "é", "Precision", "#"]
)
pieces = tokens | st.text(st.characters(codec=None), min_size=1, max_size=3)


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """SMALL with a few stretches deleted, replaced, repeated or inserted."""
    text = SMALL
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 12))
        replacement = draw(st.just("") | pieces | st.just(text[at : at + 3 * length]))
        text = text[:at] + replacement + text[at + length :]
    return text


@settings(max_examples=400)
@given(mutations())
def test_mutated_text_is_read_exactly_or_refused_with_an_error_of_ours(text: str) -> None:
    try:
        module = parse_module(text)
    except TkccError:
        return
    assert_round_trips(module)


def test_region_scopes_are_closed() -> None:
    text = SMALL.replace("linear(%norm", "linear(%x")
    if text == SMALL:
        text = SMALL.replace("rms_norm(%carry", "rms_norm(%x")
    with pytest.raises(ParseError, match="%x is not defined here"):
        parse_module(text)


def test_two_texts_of_one_function_have_one_hash() -> None:
    a = parse_function("func f { arg %x: f32[] %y: f32[] = lax.neg(%x) return %y }")
    b = parse_function(
        'func g {\n arg %"odd name": f32[]\n %1: f32[] = lax.neg(%"odd name") return %1}'
    )
    assert function_hash(a) == function_hash(b)
