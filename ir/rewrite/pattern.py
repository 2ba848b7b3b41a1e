"""Rules as data: the records of a rule and the parser of rule text.

    rule merge_gate_up {
      class exact
      about "Two linears over one input become one over joined weights."
      given %x: T[*B, K], %a: T[K, N], %b: T[K, M]
      match {
        %y = linear(%x, %a)
        %z = linear(%x, %b)
      }
      where parameter(%a), parameter(%b)
      replace {
        %w = concat(%a, %b) {axis=1}
        %yz = linear(%x, %w)
        %y, %z = split(%yz) {axis=-1, sizes=(N, M)}
      }
    }

`given` types the pattern's inputs: capital names are symbols for sizes and dtypes, `*B` stands
for any number of leading sizes. Names defined in both `match` and `replace` are what is replaced.
An attribute that the pattern does not mention must have its default value; `...` allows any.
`choose $n in (2, 4)` makes an option of the rule; `sample $eps in (1e-6, 1e-5)` says with which
values the rule is checked; `let N = H * D` ties sizes together (a condition when matching).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tkcc.ir.errors import ParseError
from tkcc.ir.rewrite.expression import Expression, is_symbol, parse_expression
from tkcc.ir.rewrite.records import Condition, Pattern, PatternNode, TypePattern
from tkcc.ir.rewrite.validate import Flaw, validate
from tkcc.ir.text.lexer import MAX_SIZE, Reader
from tkcc.ir.types import dtype_names

MAX_PATTERN_NODES = 32
MAX_RULE_TEXT = 1 << 18  # characters
CLASSES = ("exact", "approximate")
_GRAMMAR = "the form of a rule is shown at the top of ir/rewrite/pattern.py"


def parse_rules(text: str, name: str = "<rules>") -> list[Pattern]:
    """All rules of a text. Raises ParseError with line, column and remedy at the first bad one."""
    if len(text) > MAX_RULE_TEXT:
        raise ParseError(f"{name} has {len(text)} characters", remedy=f"at most {MAX_RULE_TEXT}")
    try:
        return _rules(Reader(text, name))
    except ParseError as error:
        raise ParseError(error.what, where=error.where, remedy=error.remedy or _GRAMMAR) from None


def _rules(reader: Reader) -> list[Pattern]:
    rules: list[Pattern] = []
    while reader.token.kind != "end":
        start = reader.token.at
        pattern = _rule(reader)
        if any(known.name == pattern.name for known in rules):
            raise reader.error(f"rule {pattern.name!r} is defined twice", start, "rename one")
        own = reader.text[start : reader.tokens[reader.position - 1].at + 1]
        rules.append(dataclasses.replace(pattern, text=own))
    if not rules:
        raise reader.error("no rule found", remedy="write rule name { ... }")
    return rules


def _rule(reader: Reader) -> Pattern:
    start = reader.expect("rule").at
    name = reader.word()
    reader.expect("{")
    parts: dict[str, Any] = {}
    while not reader.accept("}"):
        _section(reader, parts)
    missing = [key for key in ("class", "given", "match", "replace") if key not in parts]
    if missing:
        raise reader.error(f"rule {name!r} lacks {missing}", start, _GRAMMAR)
    pattern = Pattern(
        name=name,
        kind=parts["class"],
        about=parts.get("about", ""),
        given=tuple(parts["given"]),
        match=tuple(parts["match"]),
        conditions=tuple(parts.get("where", ())),
        replace=tuple(parts["replace"]),
        choices=tuple(parts.get("choose", ())),
        samples=tuple(parts.get("sample", ())),
        lets=tuple(parts.get("let", ())),
        error=parts.get("error", 0.0),
    )
    try:
        validate(pattern)
    except Flaw as flaw:
        at = start if flaw.at is None else flaw.at
        raise reader.error(f"rule {name}: {flaw.what}", at, flaw.remedy) from None
    return pattern


def _section(reader: Reader, parts: dict[str, Any]) -> None:
    token = reader.kind("name")
    word = token.text
    if word not in _SECTIONS:
        raise reader.error(f"unknown section {word!r}", token.at, f"use {list(_SECTIONS)}")
    if word in parts and word not in _REPEATED:
        raise reader.error(f"section {word!r} stands twice", token.at, "write it once")
    read = _SECTIONS[word](reader)
    parts[word] = [*parts.get(word, ()), *read] if word in _REPEATED else read


def _class(reader: Reader) -> str:
    token = reader.kind("name")
    if token.text not in CLASSES:
        raise reader.error(f"class is {token.text!r}", token.at, f"use one of {CLASSES}")
    return token.text


def _given(reader: Reader) -> list[tuple[str, TypePattern]]:
    given = []
    while True:
        name = reader.value_name()
        reader.expect(":")
        given.append((name, _type_pattern(reader)))
        if not reader.accept(","):
            return given


def _type_pattern(reader: Reader) -> TypePattern:
    token = reader.kind("name")
    if not is_symbol(token.text) and token.text not in dtype_names():
        raise reader.error(f"unknown dtype {token.text!r}", token.at, "a dtype or a capital symbol")
    reader.expect("[")
    lead = ""
    if reader.accept("*"):
        lead = _symbol(reader)
        if not reader.peek("]"):
            reader.expect(",")
    sizes: list[int | str] = []
    while not reader.accept("]"):
        sizes.append(_size(reader) if reader.token.kind == "number" else _symbol(reader))
        if not reader.peek("]"):
            reader.expect(",")
    return TypePattern(token.text, lead, tuple(sizes), token.at)


def _size(reader: Reader) -> int:
    at = reader.token.at
    size = reader.integer()
    if not 0 <= size <= MAX_SIZE:
        raise reader.error(f"a size of {size}", at, f"sizes are 0 to {MAX_SIZE}")
    return size


def _symbol(reader: Reader) -> str:
    token = reader.kind("name")
    if not is_symbol(token.text):
        raise reader.error(f"{token.text!r} is no size", token.at, "a number or a capital symbol")
    return token.text


def _nodes(reader: Reader) -> list[PatternNode]:
    start = reader.expect("{").at
    nodes = []
    while not reader.accept("}"):
        nodes.append(_pattern_node(reader))
        if len(nodes) > MAX_PATTERN_NODES:
            remedy = "split the rule, or write a Python rule"
            raise reader.error(f"more than {MAX_PATTERN_NODES} lines", nodes[-1].at, remedy)
    if not nodes:
        raise reader.error("no lines", start, "write %y = op(%x)")
    return nodes


def _pattern_node(reader: Reader) -> PatternNode:
    at = reader.token.at
    results = [reader.value_name()]
    while reader.accept(","):
        results.append(reader.value_name())
    reader.expect("=")
    if reader.token.kind == "value":
        return PatternNode(tuple(results), "", (reader.value_name(),), (), (), False, at)
    op = reader.kind("name").text
    operands, optional = _pattern_operands(reader)
    attributes, anything = _pattern_attributes(reader)
    return PatternNode(
        tuple(results), op, tuple(operands), tuple(optional), tuple(attributes), anything, at
    )


def _pattern_operands(reader: Reader) -> tuple[list[str], list[tuple[str, str]]]:
    reader.expect("(")
    operands: list[str] = []
    optional: list[tuple[str, str]] = []
    while not reader.accept(")"):
        if reader.token.kind == "name":
            key = reader.next().text
            reader.expect("=")
            optional.append((key, reader.value_name()))
        else:
            operands.append(reader.value_name())
        if not reader.peek(")"):
            reader.expect(",")
    return operands, optional


def _pattern_attributes(reader: Reader) -> tuple[list[tuple[str, Expression]], bool]:
    attributes: list[tuple[str, Expression]] = []
    if not reader.peek("{"):
        return attributes, False
    reader.expect("{")
    anything = False
    while not reader.accept("}"):
        if reader.accept("..."):
            anything = True
        else:
            key = reader.kind("name").text
            reader.expect("=")
            attributes.append((key, parse_expression(reader)))
        if not reader.peek("}"):
            reader.expect(",")
    return attributes, anything


def _conditions(reader: Reader) -> list[Condition]:
    conditions = []
    while True:
        token = reader.kind("name")
        reader.expect("(")
        arguments: list[str | Expression] = []
        while not reader.accept(")"):
            if reader.token.kind == "value":
                arguments.append("%" + reader.value_name())
            else:
                arguments.append(parse_expression(reader))
            if not reader.peek(")"):
                reader.expect(",")
        conditions.append(Condition(token.text, tuple(arguments), token.at))
        if not reader.accept(","):
            return conditions


def _lets(reader: Reader) -> list[tuple[str, Expression]]:
    lets = []
    while True:
        name = _symbol(reader)
        reader.expect("=")
        lets.append((name, parse_expression(reader)))
        if not reader.accept(","):
            return lets


def _values(reader: Reader) -> list[tuple[str, tuple[Any, ...]]]:
    token = reader.kind("variable")
    reader.expect("in")
    values = reader.attribute()
    if not isinstance(values, tuple) or not values:
        raise reader.error(f"{token.text} needs a list of values", token.at, "write in (1, 2)")
    return [(token.text, values)]


def _error(reader: Reader) -> float:
    return float(reader.kind("number").text)


_SECTIONS: dict[str, Callable[[Reader], Any]] = {
    "class": _class,
    "about": Reader.string,
    "error": _error,
    "given": _given,
    "match": _nodes,
    "let": _lets,
    "where": _conditions,
    "choose": _values,
    "sample": _values,
    "replace": _nodes,
}
_REPEATED = ("where", "let", "choose", "sample")


__all__ = [
    "Condition",
    "ParseError",
    "Pattern",
    "PatternNode",
    "TypePattern",
    "parse_rules",
]
