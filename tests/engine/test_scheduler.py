"""Batching, sharing, putting off and cancelling never change what a request hears."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.toy import LIMITS, Toy, alone, heard
from tkcc.engine.requests import Event, Request, RequestError, Sampling
from tkcc.engine.scheduler import DECODE, EXTEND, Scheduler

SHARED = tuple(range(40, 60))  # the beginning of many prompts


def drain(scheduler: Scheduler, toy: Toy, limit: int = 10_000) -> list[Event]:
    events: list[Event] = []
    for _ in range(limit):
        plan = scheduler.next()
        if plan is None:
            assert scheduler.idle
            return events
        events += scheduler.commit(plan, toy.run(plan))
        scheduler.pool.check()
    raise AssertionError("the scheduler does not come to an end")


@st.composite
def requests(draw: Any) -> list[Request]:
    made = []
    for number in range(draw(st.integers(1, 10))):
        shared = SHARED[: draw(st.integers(0, 16))]
        own = draw(st.lists(st.integers(1, 96), min_size=1, max_size=7))
        sampling = Sampling(
            max_tokens=draw(st.integers(1, 12)),
            stop_tokens=tuple(draw(st.lists(st.integers(0, 96), max_size=3))),
            ignore_end=draw(st.booleans()),
        )
        made.append(Request(f"r{number}", (*shared, *own)[: LIMITS.context - 1], sampling))
    return made


@settings(max_examples=150)
@given(requests(), st.data(), st.integers(7, 20))
def test_whatever_happens_each_request_hears_what_it_would_alone(
    asked: list[Request], data: Any, pages: int
) -> None:
    scheduler = Scheduler(dataclasses.replace(LIMITS, pages=pages))
    toy = Toy(scheduler)
    waiting, events, cancelled = list(asked), [], set()
    while waiting or not scheduler.idle:
        choice = data.draw(st.integers(0, 9))
        if waiting and choice < 4:
            if len(scheduler.waiting) < LIMITS.max_waiting:
                scheduler.submit(waiting.pop(0))
        elif choice == 9:
            name = data.draw(st.sampled_from(asked)).id
            ended = scheduler.cancel(name)
            cancelled |= {event.request for event in ended}
            events += ended
        plan = scheduler.next()
        if plan is not None:
            events += scheduler.commit(plan, toy.run(plan))
        scheduler.pool.check()
    found = heard(events)
    for request in asked:
        tokens, ends = found[request.id]
        want, end = alone(request)
        assert len(ends) == 1
        if request.id in cancelled:
            assert tokens == want[: len(tokens)]
        else:
            assert (tokens, ends[0]) == (want, end)
    assert scheduler.pool.held == 0


def test_a_repeated_prompt_computes_its_new_tokens_only() -> None:
    scheduler = Scheduler(LIMITS)
    toy = Toy(scheduler)
    prompt = SHARED[:17]
    scheduler.submit(Request("a", prompt, Sampling(max_tokens=1)))
    (first,) = drain(scheduler, toy)
    assert (toy.computed, first.cached_tokens) == (17, 0)
    toy.computed = 0
    scheduler.submit(Request("b", prompt, Sampling(max_tokens=1)))
    (again,) = drain(scheduler, toy)
    assert (toy.computed, again.cached_tokens) == (1, 16)
    assert again.token == first.token
    longer = Request("c", (*prompt[:16], 5, 6, 7), Sampling(max_tokens=1))
    toy.computed = 0
    scheduler.submit(longer)
    drain(scheduler, toy)
    assert toy.computed == 3
    assert (scheduler.pool.counts.hits, scheduler.pool.counts.misses) == (32, 17 + 1 + 3)


def test_a_prompt_of_whole_blocks_that_are_all_known_still_computes_its_last_block() -> None:
    scheduler = Scheduler(LIMITS)
    toy = Toy(scheduler)
    for name in "ab":
        scheduler.submit(Request(name, SHARED[:8], Sampling(max_tokens=1)))
        (event,) = drain(scheduler, toy)
        assert event.token == alone(Request(name, SHARED[:8]))[0][0]
    assert event.cached_tokens == 4


def test_reading_and_decoding_take_turns() -> None:
    scheduler = Scheduler(LIMITS)
    toy = Toy(scheduler)
    scheduler.submit(Request("a", (1, 2), Sampling(max_tokens=9, ignore_end=True)))
    plan = scheduler.next()
    scheduler.commit(plan, toy.run(plan))
    for number in range(3):
        prompt = tuple(range(number + 1, number + 16))
        scheduler.submit(Request(f"b{number}", prompt, Sampling(max_tokens=9, ignore_end=True)))
    kinds = []
    for _ in range(4):
        plan = scheduler.next()
        kinds.append(plan.kind)
        scheduler.commit(plan, toy.run(plan))
    assert kinds == [DECODE, EXTEND] * 2


def test_a_request_that_was_put_off_keeps_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    put_off, original = [], Scheduler._put_off
    monkeypatch.setattr(
        Scheduler, "_put_off", lambda self, row: (put_off.append(row), original(self, row))
    )
    scheduler = Scheduler(dataclasses.replace(LIMITS, pages=8))
    toy = Toy(scheduler)
    asked = [
        Request(name, (number, 2, 3), Sampling(max_tokens=14, ignore_end=True))
        for number, name in enumerate("ab", 1)
    ]
    for request in asked:
        scheduler.submit(request)
    found = heard(drain(scheduler, toy))
    assert {name: (tokens, ends[0]) for name, (tokens, ends) in found.items()} == {
        request.id: alone(request) for request in asked
    }
    assert {row.request.id for row in put_off} == {"b"}, "the last to come gives way"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Request("x", ()), "empty_prompt"),
        (Request("x", tuple(range(24))), "prompt_too_long"),
        (Request("x", (1, 97)), "invalid_token"),
        (Request("x", (-1,)), "invalid_token"),
        (Request("taken", (1,)), "duplicate_id"),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(request_: Request, code: str) -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.submit(Request("taken", (1, 2)))
    with pytest.raises(RequestError) as caught:
        scheduler.submit(request_)
    assert caught.value.code == code
    assert len(scheduler.waiting) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"seed": -1},
    ],
)
def test_bad_sampling_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        Sampling(**wrong)
    assert caught.value.code == "bad_sampling"


def test_a_full_queue_pushes_back_and_takes_more_later() -> None:
    scheduler = Scheduler(LIMITS)
    toy = Toy(scheduler)
    for number in range(LIMITS.max_waiting):
        scheduler.submit(Request(f"r{number}", (1, 2)))
    with pytest.raises(RequestError) as caught:
        scheduler.submit(Request("late", (1, 2)))
    assert caught.value.code == "overloaded"
    drain(scheduler, toy)
    scheduler.submit(Request("late", (1, 2)))


def test_a_step_that_went_wrong_ends_its_rows_alone() -> None:
    scheduler = Scheduler(LIMITS)
    toy = Toy(scheduler)
    scheduler.submit(Request("a", (1, 2), Sampling(max_tokens=3, ignore_end=True)))
    plan = scheduler.next()
    scheduler.submit(Request("b", (3, 4), Sampling(max_tokens=3, ignore_end=True)))
    (event,) = scheduler.fail(plan.rows, "the step failed")
    assert (event.request, event.finish, event.error) == ("a", "error", "the step failed")
    found = heard(drain(scheduler, toy))
    assert found["b"][1] == ["length"]
    assert scheduler.pool.held == 0
