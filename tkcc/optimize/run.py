"""One optimisation run: the loop of experiments, and its record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from tkcc.backends.base import Program
from tkcc.candidate import Candidate, Workload
from tkcc.ir.errors import BackendError
from tkcc.ir.hashing import module_hash
from tkcc.optimize.correctness import Reference, Verdict, check, references
from tkcc.optimize.search import Move, Proposal, join, moves
from tkcc.optimize.session import Session
from tkcc.optimize.timing import Comparison, compare

SEARCH_CONFIDENCE, FINAL_CONFIDENCE = 0.9, 0.99
ALONE_PAIRS, JOIN_PAIRS, FINAL_PAIRS = 6, 10, 24
MIN_GAIN = 1.01  # a winner's interval must lie above this, and above the noise
FINAL_SHARE = 0.25  # of the budget is kept for confirming the winner


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One candidate's way from proposal to verdict, with the seconds of each part."""

    title: str
    against: str
    outcome: str  # faster, not faster, wrong, failed
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
        """As plain data for JSON."""
        plain = dataclasses.asdict(self)
        plain["candidate"] = self.candidate.model_dump()
        return plain


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a run measures: seconds of budget, seconds per timed block, checked steps per prompt."""

    budget: float
    block_seconds: float = 0.4
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


class Optimizer:
    """Runs experiments in one session until the budget is spent or nothing is left to try."""

    def __init__(
        self,
        session: Session,
        workload: Workload,
        prompts: Sequence[Sequence[Sequence[int]]],
        plan: Plan,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert len(prompts) > plan.check_prompts, "some prompts are kept for confirming"
        self.session, self.workload, self.plan = session, workload, plan
        self.observer, self.clock = observer, clock
        self.prompts = prompts
        self.began = clock()
        self.experiments: list[Experiment] = []
        self.tried: dict[str, Experiment] = {}
        self.known: list[Reference] = []
        self.noise = (1.0, 1.0)
        self.block_steps = 1
        self.incumbent = Proposal(session.module, ())
        self.incumbent_program = session.baseline
        self.best = 1.0

    def run(self) -> Result:
        """Search, confirm, and return what was found. The winner is left in the slot."""
        self.observer.phase("reading prompts with the un-rewritten program")
        if self.session.runtime.program is not self.session.baseline:
            self.session.runtime.swap(self.session.baseline)
        self.known = self._references(self.prompts[: self.plan.check_prompts])
        self.observer.phase("measuring the noise: the program against itself")
        self._measure_noise()
        self._search()
        self.observer.phase("confirming the winner on prompts that the search did not see")
        return self._confirm()

    def _references(self, sets: Sequence[Sequence[Sequence[int]]]) -> list[Reference]:
        starts = [self.session.read(prompts) for prompts in sets]
        return references(self.session, starts, self.plan.check_steps)

    def _measure_noise(self) -> None:
        self.block_steps = self._calibrated()
        twin = self.session.compile(self.session.module)
        found = self._compare(self.session.baseline, twin, JOIN_PAIRS, lambda _: False)
        self.noise = found.interval(SEARCH_CONFIDENCE)

    def _calibrated(self) -> int:
        """Steps that take about `block_seconds`: enough to time, few enough to alternate often."""
        self.session.timed(self.known[0].start, 1)
        step = self.session.timed(self.known[0].start, 3)
        return max(1, min(self._room(), round(self.plan.block_seconds / step)))

    def _room(self) -> int:
        """Steps that fit into the caches after the longest prompt."""
        return self.session.shape.context - self.session.shape.prompt - 1

    def _left(self) -> float:
        """Seconds left for searching."""
        return self.plan.budget * (1 - FINAL_SHARE) - (self.clock() - self.began)

    # --- search --------------------------------------------------------------------------------

    def _search(self) -> None:
        everything = moves(self.plan.approximate)
        self.observer.phase("each rule alone")
        alone = {move: self._try(move) for move in everything}
        order = sorted(everything, key=lambda move: -_gain(alone[move]))
        self._take_best(order, alone)
        changed = True
        while changed and self._left() > 0:
            self.observer.phase(f"joining with the best so far ({self.best:.2f}x)")
            changed = False
            for move in order:
                if self._left() <= 0:
                    break
                changed = self._join(move) or changed

    def _try(self, move: Move) -> Experiment | None:
        """Experiment with a move on the baseline; None if it does not apply or time is up."""
        if self._left() <= 0:
            return None
        return self._experiment(Proposal(self.session.module, ()), move, self.session.baseline)[0]

    def _take_best(self, order: Sequence[Move], alone: dict[Move, Experiment | None]) -> None:
        """The best single winner becomes the incumbent."""
        best = alone[order[0]]
        if best is None or best.outcome != "faster":
            return
        proposal = join(self.session.module, self.incumbent, order[0])
        assert proposal is not None
        assert best.speedup is not None
        self._adopt(proposal, self.session.compile(proposal.module), best.speedup)

    def _join(self, move: Move) -> bool:
        """Try a move on top of the incumbent; adopt it if it is faster."""
        experiment, proposal, program = self._experiment(
            self.incumbent, move, self.incumbent_program
        )
        if experiment is None or experiment.outcome != "faster":
            return False
        assert proposal is not None
        assert program is not None
        assert experiment.speedup is not None
        self._adopt(proposal, program, self.best * experiment.speedup)
        return True

    def _adopt(self, proposal: Proposal, program: Program, speedup: float) -> None:
        self.incumbent, self.incumbent_program, self.best = proposal, program, speedup

    def _experiment(
        self, base: Proposal, move: Move, rival: Program
    ) -> tuple[Experiment | None, Proposal | None, Program | None]:
        """From a move to a verdict against `rival`; nothing if there is nothing new to try."""
        seconds: dict[str, float] = {}
        with _Stopwatch(seconds, "rewrite"):
            proposal = join(self.session.module, base, move)
        if proposal is None or proposal.hash in self.tried or proposal.hash == base.hash:
            return None, None, None
        against = base.candidate("", self.workload, "").title()
        try:
            with _Stopwatch(seconds, "compile"):
                program = self.session.compile(proposal.module)
            experiment = self._judge(move, against, program, rival, seconds)
        except BackendError as error:
            experiment = _failed(str(move), against, error.what, seconds)
            program = None
        self.tried[proposal.hash] = experiment
        self.experiments.append(experiment)
        self.observer.experiment(experiment, self.best)
        return experiment, proposal, program

    def _judge(
        self, move: Move, against: str, program: Program, rival: Program, seconds: dict[str, float]
    ) -> Experiment:
        with _Stopwatch(seconds, "swap"):
            self.session.runtime.swap(program)
        with _Stopwatch(seconds, "check"):
            verdict = self._check()
        if not verdict.right:
            return Experiment(
                str(move), against, "wrong", verdict.reason, None, None, None, verdict, seconds
            )
        with _Stopwatch(seconds, "measure"):
            pairs = ALONE_PAIRS if rival is self.session.baseline else JOIN_PAIRS
            found = self._compare(rival, program, pairs, _decided)
        interval = found.interval(SEARCH_CONFIDENCE)
        faster = interval[0] > max(MIN_GAIN, min(self.noise[1], 1.05))
        before, after = found.times()
        return Experiment(
            title=str(move),
            against=against,
            outcome="faster" if faster else "not faster",
            reason="",
            speedup=found.speedup,
            interval=interval,
            milliseconds=(before * 1e3, after * 1e3),
            verdict=verdict,
            seconds=seconds,
        )

    def _check(self) -> Verdict:
        return check(self.session, self.known, dtype=self.workload.dtype, max_kl=self.plan.max_kl)

    def _compare(
        self,
        rival: Program,
        program: Program,
        pairs: int,
        decided: Callable[[Comparison], bool],
    ) -> Comparison:
        return compare(
            self.session,
            rival,
            program,
            self.known[0].start,
            steps=self.block_steps,
            max_pairs=pairs,
            enough=lambda c: decided(c) or self._left() < 0,
        )

    # --- the end -------------------------------------------------------------------------------

    def _confirm(self) -> Result:
        """Compile the winner whole, check it on unseen prompts and time it against the baseline."""
        session = self.session
        session.runtime.swap(session.baseline)
        kept = self.prompts[self.plan.check_prompts :][: self.plan.confirm_prompts]
        unseen = self._references(kept)
        winner = session.compile(self.incumbent.module, functions=("prefill", "decode"))
        session.runtime.swap(winner)
        verdict = check(session, unseen, dtype=self.workload.dtype, max_kl=self.plan.max_kl)
        until = self.began + self.plan.budget
        found = compare(
            session,
            session.baseline,
            winner,
            unseen[0].start,
            steps=self.block_steps,
            max_pairs=FINAL_PAIRS,
            enough=lambda c: len(c.baseline) >= 8 and self.clock() > until,
        )
        interval = found.interval(FINAL_CONFIDENCE)
        before, after = found.times()
        return Result(
            candidate=self.incumbent.candidate(
                module_hash(session.module), self.workload, str(session.target)
            ),
            speedup=found.speedup,
            interval=interval,
            milliseconds=(before * 1e3, after * 1e3),
            confirmed=bool(self.incumbent.steps) and verdict.right and interval[0] > 1.0,
            verdict=verdict,
            noise=self.noise,
            experiments=tuple(self.experiments),
            provenance=str(session.runtime.provenance),
            seconds=self.clock() - self.began,
        )


def _decided(comparison: Comparison) -> bool:
    """Stop when the answer is clear: surely faster, or not by as much as counts."""
    if len(comparison.baseline) < 5:
        return len(comparison.baseline) >= 3 and comparison.ratios[-1] < 1.0
    low, high = comparison.interval(SEARCH_CONFIDENCE)
    return low > 1.02 or high < MIN_GAIN


def _gain(experiment: Experiment | None) -> float:
    if experiment is None or experiment.speedup is None:
        return 0.0
    return experiment.speedup + (1.0 if experiment.outcome == "faster" else 0.0)


def _failed(title: str, against: str, reason: str, seconds: dict[str, float]) -> Experiment:
    return Experiment(title, against, "failed", reason, None, None, None, None, seconds)


class _Stopwatch:
    """Adds the seconds of a block to `into[name]`."""

    def __init__(self, into: dict[str, float], name: str) -> None:
        self.into, self.name = into, name

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.into[self.name] = self.into.get(self.name, 0.0) + time.perf_counter() - self.began


__all__ = ["Experiment", "Observer", "Optimizer", "Plan", "Result"]
