"""Which rewrites to try: each rule alone, then what won, joined greedily."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from tkcc.candidate import Candidate, Step, Workload, extend
from tkcc.ir.graph import Module
from tkcc.ir.hashing import module_hash
from tkcc.ir.rewrite.rule import EXACT, NodeRule, Rule, all_rules


@dataclasses.dataclass(frozen=True, eq=False)
class Proposal:
    """A module to try and the steps that lead to it."""

    module: Module
    steps: tuple[Step, ...]

    @property
    def hash(self) -> str:
        return self.steps[-1].module if self.steps else module_hash(self.module)

    def candidate(self, baseline: str, workload: Workload, target: str) -> Candidate:
        return Candidate(workload=workload, target=target, baseline=baseline, steps=self.steps)


@dataclasses.dataclass(frozen=True)
class Move:
    """One rule with one choice of its options."""

    rule: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={value}" for key, value in self.options)
        return f"{self.rule}({inner})" if inner else self.rule


def moves(approximate: bool) -> list[Move]:
    """Every rule with every choice of options, those that are likely to matter most first.

    Rules over loops and whole modules move the most bytes, so they come first; further choices of
    an option come last. Groups are left out: on the general path they change nothing, and kernels
    that would use them are chosen by a schedule.
    """
    found: list[tuple[int, bool, Move]] = []
    for name, rule in all_rules("rewrite").items():
        if name.startswith("group_") or (rule.kind != EXACT and not approximate):
            continue
        small = isinstance(rule, NodeRule) and "scan" not in rule.roots
        found += [(number, small, Move(name, c)) for number, c in enumerate(_choices(rule))]
    return [move for _, _, move in sorted(found, key=lambda item: item[:2])]


def _choices(rule: Rule) -> Iterator[tuple[tuple[str, Any], ...]]:
    keys = list(rule.options)
    for values in itertools.product(*(rule.options[key] for key in keys)):
        yield tuple(zip(keys, values, strict=True))


def join(baseline: Module, base: Proposal, move: Move) -> Proposal | None:
    """`base` with one more rule: after its steps, or else before them; None if it fits nowhere.

    Some rules fit only before others: a cache cannot be carried through a loop that is gone.
    """
    return _append(base, move.rule, dict(move.options)) or _prepend(baseline, base, move)


def _append(base: Proposal, rule: str, options: dict[str, Any]) -> Proposal | None:
    module, step = extend(base.module, rule, options)
    return None if step is None else Proposal(module, (*base.steps, step))


def _prepend(baseline: Module, base: Proposal, move: Move) -> Proposal | None:
    """The rule first, then the rules of `base` again, each wherever it fires now."""
    proposal = _append(Proposal(baseline, ()), move.rule, dict(move.options))
    for step in base.steps:
        if proposal is None:
            return None
        proposal = _append(proposal, step.rule, dict(step.options))
    return proposal if base.steps else None
