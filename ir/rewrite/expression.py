"""The small expressions of rules: numbers, dtypes, tuples, `$variables`, symbols, arithmetic.

Expressions are parsed to a tree of tuples and evaluated over bindings; nothing else can be said in
them (no calls but dim, rank and bytes; no loops), so a rule cannot run code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tkcc.ir.attributes import DType
from tkcc.ir.errors import RuleError
from tkcc.ir.text.lexer import Reader
from tkcc.ir.types import TensorType

_FUNCTIONS = {"dim": 2, "rank": 1, "bytes": 1, "dtype": 1}
_MAX_INTEGER = 1 << 62


@dataclasses.dataclass(frozen=True)
class Expression:
    """`kind` is literal, variable, symbol, tuple, call or an operator; `parts` are its pieces."""

    kind: str
    parts: tuple[Any, ...]

    def names(self) -> set[str]:
        """The `$variables` and symbols that it reads."""
        if self.kind in ("variable", "symbol"):
            return {self.parts[0]}
        found: set[str] = set()
        for part in self.parts:
            if isinstance(part, Expression):
                found |= part.names()
        return found


def parse_expression(reader: Reader) -> Expression:
    """`sum := product (('+'|'-') product)*`"""
    reader.enter()
    left = _product(reader)
    while reader.peek("+") or reader.peek("-"):
        operator = reader.next().text
        left = Expression(operator, (left, _product(reader)))
    reader.leave()
    return left


def _product(reader: Reader) -> Expression:
    left = _atom(reader)
    while reader.peek("*") or reader.peek("/"):
        operator = reader.next().text
        if operator == "/":
            reader.expect("/")
            operator = "//"
        left = Expression(operator, (left, _atom(reader)))
    return left


def _atom(reader: Reader) -> Expression:
    token = reader.token
    if token.kind == "variable":
        return Expression("variable", (reader.next().text,))
    if token.text == "(":
        return _parenthesis(reader)
    if token.kind == "name" and token.text in _FUNCTIONS and reader.peek("(", 1):
        return _call(reader)
    if token.kind == "name" and is_symbol(token.text) and not reader.peek("(", 1):
        return Expression("symbol", (reader.next().text,))
    return Expression("literal", (reader.attribute(),))


def is_symbol(name: str) -> bool:
    """Symbols (sizes and dtypes) are capital letters and digits: `K`, `T`, `N2`."""
    return name[0].isupper() and name.isupper() and "." not in name


def _parenthesis(reader: Reader) -> Expression:
    reader.expect("(")
    items, comma = [], False
    while not reader.accept(")"):
        items.append(parse_expression(reader))
        if not reader.peek(")"):
            reader.expect(",")
            comma = True
    if len(items) == 1 and not comma:
        return items[0]
    return Expression("tuple", tuple(items))


def _call(reader: Reader) -> Expression:
    name = reader.next().text
    reader.expect("(")
    value = reader.value_name()
    extra = []
    while reader.accept(","):
        extra.append(parse_expression(reader))
    reader.expect(")")
    if len(extra) + 1 != _FUNCTIONS[name]:
        raise reader.error(f"{name} takes {_FUNCTIONS[name]} arguments")
    return Expression("call", (name, value, *extra))


def evaluate_expression(
    expression: Expression, bindings: Mapping[str, Any], types: Mapping[str, TensorType]
) -> Any:
    """The expression's value. `types` maps the rule's value names to types. Raises RuleError."""
    kind, parts = expression.kind, expression.parts
    if kind == "literal":
        return parts[0]
    if kind in ("variable", "symbol"):
        if parts[0] not in bindings:
            raise RuleError(f"{parts[0]} is not bound", remedy="bind it in the match or in given")
        return bindings[parts[0]]
    if kind == "tuple":
        return tuple(evaluate_expression(part, bindings, types) for part in parts)
    if kind == "call":
        return _evaluate_call(parts, bindings, types)
    left, right = (evaluate_expression(part, bindings, types) for part in parts)
    return _arithmetic(kind, left, right)


def _arithmetic(operator: str, left: Any, right: Any) -> Any:
    if isinstance(left, tuple) and isinstance(right, tuple) and operator == "+":
        return left + right
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (left, right)):
        raise RuleError(f"cannot compute {left!r} {operator} {right!r}", remedy="use numbers")
    if operator == "//":
        if right == 0:
            raise RuleError("division by zero in a rule", remedy="add a condition")
        return left // right
    result = {"+": left + right, "-": left - right, "*": left * right}[operator]
    if isinstance(result, int) and abs(result) > _MAX_INTEGER:
        raise RuleError(f"{left} {operator} {right} is too large", remedy="keep sizes below 2^62")
    return result


def _evaluate_call(
    parts: tuple[Any, ...], bindings: Mapping[str, Any], types: Mapping[str, TensorType]
) -> Any:
    name, value, *rest = parts
    if value not in types:
        raise RuleError(f"%{value} is not defined here", remedy="name a value of given or match")
    type_ = types[value]
    if name == "dim":
        index = evaluate_expression(rest[0], bindings, types)
        if not isinstance(index, int) or not -type_.rank <= index < type_.rank:
            raise RuleError(f"dim(%{value}, {index}) is out of range for {type_}")
        return type_.shape[index]
    return {"rank": type_.rank, "bytes": type_.bytes, "dtype": DType(type_.dtype)}[name]
