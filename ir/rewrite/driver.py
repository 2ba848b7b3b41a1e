"""Apply rules to modules: one rule at chosen sites, or many rules to a fixed point.

A site is a place in the module as it was before the rule ran: `decode/12.0/5` is node 5 of
region 0 of node 12 of function `decode`. A module rule has the site `*`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tkcc.ir.errors import IRError, RuleError
from tkcc.ir.graph import PARAMETER, Function, Module, Node, Value
from tkcc.ir.passes.clean import remove_dead
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import ModuleRule, NodeRule, Options, Replacement, Rule
from tkcc.ir.text.printer import node_text

MODULE_SITE = "*"


@dataclasses.dataclass(frozen=True)
class Event:
    """One rewrite: number, rule, site, model path, and the nodes it added as text."""

    number: int
    rule: str
    site: str
    path: str
    after: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.number:4d}  {self.rule:28s} {self.site:24s} {self.path}"


@dataclasses.dataclass
class Log:
    """What fired, in order. `limit` stops after that many rewrites (None: no limit).

    `on_event` is called after each rewrite, `on_module` with the module after each step.
    """

    events: list[Event] = dataclasses.field(default_factory=list)
    limit: int | None = None
    on_event: Callable[[Event], None] | None = None
    on_module: Callable[[str, Module], None] | None = None

    @property
    def full(self) -> bool:
        return self.limit is not None and len(self.events) >= self.limit

    def record(self, rule: Rule, site: str, path: str, added: Sequence[Node]) -> None:
        event = Event(len(self.events) + 1, rule.name, site, path, tuple(map(_shown, added)))
        self.events.append(event)
        if self.on_event is not None:
            self.on_event(event)


def _shown(node: Node) -> str:
    names: dict[Value, str] = {}
    for value in (*node.operands, *node.results):
        names.setdefault(value, value.name or f"v{len(names)}")
    return node_text(node, names)


def rewrite(
    module: Module, rules: Iterable[Rule], log: Log | None = None, max_rewrites: int = 1_000_000
) -> Module:
    """Apply node rules wherever they match, until none does. Returns the changed module.

    `max_rewrites` bounds rules that undo each other: past it, RuleError.
    """
    log = log if log is not None else Log()
    chosen = [rule for rule in rules if isinstance(rule, NodeRule)]
    pass_ = _Pass(chosen, log, max_rewrites)
    functions = {}
    for name, function in module.functions.items():
        functions[name] = pass_.function(function, name, function.inputs_of(PARAMETER))
    changed = module.replace(functions=functions)
    if log.on_module is not None:
        log.on_module("rewrite to a fixed point", changed)
    return changed


def apply_rule(
    module: Module,
    rule: Rule,
    sites: Collection[str] | None = None,
    options: Options | None = None,
    log: Log | None = None,
) -> tuple[Module, list[str]]:
    """Apply one rule once at each of `sites` (None: wherever it matches).

    Returns the module and the sites where it fired. Nodes that the rule itself adds are not
    visited. Raises RuleError if the rule does not apply at a requested site, unless the log's
    limit came first.
    """
    log = log if log is not None else Log()
    chosen = rule.resolve(options)
    if isinstance(rule, ModuleRule):
        return _apply_module_rule(module, rule, sites, chosen, log)
    assert isinstance(rule, NodeRule)
    step = _Step(rule, chosen, log, None if sites is None else set(sites))
    functions = {}
    for name, function in module.functions.items():
        functions[name] = step.function(function, name, function.inputs_of(PARAMETER))
    if step.wanted and not log.full:
        raise _no_match(rule, step.wanted, step.fired)
    changed = module.replace(functions=functions)
    if log.on_module is not None and step.fired:
        log.on_module(rule.name, changed)
    return changed, step.fired


def find_sites(module: Module, rule: Rule, options: Options | None = None) -> list[str]:
    """Where the rule matches now (it is tried on a copy)."""
    return apply_rule(module, rule, None, options)[1]


def _apply_module_rule(
    module: Module, rule: ModuleRule, sites: Collection[str] | None, options: Options, log: Log
) -> tuple[Module, list[str]]:
    wanted = {MODULE_SITE} if sites is None else set(sites)
    if log.full or not wanted:
        return module, []
    changed = rule.apply(module, options) if wanted == {MODULE_SITE} else None
    if changed is None and sites is not None:
        raise _no_match(rule, wanted, [])
    if changed is None:
        return module, []
    log.record(rule, MODULE_SITE, "", ())
    if log.on_module is not None:
        log.on_module(rule.name, changed)
    return changed, [MODULE_SITE]


def _no_match(rule: Rule, wanted: Collection[str], fired: Sequence[str]) -> RuleError:
    return RuleError(
        f"rule {rule.name} has no match at {sorted(wanted)}",
        remedy=f"it fired at {list(fired)}; list its sites with find_sites",
    )


def region_parameters(
    node: Node, region: Function, number: int, is_parameter: Callable[[Value], bool]
) -> list[Value]:
    """The region's inputs that hold parameters (or slices of stacked ones)."""
    operands: Sequence[Value] = node.operands
    carried: Collection[int] = ()
    if node.op == "scan":
        consts, carry = node.attribute("consts"), node.attribute("carry")
        carried = range(consts, consts + carry)
    elif node.op == "while":
        first, second = node.attribute("condition_consts"), node.attribute("body_consts")
        rest = operands[first + second :]
        operands = (*operands[:first], *rest) if number == 0 else operands[first:]
        own = first if number == 0 else second
        carried = range(own, own + len(rest))
    elif node.op == "cond":
        operands = operands[1:]
    elif node.op != "group":
        return []
    return [
        inner
        for i, (outer, inner) in enumerate(zip(operands, region.inputs, strict=True))
        if i not in carried and is_parameter(outer)
    ]


