"""Replaying requests against an engine: in real time, faster, or in closed loops.

One loop sends what is due and steps the engine; there are no threads and no event loop here. The
engine is stepped by one thread anyway, a replay then has no noise of its own to measure, and with
another clock it runs in no time and always the same way. An engine that answers by streams, in
threads or over a network, is made one to step by `Streams`.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import time
from collections.abc import Sequence
from typing import Protocol

from tkcc.engine.requests import CANCELLED, ERROR, Event, Request, Sampling
from tkcc.ir.errors import TkccError
from tkcc.traffic.metrics import Record, Report


class Clock(Protocol):
    """Seconds from any beginning, and waiting."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class SteppedEngine(Protocol):
    """What `tkcc.engine.engine.Engine` is, as far as a replay needs it."""

    @property
    def idle(self) -> bool: ...

    def submit(self, request: Request) -> None:
        """Raises TkccError for a request that is refused."""

    def step(self) -> Sequence[Event]:
        """Go on for a moment, and tell what happened."""

    def cancel(self, name: str) -> Sequence[Event]:
        """End a request now."""


class Sendable(Protocol):
    """What `generate` gives; or any trace with prompts."""

    @property
    def arrival(self) -> float: ...

    @property
    def output_tokens(self) -> int: ...

    @property
    def session(self) -> str | None: ...

    @property
    def think(self) -> float | None: ...

    def prompt(self) -> tuple[int, ...]: ...


@dataclasses.dataclass(frozen=True)
class _Timed:
    request: Request
    arrival: float
    session: str | None
    think: float


def replay(
    engine: SteppedEngine,
    requests: Sequence[Sendable],
    *,
    speed: float = 1.0,
    concurrency: int | None = None,
    thinking: bool = False,
    sampling: Sampling | None = None,
    patience: float | None = None,
    clock: Clock | None = None,
) -> Report:
    """Send the requests and measure the answers; returns when all have ended.

    Open loop, if `concurrency` is None: each request is due at its arrival time divided by
    `speed`, whether or not earlier ones are answered. Closed loop: `concurrency` requests are in
    flight at once, sent in their order, but a session's next one only after its last has ended,
    and with `thinking` only after the request's time to think.
    Answers have the requests' lengths: `sampling` (greedy by default) is used with those as
    `max_tokens` and `ignore_end`. After `patience` seconds what is in flight or unsent is
    cancelled. A refused request counts as failed. All prompts are made before the clock starts.
    Raises TkccError if an argument makes no sense or the engine answers what nobody asked.
    """
    _check(requests, speed, concurrency, patience)
    if thinking and concurrency is None:
        raise TkccError(
            "thinking is given without concurrency",
            where="replay",
            remedy="give the number of users as concurrency",
        )
    timed = [_timed(i, item, sampling or Sampling()) for i, item in enumerate(requests)]
    run = _Run(engine, clock or WallClock(), patience)
    if concurrency is None:
        run.open(timed, speed)
    else:
        run.closed(timed, concurrency, thinking)
    return Report.of([run.records[item.request.id] for item in timed])


def _check(
    requests: Sequence[Sendable], speed: float, concurrency: int | None, patience: float | None
) -> None:
    wrong = ""
    if not requests:
        wrong = "there are no requests: give at least one"
    elif not 0 < speed < float("inf"):
        wrong = f"speed is {speed}: give a number above 0"
    elif concurrency is not None and concurrency < 1:
        wrong = f"concurrency is {concurrency}: give at least 1"
    elif concurrency is not None and speed != 1:
        wrong = "speed and concurrency are both given: a closed loop is as fast as the engine"
    elif patience is not None and not patience > 0:
        wrong = f"patience is {patience}: give seconds above 0"
    if wrong:
        what, _, remedy = wrong.partition(": ")
        raise TkccError(what, where="replay", remedy=remedy)


def _timed(number: int, item: Sendable, sampling: Sampling) -> _Timed:
    # an answer of no token cannot be asked for
    chosen = dataclasses.replace(sampling, max_tokens=max(1, item.output_tokens), ignore_end=True)
    request = Request(f"replay-{number}", item.prompt(), chosen)
    return _Timed(request, item.arrival, item.session, item.think or 0.0)


