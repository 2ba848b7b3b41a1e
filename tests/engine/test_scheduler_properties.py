"""Whatever comes when, in however few pages: nobody hears a difference, starves or leaks pages."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.engine.toy import LIMITS, Toy, alone, heard
from tkcc.engine.requests import Event, Request, Sampling
from tkcc.engine.scheduler import DECODE, EXTEND, Plan, Row, Scheduler

SHARED = tuple(range(40, 60))  # the beginning of many prompts
FEWEST = LIMITS.context // LIMITS.page_size + 1  # pages that hold one request, and page 0
STEPS = 5_000
LOST = -3  # no token: whoever reads a lost page is found out
BUSY = settings(max_examples=80, deadline=None)
THINGS = ["step"] * 8 + ["cancel", "cancel meanwhile", "lose"]


@dataclasses.dataclass(frozen=True)
class Thing:
    """What happens around one step: requests come, and one is cancelled or the pages are lost."""

    what: str = "step"
    coming: int = 3
    whom: int = 0


things = st.builds(Thing, st.sampled_from(THINGS), st.integers(0, 3), st.integers(0, 11))


@st.composite
def samplings(draw: Any) -> Sampling:
    return Sampling(
        max_tokens=draw(st.integers(1, 20)),
        temperature=draw(st.sampled_from([0.0, 0.0, 0.7, 1.5])),
        top_k=draw(st.sampled_from([0, 5])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        seed=draw(st.integers(0, 3)),
        stop_tokens=tuple(draw(st.lists(st.integers(0, 96), max_size=3))),
        ignore_end=draw(st.booleans()),
    )


@st.composite
def requests(draw: Any) -> list[Request]:
    made = []
    for number in range(draw(st.integers(1, 12))):
        shared = SHARED[: draw(st.integers(0, 20))]
        own = draw(st.lists(st.integers(1, 96), min_size=1, max_size=7))
        prompt = (*shared, *own)[: LIMITS.context - 1]
        made.append(Request(f"r{number}", prompt, draw(samplings())))
    return made


@dataclasses.dataclass
class Run:
    """A scheduler over a toy, checked after every step."""

    scheduler: Scheduler
    toy: Toy
    events: list[Event] = dataclasses.field(default_factory=list)
    put_off: int = 0

    @classmethod
    def of(cls, pages: int) -> Run:
        scheduler = Scheduler(dataclasses.replace(LIMITS, pages=pages))
        return cls(scheduler, Toy(scheduler))

    def step(self, cancel_meanwhile: str = "") -> Plan | None:
        """One step; a cancel may come while the device computes it."""
        before = list(self.scheduler.running)
        plan = self.scheduler.next()
        self.put_off += sum(row not in self.scheduler.running for row in before)
        assert (plan is None) == self.scheduler.idle, "None is said only if there is no work"
        if plan is not None:
            tokens = self.toy.run(plan)
            self.events += self.scheduler.cancel(cancel_meanwhile)
            self.events += self.scheduler.commit(plan, tokens)
        self.check()
        return plan

    def steps(self) -> Iterator[Plan]:
        """To the end."""
        for _ in range(STEPS):
            plan = self.step()
            if plan is None:
                return
            yield plan
        raise AssertionError("the scheduler does not come to an end")

    def check(self) -> None:
        scheduler = self.scheduler
        scheduler.pool.check()
        self.toy.check()
        assert scheduler.pool.held == len({p for row in scheduler.running for p in row.pages})
        assert not any(row.pages for row in scheduler.waiting)


def _submit_while_there_is_room(run: Run, waiting: list[Request], count: int) -> None:
    for _ in range(count):
        if waiting and len(run.scheduler.waiting) < LIMITS.max_waiting:
            run.scheduler.submit(waiting.pop(0))


def _assert_heard(run: Run, asked: list[Request]) -> None:
    found = heard(run.events)
    for request in asked:
        tokens, ends = found[request.id]
        want, end = alone(request)
        if ends == ["cancelled"]:
            assert tokens == want[: len(tokens)]
        else:
            assert (tokens, ends) == (want, [end])


def _happen(run: Run, asked: list[Request], waiting: list[Request], thing: Thing) -> None:
    _submit_while_there_is_room(run, waiting, thing.coming)
    name = asked[thing.whom % len(asked)].id
    if thing.what == "cancel":
        run.events += run.scheduler.cancel(name)
    if thing.what == "lose":
        run.scheduler.lose_pages()
        run.toy.memory[:] = LOST
    run.step(name if thing.what == "cancel meanwhile" else "")


@settings(BUSY, max_examples=200)
@given(requests(), st.lists(things, max_size=60), st.integers(FEWEST, 20))
def test_each_request_hears_what_it_would_alone_whatever_else_happens(
    asked: list[Request], happens: list[Thing], pages: int
) -> None:
    run, waiting = Run.of(pages), list(asked)
    coming = itertools.chain(happens, itertools.repeat(Thing(), STEPS))
    while waiting or not run.scheduler.idle:
        _happen(run, asked, waiting, next(coming))
    event(f"put off: {min(run.put_off, 3)}")
    _assert_heard(run, asked)
    assert run.scheduler.pool.held == 0


def _decoding(run: Run) -> set[Row]:
    return {row for row in run.scheduler.running if row.pending == 1 and row.answered}


@BUSY
@given(requests(), st.integers(FEWEST, 20))
def test_nobody_waits_for_two_steps_of_the_other_kind(asked: list[Request], pages: int) -> None:
    run, waiting = Run.of(pages), list(asked)
    kinds: list[str] = []
    unserved: set[Row] = set()  # decoding, and not in the last plan
    while waiting or not run.scheduler.idle:
        _submit_while_there_is_room(run, waiting, 2)
        before = list(run.scheduler.running)
        decoding, reading = _decoding(run), [row for row in before if row not in _decoding(run)]
        plan = run.step()
        assert plan is not None
        kept = {row for row in before if row.pages}
        if kinds and kinds[-1] == EXTEND:
            assert not (decoding & unserved & kept) - set(plan.rows)
        if kinds and kinds[-1] == DECODE and reading and reading[0] in kept:
            assert reading[0] in plan.rows, "the oldest that reads has its turn"
        unserved = decoding - set(plan.rows)
        kinds.append(plan.kind)
    _assert_heard(run, asked)


@BUSY
@given(requests(), st.integers(FEWEST, 20))
def test_who_came_first_is_let_in_first_and_is_not_put_off(
    asked: list[Request], pages: int
) -> None:
    run, order = Run.of(pages), [request.id for request in asked]
    _submit_while_there_is_room(run, list(asked), len(asked))
    for _ in run.steps():
        rows = [*run.scheduler.running, *run.scheduler.waiting]
        assert [row.request.id for row in rows] == sorted(
            (row.request.id for row in rows), key=order.index
        )
