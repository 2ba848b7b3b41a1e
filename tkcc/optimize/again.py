"""Run a saved candidate again: rebuild it, check it, time it, and let it speak."""

from __future__ import annotations

import dataclasses
from typing import Any

from tkcc.backends.base import Target
from tkcc.candidate import Candidate, replay, schedule_of
from tkcc.ir.rewrite.rule import EXACT
from tkcc.optimize.correctness import Verdict, check, oracle, references
from tkcc.optimize.session import DECODE, PREFILL, Session
from tkcc.optimize.timing import compare
from tkcc.workloads import Language

CHECKED_STEPS, TIMED_STEPS, SPOKEN_TOKENS = 16, 6, 40
_APPROXIMATE_KL = 0.1  # an approximate candidate was judged when it was found


@dataclasses.dataclass(frozen=True)
class Again:
    """What running a candidate again found."""

    verdict: Verdict
    speedup: float
    interval: tuple[float, float]
    milliseconds: tuple[float, float]
    text: str


def run_again(candidate: Candidate, language: Language, *, pairs: int) -> Again:
    """Replay against the un-rewritten program. Raises TkccError if a hash differs."""
    module = replay(candidate, language.module)
    target = Target.parse(candidate.target)
    with Session(language.module, target, language.shape) as session:
        sets = language.prompt_sets(1, 1)
        exact = oracle(session, candidate.workload.dtype)
        known = references(session, sets, CHECKED_STEPS, exact)
        program = session.compile(module, schedule_of(candidate), functions=(PREFILL, DECODE))
        session.runtime.swap(program)
        limit = None if candidate.kind == EXACT else _APPROXIMATE_KL
        verdict = check(session, known, max_kl=limit)
        found = compare(
            session,
            session.baseline,
            program,
            known[0].start,
            steps=TIMED_STEPS,
            max_pairs=pairs,
            enough=lambda _: False,
        )
        text = _speak(session, language, sets[0])
    before, after = found.times()
    times = (before * 1e3, after * 1e3)
    return Again(verdict, found.speedup, found.interval(), times, text)


def _speak(session: Session, language: Language, prompts: Any) -> str:
    """What the program in the slot answers to the first prompt (its own prefill and decode)."""
    start = session.read(prompts)
    room = language.shape.context - int(start.positions.max())
    tokens, _ = session.generate(start, min(SPOKEN_TOKENS, room))
    row = [int(start.tokens[0]), *(int(step[0]) for step in tokens)]
    return str(language.tokenizer.decode(row))
