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
from typing import Any

from tkcc.ir.errors import ParseError, RuleError, TkccError
from tkcc.ir.op import REQUIRED, lookup
from tkcc.ir.rewrite.expression import Expression, is_symbol, parse_expression
from tkcc.ir.text.lexer import Reader
from tkcc.ir.types import dtype_names

MAX_PATTERN_NODES = 32
CLASSES = ("exact", "approximate")


@dataclasses.dataclass(frozen=True)
class TypePattern:
    """dtype (a name or a symbol; "" for any), leading symbol ("" for none), sizes."""

    dtype: str
    lead: str
    sizes: tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class PatternNode:
    """One line of `match` or `replace`. With op "" the line renames: `%y = %x`."""

    results: tuple[str, ...]
    op: str
    operands: tuple[str, ...]
    optional: tuple[tuple[str, str], ...]
    attributes: tuple[tuple[str, Expression], ...]
    any_attributes: bool


@dataclasses.dataclass(frozen=True)
class Condition:
    """`name(arguments)`; values are given as `%name` strings, the rest as expressions."""

    name: str
    arguments: tuple[str | Expression, ...]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A parsed rule."""

    name: str
    kind: str
    about: str
    given: tuple[tuple[str, TypePattern], ...]
    match: tuple[PatternNode, ...]
    conditions: tuple[Condition, ...]
    replace: tuple[PatternNode, ...]
    choices: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    samples: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    lets: tuple[tuple[str, Expression], ...] = ()  # sizes that follow from others
    error: float = 0.0  # for approximate rules: the largest relative error that is allowed
    text: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names that the replacement redefines, in pattern order."""
        made = {name for node in self.replace for name in node.results}
        return tuple(n for node in self.match for n in node.results if n in made)

    @property
    def anchor(self) -> int:
        """Position of the first pattern node with a replaced result."""
        outputs = set(self.outputs)
        return next(i for i, node in enumerate(self.match) if outputs & set(node.results))


def parse_rules(text: str, name: str = "<rules>") -> list[Pattern]:
    """All rules of a text. Raises ParseError or RuleError at the first bad one."""
    reader = Reader(text, name)
    rules: list[Pattern] = []
    while reader.token.kind != "end":
        start = reader.token.at
        pattern = _rule(reader)
        if any(known.name == pattern.name for known in rules):
            raise reader.error(f"rule {pattern.name!r} is defined twice", start)
        own = text[start : reader.tokens[reader.position - 1].at + 1]
        rules.append(dataclasses.replace(pattern, text=own))
    if not rules:
        raise reader.error("no rule found", remedy="write rule name { ... }")
    return rules


def _rule(reader: Reader) -> Pattern:
    start = reader.expect("rule").at
    name = reader.word()
    reader.expect("{")
    parts: dict[str, Any] = {"choices": [], "samples": [], "lets": []}
    while not reader.accept("}"):
        _section(reader, parts)
    missing = [key for key in ("kind", "given", "match", "replace") if key not in parts]
    if missing:
        raise reader.error(f"rule {name!r} lacks {missing}", start, "see docs/add-a-rule.md")
    pattern = Pattern(
        name=name,
        kind=parts["kind"],
        about=parts.get("about", ""),
        given=tuple(parts["given"]),
        match=tuple(parts["match"]),
        conditions=tuple(parts.get("where", ())),
        replace=tuple(parts["replace"]),
        choices=tuple(parts["choices"]),
        samples=tuple(parts["samples"]),
        lets=tuple(parts["lets"]),
        error=parts.get("error", 0.0),
    )
    try:
        _validate(pattern)
    except TkccError as error:
        raise reader.error(f"rule {name}: {error.what}", start, error.remedy) from None
    return pattern


def _section(reader: Reader, parts: dict[str, Any]) -> None:
    token = reader.kind("name")
    word = token.text
    if word == "class":
        parts["kind"] = reader.kind("name").text
        if parts["kind"] not in CLASSES:
            raise reader.error(f"class is {parts['kind']!r}", token.at, f"use one of {CLASSES}")
    elif word == "about":
        parts["about"] = reader.string()
    elif word == "error":
        parts["error"] = float(reader.kind("number").text)
    elif word == "given":
        parts["given"] = _given(reader)
    elif word in ("match", "replace"):
        parts[word] = _nodes(reader, word)
    elif word == "where":
        parts["where"] = _conditions(reader)
    elif word == "let":
        parts["lets"] += _lets(reader)
    elif word in ("choose", "sample"):
        parts["choices" if word == "choose" else "samples"].append(_values(reader))
    else:
        raise reader.error(
            f"unknown section {word!r}",
            token.at,
            "sections are class, about, error, given, match, let, where, choose, sample, replace",
        )


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
        lead = reader.kind("name").text
        if not reader.peek("]"):
            reader.expect(",")
    sizes: list[int | str] = []
    while not reader.accept("]"):
        sizes.append(reader.integer() if reader.token.kind == "number" else _symbol(reader))
        if not reader.peek("]"):
            reader.expect(",")
    return TypePattern(token.text, lead, tuple(sizes))


