"""Match a pattern at an anchor node, with a bounded number of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tkcc.ir.attributes import DType, freeze
from tkcc.ir.errors import RuleError
from tkcc.ir.graph import Node, Value
from tkcc.ir.op import lookup
from tkcc.ir.rewrite.conditions import holds
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.expression import Expression, evaluate_expression
from tkcc.ir.rewrite.records import Pattern, PatternNode, TypePattern
from tkcc.ir.types import TensorType

# A pattern of n nodes needs about n steps where it matches; far more means that it enumerates
# the readers of a widely read value again and again.
MAX_STEPS = 5_000


@dataclasses.dataclass
class Match:
    """What a pattern's names stand for: values, and symbols and `$variables`.

    `pending` are attributes whose wanted value reads names that are bound later.
    """

    values: dict[str, Value]
    bindings: dict[str, Any]
    nodes: tuple[Node, ...]
    pending: tuple[tuple[Expression, Any], ...] = ()


class _Search:
    def __init__(self, pattern: Pattern, editor: Editor, options: Mapping[str, Any]) -> None:
        self.pattern, self.editor = pattern, editor
        self.given = dict(pattern.given)
        self.options = options
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise RuleError(
                f"rule {self.pattern.name} needs more than {MAX_STEPS} steps to match one node",
                remedy="tie its lines together by values that few nodes read",
            )

    def run(self, anchor: Node) -> Iterator[Match]:
        start = Match({}, dict(self.options), ())
        todo = [i for i in range(len(self.pattern.match)) if i != self.pattern.anchor]
        for match in self.bind(self.pattern.match[self.pattern.anchor], anchor, start):
            yield from self.extend(match, todo)

    def extend(self, match: Match, todo: list[int]) -> Iterator[Match]:
        if not todo:
            if self.lets_hold(match) and self.conditions_hold(match):
                yield match
            return
        index, candidates = self.next_node(match, todo)
        rest = [i for i in todo if i != index]
        for node in candidates:
            self.step()
            if any(node is used for used in match.nodes):
                continue
            for extended in self.bind(self.pattern.match[index], node, match):
                yield from self.extend(extended, rest)

    def lets_hold(self, match: Match) -> bool:
        return all(_ties(name, size, match.bindings) for name, size in self.pattern.lets)

    def conditions_hold(self, match: Match) -> bool:
        types = {name: value.type for name, value in match.values.items()}
        return all(
            _equals(wanted, value, match.bindings, types) for wanted, value in match.pending
        ) and all(
            holds(condition, self.editor, match.values, match.bindings)
            for condition in self.pattern.conditions
        )

    def next_node(self, match: Match, todo: list[int]) -> tuple[int, list[Node]]:
        """The next pattern node and the graph nodes it may be: a definition if one is known."""
        for index in todo:
            for name in self.pattern.match[index].results:
                if name in match.values:
                    node = self.editor.node_of(match.values[name])
                    return index, [node] if node is not None else []
        best: tuple[int, Value] | None = None
        fewest = 0
        for index in todo:
            line = self.pattern.match[index]
            for name in line.read:
                if name in match.values:
                    count = self.editor.count_users_with_op(match.values[name], line.op)
                    if best is None or count < fewest:
                        best, fewest = (index, match.values[name]), count
        assert best is not None, "patterns are connected"
        index, value = best
        return index, self.editor.users_with_op(value, self.pattern.match[index].op)

    def bind(self, line: PatternNode, node: Node, match: Match) -> Iterator[Match]:
        """The ways in which `line` can be `node`, given what is bound."""
        self.step()
        if node.op != line.op or len(node.results) != len(line.results):
            return
        if set(node.keys) != {key for key, _ in line.optional}:
            return
        found = self.bind_attributes(line, node, match.bindings)
        if found is None:
            return
        bindings, pending = found
        for order in self.orders(line, node):
            values = dict(match.values)
            pairs = [
                *zip(line.operands, order, strict=True),
                *zip(line.results, node.results, strict=True),
            ]
            pairs += [(name, _present(node, key)) for key, name in line.optional]
            bound = self.bind_values(pairs, values, dict(bindings))
            if bound is not None:
                yield Match(values, bound, (*match.nodes, node), (*match.pending, *pending))

    def orders(self, line: PatternNode, node: Node) -> list[tuple[Value, ...]]:
        positional = node.positional
        if len(positional) != len(line.operands):
            return []
        if lookup(node.op).commutative and len(positional) == 2:
            return [positional, positional[::-1]]
        return [positional]

    def bind_values(
        self, pairs: list[tuple[str, Any]], values: dict[str, Value], bindings: dict[str, Any]
    ) -> dict[str, Any] | None:
        for name, value in pairs:
            if name in values:
                if values[name] is not value:
                    return None
                continue
            values[name] = value
            wanted = self.given.get(name)
            if wanted is not None and not bind_type(wanted, value.type, bindings):
                return None
        return bindings

    def bind_attributes(
        self, line: PatternNode, node: Node, bindings: dict[str, Any]
    ) -> tuple[dict[str, Any], list[tuple[Expression, Any]]] | None:
        bindings, pending = dict(bindings), list[tuple[Expression, Any]]()
        mentioned = dict(line.attributes)
        defaults = lookup(node.op).attributes
        for key, value in node.attributes:
            wanted = mentioned.pop(key, None)
            if wanted is None:
                if not line.any_attributes and not _is_default(defaults, key, value):
                    return None
            elif not _bind_expression(wanted, value, bindings, pending):
                return None
        return (bindings, pending) if not mentioned else None


def _ties(name: str, expression: Expression, bindings: dict[str, Any]) -> bool:
    """Whether `let name = expression` holds; binds the name, or the free size, if it can."""
    try:
        if not _solve(bindings.get(name), expression, bindings):
            return False
        value = evaluate_expression(expression, bindings, {})
    except RuleError:
        return False  # a size that cannot be computed is nobody's
    return _same(bindings.setdefault(name, value), value)


def _solve(value: Any, expression: Expression, bindings: dict[str, Any]) -> bool:
    """Bind the one free size of `value = known * free`; False if no whole number does.

    That a let has this form was checked when the rule was read.
    """
    free = expression.names() - bindings.keys()
    if not free:
        return True
    known = evaluate_expression(expression.parts[0], bindings, {})
    whole = isinstance(value, int) and isinstance(known, int) and known != 0
    if not whole or value % known:
        return False
    bindings[free.pop()] = value // known
    return True


def _present(node: Node, key: str) -> Value:
    value = node.optional(key)
    assert value is not None, "keys were compared before"
    return value


def _is_default(defaults: Mapping[str, Any], key: str, value: Any) -> bool:
    return key in defaults and _same(freeze(defaults[key]), value)


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _bind_expression(
    wanted: Expression, value: Any, bindings: dict[str, Any], pending: list[tuple[Expression, Any]]
) -> bool:
    if wanted.kind in ("variable", "symbol"):
        name = wanted.parts[0]
        return _same(bindings.setdefault(name, value), value)
    if wanted.kind == "tuple" and isinstance(value, tuple):
        return len(wanted.parts) == len(value) and all(
            _bind_expression(part, item, bindings, pending)
            for part, item in zip(wanted.parts, value, strict=True)
        )
    if wanted.names() <= bindings.keys() and not wanted.values():
        return _equals(wanted, value, bindings, {})
    pending.append((wanted, value))
    return True


def _equals(
    wanted: Expression,
    value: Any,
    bindings: Mapping[str, Any],
    types: Mapping[str, TensorType],
) -> bool:
    """Whether `value` is what the expression gives; what cannot be computed is no value's equal."""
    try:
        return _same(evaluate_expression(wanted, bindings, types), value)
    except RuleError:
        return False


def bind_type(wanted: TypePattern, type_: TensorType, bindings: dict[str, Any]) -> bool:
    """Bind the symbols of `wanted` so that it is `type_`; False if it cannot be."""
    if wanted.dtype[0].isupper():
        if bindings.setdefault(wanted.dtype, DType(type_.dtype)) != DType(type_.dtype):
            return False
    elif wanted.dtype != type_.dtype:
        return False
    count = len(wanted.sizes)
    if type_.rank < count or (type_.rank > count and not wanted.lead):
        return False
    lead = type_.shape[: type_.rank - count]
    if wanted.lead and bindings.setdefault(wanted.lead, lead) != lead:
        return False
    for size, actual in zip(wanted.sizes, type_.shape[type_.rank - count :], strict=True):
        known = size if isinstance(size, int) else bindings.setdefault(size, actual)
        if known != actual:
            return False
    return True


def find_matches(
    pattern: Pattern, editor: Editor, anchor: Node, options: Mapping[str, Any] | None = None
) -> Iterator[Match]:
    """Matches of the pattern whose anchor is `anchor`. Raises RuleError past MAX_STEPS steps."""
    return _Search(pattern, editor, options or {}).run(anchor)