class _Walker:
    """Walks functions and regions; subclasses say what to do in one function."""

    def function(self, function: Function, site: str, parameters: Collection[Value]) -> Function:
        editor = Editor(function, parameters)
        changed = self._regions(editor, function, site)
        changed = self.edit(editor, site) or changed
        return remove_dead(_frozen(editor, site)) if changed else function

    def _regions(self, editor: Editor, function: Function, site: str) -> bool:
        changed = False
        for index, node in enumerate(function.nodes):
            if not node.regions or node.op == "group" or node.op.startswith("lax."):
                continue  # a group is one kernel already; a primitive's regions are its own
            regions = []
            for number, region in enumerate(node.regions):
                inner = region_parameters(node, region, number, editor.is_parameter)
                regions.append(self.function(region, f"{site}/{index}.{number}", inner))
            if any(a is not b for a, b in zip(regions, node.regions, strict=True)):
                editor.replace_node(node, node.replace(regions=tuple(regions)))
                changed = True
        return changed

    def edit(self, editor: Editor, site: str) -> bool:
        raise AssertionError("abstract")


def _frozen(editor: Editor, site: str) -> Function:
    try:
        return editor.freeze()
    except IRError as error:
        raise RuleError(error.what, where=f"in {site}", remedy=error.remedy) from error


def _attempt(
    rule: NodeRule, options: Options, editor: Editor, node: Node, site: str, log: Log
) -> list[Node] | None:
    """Try one rule at one node; the nodes it added, or None."""
    number = len(log.events) + 1
    editor.at(node, f"{rule.name}#{number}")
    try:
        replacement = _effective(rule.rewrite(editor, node, options))
        editor.replace_all(replacement)
    except IRError as error:
        raise RuleError(
            f"rule {rule.name} built an ill-typed node: {error.what}",
            where=f"at {site}\n{error.where}",
            remedy="mend the rule's conditions or replacement",
        ) from error
    except RuleError as error:
        raise RuleError(error.what, where=f"at {site}", remedy=error.remedy) from error
    added = list(editor.added)
    for made in reversed(added):
        if editor.holds(made):
            editor.drop_if_dead(made.results[0])
    if not replacement:
        return None
    log.record(rule, site, node.source.path, added)
    return [editor.current(made) for made in added if editor.holds(made)]


def _effective(replacement: Replacement | None) -> Replacement:
    """The replacement without values that stay what they are."""
    return {old: new for old, new in (replacement or {}).items() if old is not new}


class _Step(_Walker):
    """One rule, once per original node."""

    def __init__(
        self, rule: NodeRule, options: dict[str, Any], log: Log, wanted: set[str] | None
    ) -> None:
        self.rule, self.options, self.log = rule, options, log
        self.everywhere, self.wanted = wanted is None, wanted or set()
        self.fired: list[str] = []

    def edit(self, editor: Editor, site: str) -> bool:
        changed = False
        for index, node in enumerate(editor.function.nodes):
            place = f"{site}/{index}"
            if node.op not in self.rule.roots or self.log.full or not editor.holds(node):
                continue
            if not self.everywhere and place not in self.wanted:
                continue
            current = editor.current(node)
            if _attempt(self.rule, self.options, editor, current, place, self.log) is not None:
                self.fired.append(place)
                self.wanted.discard(place)
                changed = True
        return changed


class _Pass(_Walker):
    """Many rules with a worklist, to a fixed point."""

    def __init__(self, rules: Sequence[NodeRule], log: Log, max_rewrites: int) -> None:
        self.by_root: dict[str, list[tuple[NodeRule, dict[str, Any]]]] = {}
        for rule in rules:
            for root in rule.roots:
                self.by_root.setdefault(root, []).append((rule, rule.resolve(None)))
        self.log, self.left = log, max_rewrites

    def edit(self, editor: Editor, site: str) -> bool:
        places = {node.results[0]: f"{site}/{i}" for i, node in enumerate(editor.function.nodes)}
        changed = False
        while self._sweep(editor, places, site):
            changed = True
        return changed

    def _sweep(self, editor: Editor, places: dict[Value, str], site: str) -> bool:
        """Visit every node, and what rewrites add and its readers; whether a rule fired."""
        queue = deque(node for node in editor.nodes() if node.op in self.by_root)
        waiting = {node.results[0] for node in queue}
        changed = False
        while queue and not self.log.full:
            node = queue.popleft()
            waiting.discard(node.results[0])
            if not editor.holds(node):
                continue
            added = self._try_rules(editor, editor.current(node), places, site)
            if added is None:
                continue
            changed = True
            for made in self._around(editor, added):
                if made.results[0] not in waiting and made.op in self.by_root:
                    waiting.add(made.results[0])
                    queue.append(made)
        return changed

    def _try_rules(
        self, editor: Editor, node: Node, places: dict[Value, str], site: str
    ) -> list[Node] | None:
        for rule, options in self.by_root.get(node.op, ()):
            place = places.get(node.results[0], f"{site}/new")
            added = _attempt(rule, options, editor, node, place, self.log)
            if added is not None:
                self.left -= 1
                if self.left < 0:
                    raise RuleError(
                        f"rules do not come to rest (last: {rule.name})",
                        remedy="leave out rules that undo each other",
                    )
                return added
        return None

    @staticmethod
    def _around(editor: Editor, added: Sequence[Node]) -> list[Node]:
        """The added nodes and their near readers, which may match now."""
        found = {node.results[0]: node for node in added}
        frontier = list(added)
        for _ in range(3):
            frontier = [u for node in frontier for v in node.results for u in editor.users(v)]
            frontier = [node for node in frontier if node.results[0] not in found]
            found.update({node.results[0]: node for node in frontier})
        return list(found.values())
