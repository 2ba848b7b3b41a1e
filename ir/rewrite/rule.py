"""Rules: data rules (patterns) and Python rules behind one interface, and their registry."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tkcc.ir.errors import IRError, RuleError
from tkcc.ir.graph import Function, Module, Node, Value
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.expression import evaluate_expression
from tkcc.ir.rewrite.match import Match, find_matches
from tkcc.ir.rewrite.pattern import parse_rules
from tkcc.ir.rewrite.records import Pattern, PatternNode

EXACT, APPROXIMATE = "exact", "approximate"
Options = Mapping[str, Any]

# What a rule did at a node: old value -> new value.
Replacement = dict[Value, Value]


@dataclasses.dataclass(frozen=True)
class Rule:
    """Base of all rules.

    `kind` is `exact` (same arithmetic, maybe reassociated) or `approximate`. `options` maps an
    option's name to its allowed values, the first being the default. `group` sorts rules in
    listings (`raise` rules recognise plain code and run on import).
    """

    name: str
    kind: str
    about: str
    options: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    group: str = "rewrite"

    def resolve(self, given: Options | None) -> dict[str, Any]:
        """Defaults plus `given`. Raises RuleError for an unknown option or value."""
        chosen = {key: values[0] for key, values in self.options.items()}
        for key, value in (given or {}).items():
            allowed = self.options.get(key)
            if allowed is None or value not in allowed:
                raise RuleError(
                    f"rule {self.name}: option {key}={value!r}",
                    remedy=f"its options are {dict(self.options)}",
                )
            chosen[key] = value
        return chosen


@dataclasses.dataclass(frozen=True)
class NodeRule(Rule):
    """A rule that starts at a node whose op is in `roots`."""

    roots: tuple[str, ...] = ()

    def rewrite(self, editor: Editor, node: Node, options: Options) -> Replacement | None:
        """New nodes through `editor.add`, and what they replace; None if it does not apply."""
        raise AssertionError("abstract")


@dataclasses.dataclass(frozen=True)
class PythonRule(NodeRule):
    """A node rule as a Python function."""

    function: Callable[..., Replacement | None] | None = None

    def rewrite(self, editor: Editor, node: Node, options: Options) -> Replacement | None:
        assert self.function is not None
        return self.function(editor, node, **options)


@dataclasses.dataclass(frozen=True)
class ModuleRule(Rule):
    """A rule over a whole module (it may change state or several functions)."""

    function: Callable[..., Module | None] | None = None

    def apply(self, module: Module, options: Options) -> Module | None:
        """The changed module, or None if the rule does not apply."""
        assert self.function is not None
        return self.function(module, **options)


@dataclasses.dataclass(frozen=True)
class PatternRule(NodeRule):
    """A data rule."""

    pattern: Pattern | None = None

    @staticmethod
    def of(pattern: Pattern, group: str = "rewrite") -> PatternRule:
        options = {name.removeprefix("$"): values for name, values in pattern.choices}
        root = pattern.match[pattern.anchor].op
        return PatternRule(
            pattern.name, pattern.kind, pattern.about, options, group, (root,), pattern
        )

    def rewrite(self, editor: Editor, node: Node, options: Options) -> Replacement | None:
        assert self.pattern is not None
        bound = {f"${key}": value for key, value in options.items()}
        for match in find_matches(self.pattern, editor, node, bound):
            if not self._makes_cycle(editor, match):
                return instantiate(self.pattern, editor, match)
        return None

    def _makes_cycle(self, editor: Editor, match: Match) -> bool:
        """Whether what the replacement reads depends on one of the values that it replaces."""
        assert self.pattern is not None
        replaced = [match.values[name] for name in self.pattern.outputs]
        read = [match.values[name] for name in self.pattern.suspects]
        if not any(map(editor.is_parameter, replaced)):
            read = [value for value in read if not editor.is_parameter(value)]
        return editor.depends_on(read, replaced)


def instantiate(pattern: Pattern, editor: Editor, match: Match) -> Replacement:
    """Build the replacement's nodes; old output -> new output. Raises IRError, RuleError."""
    values = dict(match.values)
    for line in pattern.replace:
        made = _instantiate_line(line, editor, match, values)
        values.update(zip(line.results, made, strict=True))
    return {match.values[name]: values[name] for name in pattern.outputs}


