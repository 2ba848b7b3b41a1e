"""The fixed list of conditions that a rule may state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tkcc.ir.attributes import DType
from tkcc.ir.errors import RuleError
from tkcc.ir.graph import Value
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.expression import Expression, evaluate_expression
from tkcc.ir.types import TensorType

if TYPE_CHECKING:
    from tkcc.ir.rewrite.pattern import Condition

# name -> (number of values, number of expressions; -1 for one or more)
_SHAPES: dict[str, tuple[int, int]] = {
    "parameter": (1, 0),
    "not_parameter": (1, 0),
    "used_once": (1, 0),
    "constant": (1, 0),
    "is_float": (1, 0),
    "same_type": (2, 0),
    "distinct": (2, 0),
    "dtype_in": (1, -1),
    "rank": (1, 1),
    "equal": (0, 2),
    "differ": (0, 2),
    "less": (0, 2),
    "divides": (0, 2),
}


def condition_names() -> list[str]:
    return sorted(_SHAPES)


def check_condition(condition: Condition, defined: set[str]) -> None:
    """Raise RuleError unless the condition is known and has the right arguments."""
    shape = _SHAPES.get(condition.name)
    if shape is None:
        raise RuleError(f"unknown condition {condition.name!r}", remedy=f"use {condition_names()}")
    values, expressions = _arguments(condition)
    right = len(values) == shape[0] and (
        len(expressions) == shape[1] or (shape[1] < 0 and expressions)
    )
    if not right:
        raise RuleError(
            f"{condition.name} has {len(values)} values and {len(expressions)} expressions",
            remedy=f"it takes {shape[0]} values and {max(shape[1], 1)} expressions",
        )
    undefined = [name for name in values if name not in defined]
    if undefined:
        raise RuleError(f"{condition.name}: %{undefined[0]} is not defined", remedy="see given")


def _arguments(condition: Condition) -> tuple[list[str], list[Expression]]:
    values = [a[1:] for a in condition.arguments if isinstance(a, str)]
    return values, [a for a in condition.arguments if isinstance(a, Expression)]


def holds(
    condition: Condition, editor: Editor, values: Mapping[str, Value], bindings: Mapping[str, Any]
) -> bool:
    """Whether the condition holds for a match."""
    names, expressions = _arguments(condition)
    types = {name: value.type for name, value in values.items()}
    numbers = [evaluate_expression(e, bindings, types) for e in expressions]
    return _TESTS[condition.name](editor, [values[name] for name in names], numbers)


def holds_for_types(
    condition: Condition, types: Mapping[str, TensorType], bindings: Mapping[str, Any]
) -> bool:
    """Whether the part of the condition that speaks of types and numbers holds."""
    names, expressions = _arguments(condition)
    if condition.name in _GRAPH_ONLY or any(name not in types for name in names):
        return True
    numbers = [evaluate_expression(e, bindings, types) for e in expressions]
    stand_ins = [Value(types[name]) for name in names]
    return _TESTS[condition.name](None, stand_ins, numbers)


_GRAPH_ONLY = {"parameter", "not_parameter", "used_once", "constant", "distinct"}

_Test = Callable[[Any, list[Value], list[Any]], bool]

_TESTS: dict[str, _Test] = {
    "parameter": lambda editor, v, _: editor.is_parameter(v[0]),
    "not_parameter": lambda editor, v, _: not editor.is_parameter(v[0]),
    "used_once": lambda editor, v, _: editor.use_count(v[0]) == 1,
    "constant": lambda editor, v, _: editor.constant(v[0]) is not None,
    "is_float": lambda _, v, __: v[0].type.is_float,
    "same_type": lambda _, v, __: v[0].type == v[1].type,
    "distinct": lambda _, v, __: v[0] is not v[1],
    "dtype_in": lambda _, v, n: DType(v[0].type.dtype) in n,
    "rank": lambda _, v, n: v[0].type.rank == n[0],
    "equal": lambda _, __, n: n[0] == n[1],
    "differ": lambda _, __, n: n[0] != n[1],
    "less": lambda _, __, n: n[0] < n[1],
    "divides": lambda _, __, n: n[0] != 0 and n[1] % n[0] == 0,
}
