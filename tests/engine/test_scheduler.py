"""Batching, sharing, putting off and cancelling never change what a request hears."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.engine.toy import LIMITS, Toy, alone, heard
from tkcc.engine.plans import extend_bucket
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
    counts = scheduler.pool.counts
    assert (counts.hits, counts.misses) == (0, 3 + 3), "reading again is no hit, and no miss"
    assert put_off[0].cached == 0


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Request("x", ()), "empty_prompt"),
        (Request("x", tuple(range(24))), "prompt_too_long"),
        (Request("x", (1, 97)), "invalid_token"),
        (Request("x", (-1,)), "invalid_token"),
        (Request("x", (1, 2.0)), "invalid_token"),  # type: ignore[arg-type]
        (Request("x", (1, True)), "invalid_token"),
        (Request("x", (1, None)), "invalid_token"),  # type: ignore[arg-type]
        (Request("x", (1, "2")), "invalid_token"),  # type: ignore[arg-type]
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
        {"max_tokens": "3"},
        {"max_tokens": 2.5},
        {"temperature": None},
        {"top_k": True},
        {"top_p": "1"},
        {"stop_tokens": ("a",)},
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


def _prompt(scheduler: Scheduler, toy: Toy, name: str, tokens: tuple[int, ...]) -> Event:
    scheduler.submit(Request(name, tokens, Sampling(max_tokens=1, ignore_end=True)))
    return next(event for event in drain(scheduler, toy) if event.request == name)


def test_all_of_decode_giving_way_to_who_reads_leaves_no_step_without_work() -> None:
    scheduler = Scheduler(dataclasses.replace(LIMITS, pages=7))
    toy = Toy(scheduler)
    scheduler.submit(Request("long", tuple(range(1, 18)), Sampling(max_tokens=1)))
    scheduler.submit(Request("short", (40, 1, 1, 1), Sampling(max_tokens=2, ignore_end=True)))
    found = heard(drain(scheduler, toy))
    assert all(len(ends) == 1 for _, ends in found.values())


def test_lost_pages_are_read_again_and_nobody_hears_a_difference() -> None:
    scheduler = Scheduler(LIMITS)
    toy = Toy(scheduler)
    request = Request("a", SHARED[:10], Sampling(max_tokens=9, ignore_end=True))
    scheduler.submit(request)
    events: list[Event] = []
    for _ in range(5):
        plan = scheduler.next()
        events += scheduler.commit(plan, toy.run(plan))
    assert scheduler.next() is not None, "its step is lost too"
    scheduler.lose_pages()
    toy.memory[:] = -1
    assert scheduler.pool.held == 0
    tokens, end = alone(request)
    assert heard(events + drain(scheduler, toy))["a"] == (tokens, [end])


def test_after_sharing_stopped_only_what_was_computed_since_is_shared() -> None:
    scheduler = Scheduler(LIMITS)
    toy = Toy(scheduler)
    prompt = SHARED[:13]
    _prompt(scheduler, toy, "idle", prompt)
    scheduler.submit(Request("old", prompt, Sampling(max_tokens=11, ignore_end=True)))
    plan = scheduler.next()
    scheduler.commit(plan, toy.run(plan))
    scheduler.stop_sharing()
    first = _prompt(scheduler, toy, "new", prompt)  # while "old" goes on, and to its end
    assert first.cached_tokens == 0
    assert _prompt(scheduler, toy, "newer", prompt).cached_tokens == 12
    answer = alone(Request("old", prompt, Sampling(max_tokens=11, ignore_end=True)))[0]
    whole = (*prompt, *answer[:9])
    assert _prompt(scheduler, toy, "continued", whole).cached_tokens == 12
    scheduler.pool.check()
    assert scheduler.pool.held == 0


def test_a_blocked_request_is_let_in_as_soon_as_its_pages_are_free_and_nobody_overtakes() -> None:
    scheduler = Scheduler(dataclasses.replace(LIMITS, pages=7))
    for name, length in (("a", 12), ("big", 20), ("small", 1)):
        tokens = tuple(range(1, length + 1))
        scheduler.submit(Request(name, tokens[::-1], Sampling(max_tokens=1)))
    assert scheduler.next() is not None
    assert [row.request.id for row in scheduler.running] == ["a"]
    scheduler.lose_pages()
    scheduler.cancel("a")
    assert scheduler.next() is not None
    assert [row.request.id for row in scheduler.running] == ["big", "small"]


def test_limits_under_which_a_request_would_never_end_are_no_limits() -> None:
    with pytest.raises(AssertionError, match="no pages"):
        dataclasses.replace(LIMITS, pages=6)


@pytest.mark.parametrize(
    ("pending", "bucket"),
    [
        ([3], (1, 16)),  # less padding
        ([300], (1, 128)),  # fewer steps
        ([16, 16, 16, 16], (4, 16)),  # together
        ([128, 1, 1, 1], (1, 128)),
        ([17], (1, 16)),  # two short steps cost less than one long one
        ([60], (1, 128)),
    ],
)
def test_a_piece_goes_into_the_bucket_with_most_of_use_for_its_cost(
    pending: list[int], bucket: tuple[int, int]
) -> None:
    assert extend_bucket(((1, 16), (4, 16), (1, 128)), pending) == bucket
