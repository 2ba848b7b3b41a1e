"""Generated traffic through the engine's own scheduler and pages, and a toy device."""

from __future__ import annotations

from tests.engine.toy import LIMITS, Toy, following
from tests.traffic.simulated import SimulatedClock
from tkcc.engine.requests import Event, Request, Sampling
from tkcc.engine.scheduler import Scheduler
from tkcc.traffic.generate import generate
from tkcc.traffic.profiles import built_in
from tkcc.traffic.replay import replay
from tkcc.traffic.text import PlainIds


class Stepped:
    def __init__(self, clock: SimulatedClock) -> None:
        self.clock, self.scheduler = clock, Scheduler(LIMITS)
        self.toy = Toy(self.scheduler)

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def submit(self, request: Request) -> None:
        self.scheduler.submit(request)

    def step(self) -> list[Event]:
        self.clock.sleep(0.01)
        plan = self.scheduler.next()
        return [] if plan is None else self.scheduler.commit(plan, self.toy.run(plan))

    def cancel(self, name: str) -> list[Event]:
        return self.scheduler.cancel(name)


def test_answers_are_right_and_shared_prefixes_are_read_from_the_cache() -> None:
    clock = SimulatedClock()
    source = PlainIds(LIMITS.vocabulary, first=1)
    requests = generate(
        built_in("agentic-coding"), 120, seed=1, scale=0.0002, longest=22, source=source
    )
    report = replay(Stepped(clock), requests, concurrency=3, clock=clock)
    assert (report.completed, report.failed) == (120, 0)
    assert report.concurrency is not None
    assert report.concurrency.most == 3
    assert report.cache_hit_rate > 0.1
    for request, record in zip(requests, report.records, strict=True):
        text = list(request.prompt())
        for token in record.tokens:
            assert token == following(text, Sampling())
            text.append(token)
        assert len(record.tokens) == request.output_tokens
