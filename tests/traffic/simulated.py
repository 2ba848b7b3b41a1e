"""An engine and a clock with known times, so that every metric is known too."""

from __future__ import annotations

import dataclasses

from tkcc.engine.requests import CANCELLED, LENGTH, Event, Request, RequestError


class SimulatedClock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.time += seconds


@dataclasses.dataclass
class _Answer:
    request: Request
    made: int = 0


class SimulatedEngine:
    """Each step takes `step_time` and makes one token for every request in flight.

    A prompt of `too_long` tokens or more is refused, a prompt that begins with `broken` fails at
    its second token.
    """

    def __init__(
        self,
        clock: SimulatedClock,
        *,
        step_time: float,
        cached: int = 0,
        too_long: int = 1000,
        broken: int | None = None,
    ) -> None:
        self.clock, self.step_time, self.cached = clock, step_time, cached
        self.too_long, self.broken = too_long, broken
        self.answers: dict[str, _Answer] = {}
        self.most = 0

    @property
    def idle(self) -> bool:
        return not self.answers

    def submit(self, request: Request) -> None:
        if len(request.prompt) >= self.too_long:
            raise RequestError("prompt_too_long", "the prompt is too long", "send less")
        self.answers[request.id] = _Answer(request)
        self.most = max(self.most, len(self.answers))

    def step(self) -> list[Event]:
        self.clock.sleep(self.step_time)
        return [self._token(name) for name in list(self.answers)]

    def cancel(self, name: str) -> list[Event]:
        del self.answers[name]
        return [Event(name, finish=CANCELLED)]

    def _token(self, name: str) -> Event:
        answer = self.answers[name]
        answer.made += 1
        if answer.made == 2 and answer.request.prompt[0] == self.broken:
            del self.answers[name]
            return Event(name, finish="error", error="the step failed")
        ended = answer.made == answer.request.sampling.max_tokens
        if ended:
            del self.answers[name]
        return Event(name, answer.made, LENGTH if ended else None, cached_tokens=self.cached)


@dataclasses.dataclass(frozen=True)
class Plain:
    """A request to send, with its prompt."""

    arrival: float
    tokens: tuple[int, ...]
    output_tokens: int
    session: str | None = None
    think: float | None = None

    def prompt(self) -> tuple[int, ...]:
        return self.tokens
