"""Shared by the tests of rewriting: rules and functions from text, and running functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.ir.samples import random_inputs
from tests.quick import quick_jit
from tests.tolerances import TOLERANCES
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Module, Node, Value
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.match import Match, find_matches
from tkcc.ir.rewrite.pattern import Pattern, parse_rules
from tkcc.ir.rewrite.rule import PatternRule
from tkcc.ir.text import parse_function


def pattern_of(text: str) -> Pattern:
    (pattern,) = parse_rules(text)
    return pattern


def rule_text(
    match: str,
    replace: str,
    *,
    given: str = "%x: T[*B, K]",
    more: str = "",
    kind: str = "exact",
    name: str = "example",
) -> str:
    """The text of a rule; `more` holds its other sections."""
    return (
        f"rule {name} {{\n  class {kind}\n  given {given}\n"
        f"  match {{ {match} }}\n  {more}\n  replace {{ {replace} }}\n}}\n"
    )


def rule_of(match: str, replace: str, **options: str) -> PatternRule:
    """The rule of `rule_text`."""
    return PatternRule.of(pattern_of(rule_text(match, replace, **options)))


def function_of(lines: str) -> Function:
    """A function from the lines between its braces."""
    return parse_function(f"func main {{\n{lines}\n}}")


def module_of(lines: str) -> Module:
    return Module({"main": function_of(lines)}, "example")


def named(function: Function) -> dict[str, Value]:
    """The function's values by name, regions left out."""
    values = [*function.inputs, *(v for node in function.nodes for v in node.results)]
    return {value.name: value for value in values}


def ops(function: Function) -> list[str]:
    return [node.op for node in function.nodes]


def matches(rule: PatternRule, function: Function, **options: Any) -> list[Match]:
    """All matches of the rule at any node of the function (regions left out)."""
    assert rule.pattern is not None
    editor = Editor(function)
    bound = {f"${key}": value for key, value in options.items()}
    found: list[Match] = []
    for node in editor.nodes_with_op(rule.roots[0]):
        found += find_matches(rule.pattern, editor, node, bound)
    return found


def node(function: Function, op: str, number: int = 0) -> Node:
    """The function's node of that number among those with the op."""
    return [item for item in function.nodes if item.op == op][number]


def run(function: Function, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The function's outputs, compiled as a whole; floats as float64."""
    return list(map(_plain, _compiled(function)(*inputs)))


@functools.lru_cache(maxsize=64)
def _compiled(function: Function) -> Callable[..., Any]:
    return quick_jit(lambda *xs: evaluate(function, xs))


def _plain(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def assert_same_results(
    before: Function, after: Function, *, error: float = 0.0, seed: int = 0
) -> None:
    """Equal types and, on random inputs, equal results.

    Integers are equal; a float differs by the tolerance of its dtype, plus `error`, relative to
    the largest value of its output.
    """
    assert [v.type for v in after.outputs] == [v.type for v in before.outputs]
    inputs = random_inputs(before, seed)
    for value, want, got in zip(
        before.outputs, run(before, inputs), run(after, inputs), strict=True
    ):
        assert_near(got, want, value.type.dtype, error)


def assert_near(got: Any, want: Any, dtype: str, error: float = 0.0) -> None:
    if dtype not in TOLERANCES:
        np.testing.assert_array_equal(got, want)
        return
    allowed = (TOLERANCES[dtype][0] + error) * max(1.0, float(np.max(np.abs(want), initial=0)))
    np.testing.assert_allclose(got, want, rtol=0, atol=allowed)
