"""The fixed list of conditions that a rule may state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tkcc.ir.attributes import DType
from tkcc.ir.errors import RuleError
from tkcc.ir.graph import Value
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.expression import evaluate_expression
from tkcc.ir.rewrite.records import Condition
from tkcc.ir.types import TensorType

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


def check_condition(condition: Condition) -> None:
    """Raise RuleError unless the condition is known and has the right arguments."""
    shape = _SHAPES.get(condition.name)
    if shape is None:
        raise RuleError(f"unknown condition {condition.name!r}", remedy=f"use {condition_names()}")
    values, expressions = len(condition.values), len(condition.expressions)
    if values != shape[0] or (expressions != shape[1] and not (shape[1] < 0 < expressions)):
        wanted = "one or more" if shape[1] < 0 else shape[1]
        raise RuleError(
            f"{condition.name} has {values} values and {expressions} expressions",
            remedy=f"it takes {shape[0]} values and {wanted} expressions",
        )


def holds(
    condition: Condition, editor: Editor, values: Mapping[str, Value], bindings: Mapping[str, Any]
) -> bool:
    """Whether the condition holds for a match. Raises RuleError if it cannot be computed."""
    types = {name: value.type for name, value in values.items()}
    numbers = [evaluate_expression(e, bindings, types) for e in condition.expressions]
    return _TESTS[condition.name](editor, [values[name] for name in condition.values], numbers)


def holds_for_types(
    condition: Condition, types: Mapping[str, TensorType], bindings: Mapping[str, Any]
) -> bool:
    """Whether the condition holds, as far as the known `types` and the bindings tell."""
    if condition.name in _GRAPH_ONLY or not condition.named <= types.keys():
        return True
    numbers = [evaluate_expression(e, bindings, types) for e in condition.expressions]
    stand_ins = [Value(types[name]) for name in condition.values]
    return _TESTS[condition.name](None, stand_ins, numbers)


_GRAPH_ONLY = {"parameter", "not_parameter", "used_once", "constant", "distinct"}

_Test = Callable[[Any, list[Value], list[Any]], bool]


def _less(left: Any, right: Any) -> bool:
    """Only numbers are less than numbers: a `window` of none is not."""
    return _is_number(left) and _is_number(right) and bool(left < right)


def _divides(left: Any, right: Any) -> bool:
    whole = isinstance(left, int) and isinstance(right, int)
    return whole and left != 0 and right % left == 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
    "less": lambda _, __, n: _less(*n),
    "divides": lambda _, __, n: _divides(*n),
}
