"""What a run is told, what it reports on the way, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tkcc.candidate import Candidate
from tkcc.optimize.correctness import Verdict


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One candidate's way from proposal to verdict, with the seconds of each part."""

    title: str
    against: str
    outcome: str  # faster, not faster, undecided (time was up), wrong, failed, not tried
    reason: str
    speedup: float | None
    interval: tuple[float, float] | None
    milliseconds: tuple[float, float] | None  # medians per step: compared with, candidate
    verdict: Verdict | None
    seconds: dict[str, float]  # rewrite, compile, swap, check, measure


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run found. `speedup` is the final, confirmed one over the un-rewritten program."""

    candidate: Candidate
    speedup: float
    interval: tuple[float, float]
    milliseconds: tuple[float, float]
    confirmed: bool
    verdict: Verdict
    noise: tuple[float, float]
    experiments: tuple[Experiment, ...]
    provenance: str
    seconds: float

    def record(self) -> dict[str, Any]:
        """As plain data for JSON, which knows no infinity: an unbounded end is None."""
        plain = dataclasses.asdict(self)
        plain["candidate"] = self.candidate.model_dump()
        return {key: _finite(value) for key, value in plain.items()}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a run measures: seconds of budget, seconds per timed block, checked steps per prompt."""

    budget: float
    block_seconds: float = 0.25
    check_steps: int = 6
    check_prompts: int = 2  # sets of prompts that candidates are checked on while searching
    confirm_prompts: int = 4  # sets that only the winner is checked on
    max_kl: float | None = None

    @property
    def approximate(self) -> bool:
        return self.max_kl is not None


class Observer:
    """Hears of progress; the command line draws it."""

    def phase(self, text: str) -> None:
        """A new phase begins."""

    def experiment(self, experiment: Experiment, best: float) -> None:
        """An experiment ended; `best` is the incumbent's speed-up so far."""


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