def _symbol(reader: Reader) -> str:
    token = reader.kind("name")
    if not is_symbol(token.text):
        raise reader.error(f"{token.text!r} is no size", token.at, "a number or a capital symbol")
    return token.text


def _nodes(reader: Reader, section: str) -> list[PatternNode]:
    reader.expect("{")
    nodes = []
    while not reader.accept("}"):
        nodes.append(_pattern_node(reader))
        if len(nodes) > MAX_PATTERN_NODES:
            raise reader.error(f"{section} has more than {MAX_PATTERN_NODES} lines")
    if not nodes:
        raise reader.error(f"{section} is empty")
    return nodes


def _pattern_node(reader: Reader) -> PatternNode:
    results = [reader.value_name()]
    while reader.accept(","):
        results.append(reader.value_name())
    reader.expect("=")
    if reader.token.kind == "value":
        return PatternNode(tuple(results), "", (reader.value_name(),), (), (), False)
    op = reader.kind("name").text
    operands, optional = _pattern_operands(reader)
    attributes, anything = _pattern_attributes(reader)
    return PatternNode(
        tuple(results), op, tuple(operands), tuple(optional), tuple(attributes), anything
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
        name = reader.kind("name").text
        reader.expect("(")
        arguments: list[str | Expression] = []
        while not reader.accept(")"):
            if reader.token.kind == "value":
                arguments.append("%" + reader.value_name())
            else:
                arguments.append(parse_expression(reader))
            if not reader.peek(")"):
                reader.expect(",")
        conditions.append(Condition(name, tuple(arguments)))
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


def _values(reader: Reader) -> tuple[str, tuple[Any, ...]]:
    name = reader.kind("variable").text
    reader.expect("in")
    values = reader.attribute()
    if not isinstance(values, tuple) or not values:
        raise reader.error(f"{name} needs a list of values", remedy="write in (1, 2)")
    return name, values


def _validate(pattern: Pattern) -> None:
    from tkcc.ir.rewrite.conditions import check_condition

    given = {name for name, _ in pattern.given}
    defined = _check_lines(pattern.match, set(given), "match")
    if not pattern.outputs:
        raise RuleError("replace redefines no value of match", remedy="define what is replaced")
    _check_lines(pattern.replace, set(defined), "replace", redefine=set(pattern.outputs))
    _check_connected(pattern, given)
    for condition in pattern.conditions:
        check_condition(condition, defined)
    if pattern.kind == "approximate" and not pattern.error > 0:
        raise RuleError("an approximate rule states its error", remedy="add: error 0.01")


def _check_lines(
    nodes: tuple[PatternNode, ...], known: set[str], section: str, redefine: set[str] | None = None
) -> set[str]:
    fresh: set[str] = set()
    for node in nodes:
        for name in (*node.operands, *(value for _, value in node.optional)):
            if name not in known and name not in fresh:
                raise RuleError(f"{section}: %{name} is not defined", remedy="list it in given")
        if node.op:
            _check_attributes(node, section)
        elif section == "match":
            raise RuleError("match: a line needs an op", remedy="write %y = op(%x)")
        for name in node.results:
            if name in fresh or (name in known and name not in (redefine or ())):
                raise RuleError(f"{section}: %{name} is defined twice", remedy="choose other names")
            fresh.add(name)
    return known | fresh


def _check_attributes(node: PatternNode, section: str) -> None:
    definition = lookup(node.op)  # raises for an unknown op
    if definition.regions or node.op in ("cond", "group"):
        raise RuleError(f"{section}: {node.op} has regions", remedy="write a Python rule")
    known = definition.attributes
    if node.op.startswith("lax."):
        return
    unknown = [key for key, _ in node.attributes if key not in known]
    if unknown:
        raise RuleError(f"{section}: {node.op} has no attribute {unknown}", remedy=f"{list(known)}")
    given = {key for key, _ in node.attributes}
    missing = [k for k, v in known.items() if v is REQUIRED and k not in given]
    if missing and not node.any_attributes:
        raise RuleError(f"{section}: {node.op} needs {missing}", remedy="bind it: {name=$name}")
    extra = [key for key, _ in node.optional if key not in definition.optional]
    if extra:
        raise RuleError(f"{section}: {node.op} has no operand {extra}", remedy="")


def _check_connected(pattern: Pattern, given: set[str]) -> None:
    """Every pattern node must be reachable from the anchor over shared values."""
    reached = {pattern.anchor}
    frontier = [pattern.anchor]
    while frontier:
        names = _names(pattern.match[frontier.pop()])
        for index, node in enumerate(pattern.match):
            if index not in reached and names & _names(node):
                reached.add(index)
                frontier.append(index)
    if len(reached) < len(pattern.match):
        raise RuleError("the match is not connected", remedy="its lines must share values")


def _names(node: PatternNode) -> set[str]:
    return {*node.results, *node.operands, *(value for _, value in node.optional)}


__all__ = [
    "Condition",
    "ParseError",
    "Pattern",
    "PatternNode",
    "TypePattern",
    "parse_rules",
]
