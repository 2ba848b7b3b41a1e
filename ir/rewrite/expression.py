"""The small expressions of rules: numbers, dtypes, tuples, `$variables`, symbols, arithmetic.

Expressions are parsed to a tree of tuples and evaluated over bindings; nothing else can be said in
them (no calls but dim, rank, bytes and dtype; no loops), so a rule cannot run code.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from tkcc.ir.attributes import DType
from tkcc.ir.errors import RuleError
from tkcc.ir.text.lexer import Reader
from tkcc.ir.types import TensorType

_FUNCTIONS = {"dim": 2, "rank": 1, "bytes": 1, "dtype": 1}
_SYMBOL = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
MAX_EXPRESSION_DEPTH = 64
MAX_TUPLE = 64
_MAX_INTEGER = 1 << 62


@dataclasses.dataclass(frozen=True)
class Expression:
    """`kind` is literal, variable, symbol, tuple, call or an operator; `parts` are its pieces."""

    kind: str
    parts: tuple[Any, ...]
    depth: int = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        deepest = max((piece.depth for piece in self.pieces), default=0)
        object.__setattr__(self, "depth", 1 + deepest)

    @property
    def pieces(self) -> tuple[Expression, ...]:
        return tuple(part for part in self.parts if isinstance(part, Expression))

    def names(self) -> set[str]:
        """The `$variables` and symbols that it reads."""
        own = {self.parts[0]} if self.kind in ("variable", "symbol") else set()
        return own.union(*(piece.names() for piece in self.pieces))

    def values(self) -> set[str]:
        """The names of the values whose types it asks for: x in `dim(%x, 0)`."""
        own = {self.parts[1]} if self.kind == "call" else set()
        return own.union(*(piece.values() for piece in self.pieces))


def parse_expression(reader: Reader) -> Expression:
    """`sum := product (('+'|'-') product)*`. Raises ParseError."""
    reader.enter()
    left = _product(reader)
    while reader.peek("+") or reader.peek("-"):
        operator = reader.next().text
        left = _joined(reader, operator, left, _product(reader))
    reader.leave()
    return left


def _product(reader: Reader) -> Expression:
    left = _atom(reader)
    while reader.peek("*") or reader.peek("/"):
        operator = reader.next().text
        if operator == "/":
            reader.expect("/")
            operator = "//"
        left = _joined(reader, operator, left, _atom(reader))
    return left


def _joined(reader: Reader, operator: str, left: Expression, right: Expression) -> Expression:
    joined = Expression(operator, (left, right))
    if joined.depth > MAX_EXPRESSION_DEPTH:
        raise reader.error(
            f"an expression deeper than {MAX_EXPRESSION_DEPTH}", remedy="name its parts with let"
        )
    return joined


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
    if token.kind == "name" and "-" in token.text and is_symbol(token.text.partition("-")[0]):
        raise reader.error(f"{token.text!r} is one word", remedy="write spaces around the minus")
    return _literal(reader)


def _literal(reader: Reader) -> Expression:
    at = reader.token.at
    value = reader.attribute()
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        raise reader.error("a number is too large", at, "keep whole numbers below 2^62")
    return Expression("literal", (value,))


def is_symbol(name: str) -> bool:
    """Symbols (sizes and dtypes) are capital letters and digits: `K`, `T`, `N2`."""
    return _SYMBOL.fullmatch(name) is not None


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
    at = reader.token.at
    name = reader.next().text
    reader.expect("(")
    value = reader.value_name()
    extra = []
    while reader.accept(","):
        extra.append(parse_expression(reader))
    reader.expect(")")
    if len(extra) + 1 != _FUNCTIONS[name]:
        raise reader.error(f"{name} takes {_FUNCTIONS[name]} arguments", at, "as in dim(%x, -1)")
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
        return _bounded_tuple(left + right)
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


def _bounded_tuple(joined: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(joined) > MAX_TUPLE:
        raise RuleError(f"a tuple of {len(joined)} items", remedy=f"at most {MAX_TUPLE}")
    return joined


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
            raise RuleError(
                f"dim(%{value}, {index}) is out of range for {type_}",
                remedy="name a dimension that it has",
            )
        return type_.shape[index]
    return {"rank": type_.rank, "bytes": type_.bytes, "dtype": DType(type_.dtype)}[name]
