"""One optimisation run: the loop of experiments."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from tkcc.backends.base import Program
from tkcc.candidate import Workload
from tkcc.ir.errors import BackendError
from tkcc.ir.hashing import module_hash
from tkcc.optimize.correctness import Reference, Verdict, check, oracle, references
from tkcc.optimize.records import Experiment, Observer, Plan, Result
from tkcc.optimize.search import Move, Proposal, join, moves
from tkcc.optimize.session import DECODE, PREFILL, Session
from tkcc.optimize.timing import Comparison, compare

SEARCH_CONFIDENCE, FINAL_CONFIDENCE = 0.9, 0.99
ALONE_PAIRS, JOIN_PAIRS, FINAL_PAIRS = 6, 10, 24
FEWEST_FINAL_PAIRS = 8  # the fewest whose 99 % interval is bounded
MIN_GAIN = 1.01  # a winner's interval must lie above this, and above the noise
NOISE_COUNTS = 1.05  # noise up to here raises the bar; above it, pairs outvote it
FINAL_SHARE = 0.2  # of the budget is kept for confirming the winner, at least
ALONE_SHARE = 0.5  # of the search at most goes to rules alone; the rest is for joining them
BOTH_COMPILE = 3.0  # compiling prefill and decode, in compiles of decode


@dataclasses.dataclass(frozen=True)
class Tried:
    """A move's experiment, and the program that it made if that could be judged."""

    experiment: Experiment
    proposal: Proposal
    program: Program | None


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
        self.tried: set[str] = set()
        self.gains: dict[Move, float] = {}
        self.known: list[Reference] = []
        self.noise = (1.0, 1.0)
        self.block_steps = 1
        self.step_seconds = 0.0
        self.reading_seconds = 0.0  # per set of prompts
        self.seconds_per_node = 0.0
        self.incumbent = Proposal(session.module, ())
        self.incumbent_program = session.baseline
        self.incumbent_compile = 0.0
        self.best = 1.0
        self.exact: Session | None = None

    def run(self) -> Result:
        """Search, confirm, and return what was found. The winner is left in the slot."""
        self._swap(self.session.baseline)
        self.exact = oracle(self.session, self.workload.dtype)
        try:
            self.observer.phase("reading prompts with the un-rewritten program")
            began = self.clock()
            self.known = self._references(self.prompts[: self.plan.check_prompts])
            self.reading_seconds = (self.clock() - began) / self.plan.check_prompts
            self.observer.phase("measuring the noise: the program against itself")
            self._measure_noise()
            self._search()
            self.observer.phase("confirming the winner on prompts that the search did not see")
            return self._confirm()
        finally:
            if self.exact is not None:
                self.exact.close()

    def _swap(self, program: Program) -> None:
        if self.session.runtime.program is not program:
            self.session.runtime.swap(program)

    def _references(self, sets: Sequence[Sequence[Sequence[int]]]) -> list[Reference]:
        return references(self.session, sets, self.plan.check_steps, self.exact)

    def _measure_noise(self) -> None:
        self.block_steps = self._calibrated()
        watch: dict[str, float] = {}
        with _Stopwatch(watch, "compile"):
            twin = self.session.compile(self.session.module)
        self.incumbent_compile = watch["compile"]
        self._learn_compile_cost(self.incumbent, watch["compile"])
        found = self._compare(self.session.baseline, twin, JOIN_PAIRS, lambda _: False)
        self.noise = found.interval(SEARCH_CONFIDENCE)

    def _calibrated(self) -> int:
        """Steps that take about `block_seconds`: enough to time, few enough to alternate often."""
        self.session.timed(self.known[0].start, 1)
        self.step_seconds = self.session.timed(self.known[0].start, 3)
        return max(1, min(self._room(), round(self.plan.block_seconds / self.step_seconds)))

    def _room(self) -> int:
        """Steps that fit into the caches after the longest prompt."""
        return self.session.shape.context - self.session.shape.prompt - 1

    # --- time ----------------------------------------------------------------------------------

    def _left(self) -> float:
        """Seconds left for searching: the rest is kept for confirming."""
        kept = max(FINAL_SHARE * self.plan.budget, self._confirm_seconds())
        return self.plan.budget - kept - (self.clock() - self.began)

    def _confirm_seconds(self) -> float:
        """What confirming the incumbent takes, from what its parts took so far."""
        checking = self.plan.check_steps * self.step_seconds
        reading = self.plan.confirm_prompts * (self.reading_seconds + checking)
        timing = 2 * FEWEST_FINAL_PAIRS * (self.block_steps + 1) * self.step_seconds
        return BOTH_COMPILE * self.incumbent_compile + reading + timing

    def _learn_compile_cost(self, proposal: Proposal, seconds: float) -> None:
        """Keep the lowest seconds per node, so that only what is surely too long is left out."""
        rate = seconds / proposal.module.function(DECODE).size()
        self.seconds_per_node = min(self.seconds_per_node or rate, rate)

    def _too_long(self, proposal: Proposal) -> str:
        """Why there is no time for a proposal; empty if there is."""
        needed = self.seconds_per_node * proposal.module.function(DECODE).size()
        left = self._left()
        return f"about {needed:.0f} s to compile, {left:.0f} s left" if needed > left else ""

    # --- search --------------------------------------------------------------------------------

    def _search(self) -> None:
        everything = moves(self.plan.approximate)
        self.observer.phase("each rule alone")
        until = self._left() * (1 - ALONE_SHARE)
        alone = Proposal(self.session.module, ())
        winners: list[Tried] = []
        for move in everything:
            if self._left() <= until:
                break
            tried = self._experiment(alone, move, self.session.baseline)
            if tried is not None and tried.experiment.outcome == "faster":
                winners.append(tried)
        if winners:
            self._adopt(max(winners, key=lambda item: _speedup(item.experiment)))
        self._join_all(everything)

    def _join_all(self, everything: Sequence[Move]) -> None:
        """Add moves to the best so far, the promising first, until none helps or time is up."""
        changed = True
        while changed and self._left() > 0:
            self.observer.phase(f"joining with the best so far ({self.best:.2f}x)")
            changed = False
            for move in sorted(everything, key=lambda move: -self._promise(move)):
                if self._left() <= 0:
                    break
                tried = self._experiment(self.incumbent, move, self.incumbent_program)
                if tried is not None and tried.experiment.outcome == "faster":
                    self._adopt(tried)
                    changed = True

    def _promise(self, move: Move) -> float:
        """The best speed-up seen with the move, or with its rule, or 1 for what is untried."""
        siblings = [gain for other, gain in self.gains.items() if other.rule == move.rule]
        return self.gains.get(move, max(siblings, default=1.0))

    def _adopt(self, tried: Tried) -> None:
        """A faster program becomes the incumbent."""
        assert tried.program is not None
        self.best *= _speedup(tried.experiment)
        self.incumbent, self.incumbent_program = tried.proposal, tried.program
        self.incumbent_compile = tried.experiment.seconds["compile"]

    def _experiment(self, base: Proposal, move: Move, rival: Program) -> Tried | None:
        """From a move to a verdict against `rival`; None if there is nothing new to try."""
        seconds: dict[str, float] = {}
        with _Stopwatch(seconds, "rewrite"):
            proposal = join(self.session.module, base, move)
        if proposal is None or proposal.hash in self.tried or proposal.hash == base.hash:
            return None
        self.tried.add(proposal.hash)
        against = base.candidate("", self.workload, "").title()
        reason = self._too_long(proposal)
        if reason:
            return self._record(_untimed(move, against, "not tried", reason, seconds), proposal)
        try:
            with _Stopwatch(seconds, "compile"):
                program = self.session.compile(proposal.module)
            self._learn_compile_cost(proposal, seconds["compile"])
            experiment = self._judge(move, against, program, rival, seconds)
        except BackendError as error:
            return self._record(_untimed(move, against, "failed", error.what, seconds), proposal)
        if experiment.speedup is not None:
            self.gains[move] = max(experiment.speedup, self.gains.get(move, 0.0))
        return self._record(experiment, proposal, program)

    def _record(
        self, experiment: Experiment, proposal: Proposal, program: Program | None = None
    ) -> Tried:
        self.experiments.append(experiment)
        self.observer.experiment(experiment, self.best)
        return Tried(experiment, proposal, program)

    def _judge(
        self, move: Move, against: str, program: Program, rival: Program, seconds: dict[str, float]
    ) -> Experiment:
        with _Stopwatch(seconds, "swap"):
            self.session.runtime.swap(program)
        with _Stopwatch(seconds, "check"):
            verdict = self._check(self.known)
        if not verdict.right:
            return _untimed(move, against, "wrong", verdict.reason, seconds, verdict)
        with _Stopwatch(seconds, "measure"):
            pairs = ALONE_PAIRS if rival is self.session.baseline else JOIN_PAIRS
            found = self._compare(rival, program, pairs, _decided)
        before, after = found.times()
        outcome, reason = self._outcome(found)
        return Experiment(
            title=str(move),
            against=against,
            outcome=outcome,
            reason=reason,
            speedup=found.speedup,
            interval=found.interval(SEARCH_CONFIDENCE),
            milliseconds=(before * 1e3, after * 1e3),
            verdict=verdict,
            seconds=seconds,
        )

    def _outcome(self, found: Comparison) -> tuple[str, str]:
        low, _ = found.interval(SEARCH_CONFIDENCE)
        if low > max(MIN_GAIN, min(self.noise[1], NOISE_COUNTS)):
            return "faster", ""
        if low == 0 and not _hopeless(found):
            return "undecided", "time was up"
        return "not faster", ""

    def _check(self, known: Sequence[Reference]) -> Verdict:
        return check(self.session, known, max_kl=self.plan.max_kl)

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
        self._swap(session.baseline)
        kept = self.prompts[self.plan.check_prompts :][: self.plan.confirm_prompts]
        unseen = self._references(kept)
        winner = session.compile(self.incumbent.module, functions=(PREFILL, DECODE))
        self._swap(winner)
        verdict = self._check(unseen)
        until = self.began + self.plan.budget
        found = compare(
            session,
            session.baseline,
            winner,
            unseen[0].start,
            steps=self.block_steps,
            max_pairs=FINAL_PAIRS,
            enough=lambda c: len(c.baseline) >= FEWEST_FINAL_PAIRS and self.clock() > until,
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
        return _hopeless(comparison)
    low, high = comparison.interval(SEARCH_CONFIDENCE)
    return low > 1.02 or high < MIN_GAIN


def _hopeless(comparison: Comparison) -> bool:
    """Slower in each of the first pairs: in two by much, or in three."""
    slowest = comparison.ratios[-1]
    return (len(comparison.baseline) >= 2 and slowest < 0.9) or (
        len(comparison.baseline) >= 3 and slowest < 1.0
    )


def _speedup(experiment: Experiment) -> float:
    assert experiment.speedup is not None
    return experiment.speedup


def _untimed(
    move: Move,
    against: str,
    outcome: str,
    reason: str,
    seconds: dict[str, float],
    verdict: Verdict | None = None,
) -> Experiment:
    return Experiment(str(move), against, outcome, reason, None, None, None, verdict, seconds)


class _Stopwatch:
    """Adds the seconds of a block to `into[name]`."""

    def __init__(self, into: dict[str, float], name: str) -> None:
        self.into, self.name = into, name

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.into[self.name] = self.into.get(self.name, 0.0) + time.perf_counter() - self.began