class _Run:
    """The state of one replay. `flying` maps the id of a request in flight to its session."""

    def __init__(self, engine: SteppedEngine, clock: Clock, patience: float | None) -> None:
        self.engine, self.clock = engine, clock
        self.records: dict[str, Record] = {}
        self.flying: dict[str, str | None] = {}
        self.planned: list[tuple[float, int, _Timed]] = []  # a heap, by due time
        self.start = clock.now()
        self.deadline = None if patience is None else self.start + patience

    @property
    def late(self) -> bool:
        return self.deadline is not None and self.clock.now() >= self.deadline

    def open(self, timed: Sequence[_Timed], speed: float) -> None:
        first = min(item.arrival for item in timed)
        for number, item in enumerate(timed):
            due = self.start + (item.arrival - first) / speed
            heapq.heappush(self.planned, (due, number, item))
        while (self.planned or self.flying) and not self.late:
            self.go_on()
        self.give_up([])

    def closed(self, timed: Sequence[_Timed], concurrency: int, thinking: bool) -> None:
        waiting = collections.deque(enumerate(timed))
        while (waiting or self.planned or self.flying) and not self.late:
            while len(self.flying) + len(self.planned) < concurrency:
                if (found := self.next_of(waiting)) is None:
                    break
                number, item = found
                due = self.clock.now() + (item.think if thinking else 0.0)
                heapq.heappush(self.planned, (due, number, item))
            self.go_on()
        self.give_up([item for _, item in waiting])

    def next_of(self, waiting: collections.deque[tuple[int, _Timed]]) -> tuple[int, _Timed] | None:
        """The first whose session has nothing in flight or planned."""
        busy = {*self.flying.values(), *(item.session for _, _, item in self.planned)} - {None}
        for place, found in enumerate(waiting):
            if found[1].session not in busy:
                del waiting[place]
                return found
        return None

    def go_on(self) -> None:
        """Send what is due; then step the engine, or wait if it has nothing to do."""
        while self.planned and self.planned[0][0] <= self.clock.now():
            due, _, item = heapq.heappop(self.planned)
            self.send(item, due)
        if self.flying:
            self.step()
        elif self.planned:
            self.wait(self.planned[0][0])

    def wait(self, until: float) -> None:
        if self.deadline is not None:
            until = min(until, self.deadline)
        self.clock.sleep(until - self.clock.now())

    def send(self, item: _Timed, due: float) -> None:
        request, name = item.request, item.request.id
        record = Record(name, len(request.prompt), due, self.clock.now())
        self.records[name] = record
        try:
            self.engine.submit(request)
        except TkccError as error:
            record.ended, record.finish, record.error = self.clock.now(), ERROR, error.what
        else:
            self.flying[name] = item.session

    def step(self) -> None:
        events = self.engine.step()
        now = self.clock.now()
        for event in events:
            self.hear(event, now)
        if self.flying and not events and self.engine.idle:
            self.lose("the engine stopped without ending the request")

    def hear(self, event: Event, now: float) -> None:
        if event.request not in self.flying:
            raise TkccError(
                f"the engine answered {event.request!r}, which is not in flight",
                where="replay",
                remedy="let the replay be the engine's only client",
            )
        record = self.records[event.request]
        record.cached_tokens = max(record.cached_tokens, event.cached_tokens)
        if event.token is not None:
            record.token_times.append(now)
            record.tokens.append(event.token)
        if event.finish is not None:
            record.ended, record.finish, record.error = now, event.finish, event.error
            del self.flying[event.request]

    def lose(self, why: str) -> None:
        """What is in flight will never end."""
        for name in self.flying:
            record = self.records[name]
            record.ended, record.finish, record.error = self.clock.now(), ERROR, why
        self.flying.clear()

    def give_up(self, waiting: Sequence[_Timed]) -> None:
        """Cancel what is in flight; what was not sent counts as cancelled, too."""
        for name in list(self.flying):
            for event in self.engine.cancel(name):
                self.hear(event, self.clock.now())
        self.lose("the engine did not end a cancelled request")
        now = self.clock.now()
        for item in [*(item for _, _, item in self.planned), *waiting]:
            name, length = item.request.id, len(item.request.prompt)
            unsent = Record(name, length, now, now, ended=now, finish=CANCELLED)
            self.records[name] = unsent