def _instantiate_line(
    line: PatternNode, editor: Editor, match: Match, values: Mapping[str, Value]
) -> tuple[Value, ...]:
    if not line.op:
        return (values[line.operands[0]],)
    types = {name: value.type for name, value in values.items()}
    attributes = {
        key: evaluate_expression(expression, match.bindings, types)
        for key, expression in line.attributes
    }
    results = editor.add(
        line.op,
        *(values[name] for name in line.operands),
        optional={key: values[name] for key, name in line.optional},
        attributes=attributes,
    )
    if len(results) != len(line.results):
        raise RuleError(
            f"{line.op} gives {len(results)} results, not {len(line.results)}",
            remedy="name each result in the rule's replacement",
        )
    return results


_RULES: dict[str, Rule] = {}


def register_rule(rule: Rule) -> Rule:
    """Add a rule to the registry. Raises RuleError if the name is taken."""
    if rule.name in _RULES:
        raise RuleError(f"rule {rule.name!r} exists already", remedy="choose another name")
    _RULES[rule.name] = rule
    return rule


def node_rule(
    *roots: str,
    kind: str = EXACT,
    group: str = "rewrite",
    name: str = "",
    options: Mapping[str, tuple[Any, ...]] | None = None,
) -> Callable[[Callable[..., Replacement | None]], PythonRule]:
    """Register a Python function `(editor, node, **options) -> {old: new} | None` as a rule."""

    def decorate(function: Callable[..., Replacement | None]) -> PythonRule:
        about = (function.__doc__ or "").strip()
        rule = PythonRule(
            name or function.__name__, kind, about, options or {}, group, roots, function
        )
        register_rule(rule)
        return rule

    return decorate


def module_rule(
    *,
    kind: str = EXACT,
    group: str = "rewrite",
    name: str = "",
    options: Mapping[str, tuple[Any, ...]] | None = None,
) -> Callable[[Callable[..., Module | None]], ModuleRule]:
    """Register a Python function `(module, **options) -> module | None` as a rule."""

    def decorate(function: Callable[..., Module | None]) -> ModuleRule:
        about = (function.__doc__ or "").strip()
        rule = ModuleRule(name or function.__name__, kind, about, options or {}, group, function)
        register_rule(rule)
        return rule

    return decorate


@functools.cache
def _load_built_in() -> None:
    import tkcc.ir.rules  # noqa: F401  (its Python rules register themselves)

    folder = importlib.resources.files("tkcc.ir.rules")
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        if file.name.endswith(".rules"):
            group = "raise" if file.name.startswith("raise") else "rewrite"
            for pattern in parse_rules(file.read_text(encoding="utf-8"), file.name):
                register_rule(PatternRule.of(pattern, group))


def all_rules(group: str | None = None) -> dict[str, Rule]:
    """Every registered rule by name, optionally of one group."""
    _load_built_in()
    return {name: r for name, r in sorted(_RULES.items()) if group is None or r.group == group}


def get_rule(name: str) -> Rule:
    """The rule of that name. Raises RuleError with near names."""
    import difflib

    rules = all_rules()
    if name not in rules:
        near = difflib.get_close_matches(name, rules, n=3, cutoff=0.3)
        raise RuleError(f"unknown rule {name!r}", remedy=f"did you mean {' or '.join(near) or '?'}")
    return rules[name]


def node_rules(rules: Iterable[Rule]) -> Sequence[NodeRule]:
    return [rule for rule in rules if isinstance(rule, NodeRule)]


__all__ = [
    "APPROXIMATE",
    "EXACT",
    "Function",
    "IRError",
    "ModuleRule",
    "NodeRule",
    "PatternRule",
    "PythonRule",
    "Replacement",
    "Rule",
    "all_rules",
    "get_rule",
    "module_rule",
    "node_rule",
    "register_rule",
]
