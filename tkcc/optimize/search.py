"""Which rewrites to try: each rule alone, then what won, joined greedily."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from tkcc.candidate import Candidate, Step, Workload, extend
from tkcc.ir.graph import Module
from tkcc.ir.hashing import module_hash
from tkcc.ir.rewrite.rule import EXACT, Rule, all_rules


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
    """Every rule with every choice of options. Groups are left out: on the general path they
    change nothing, and kernels that would use them are chosen by a schedule."""
    found = []
    for name, rule in all_rules("rewrite").items():
        if name.startswith("group_") or (rule.kind != EXACT and not approximate):
            continue
        found += [Move(name, choice) for choice in _choices(rule)]
    return found


def _choices(rule: Rule) -> Iterator[tuple[tuple[str, Any], ...]]:
    keys = list(rule.options)
    for values in itertools.product(*(rule.options[key] for key in keys)):
        yield tuple(zip(keys, values, strict=True))


def apply_move(base: Proposal, move: Move) -> Proposal | None:
    """The proposal with one more rule, or None if the rule does not apply there."""
    module, step = extend(base.module, move.rule, dict(move.options))
    return None if step is None else Proposal(module, (*base.steps, step))
