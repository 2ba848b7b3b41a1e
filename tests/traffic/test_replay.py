from __future__ import annotations

from typing import Any

import pytest

from tests.traffic.simulated import Plain, SimulatedClock, SimulatedEngine
from tkcc.engine.requests import Event
from tkcc.ir.errors import TkccError
from tkcc.traffic.metrics import Report, Spread
from tkcc.traffic.replay import replay


def _replay(requests: list[Plain], step_time: float = 0.25, **given: Any) -> Report:
    clock = SimulatedClock()
    engine = SimulatedEngine(clock, step_time=step_time, cached=4)
    return replay(engine, requests, clock=clock, **given)


def _flat(value: float) -> Spread:
    return Spread(value, value, value, value)


def test_an_engine_with_known_times_has_exactly_the_known_metrics() -> None:
    report = _replay([Plain(4.0 * i, (1,) * 8, 5) for i in range(10)])
    assert report.completed == 10
    assert report.ttft == _flat(0.25)
    assert report.itl == report.tpot == _flat(0.25)
    assert report.e2e == _flat(1.25)
    assert report.lateness == _flat(0.0)
    assert report.duration == 9 * 4 + 1.25
    assert report.output_tokens_per_second == 50 / 37.25
    assert report.total_tokens_per_second == 130 / 37.25
    assert report.cache_hit_rate == 0.5
    assert report.interactivity == 4.0


def test_percentiles_are_over_requests_and_interactivity_is_that_of_slow_ones() -> None:
    # one answer of 1 token, due while a step runs: it waits, and its latency is for one token
    requests = [Plain(0.0, (1,), 4), Plain(0.1, (2,), 1)]
    report = _replay(requests, step_time=1.0)
    first, second = report.records
    assert first.latency == 4.0
    assert second.sent - second.due == pytest.approx(0.9)
    assert second.latency == pytest.approx(1.9)
    assert report.e2e is not None
    assert report.e2e.mean == pytest.approx(2.95)
    assert report.e2e.p50 == pytest.approx(2.95)
    assert report.e2e.p90 == pytest.approx(1.9 + 0.9 * 2.1)
    assert report.interactivity == pytest.approx(1 / (1.0 + 0.9 * 0.9))
    assert report.tpot == _flat(1.0), "an answer of one token has no time per further token"


def test_twice_the_speed_sends_in_half_the_time() -> None:
    report = _replay([Plain(7.0 + 4.0 * i, (1,), 2) for i in range(5)], speed=2.0)
    dues = [record.due for record in report.records]
    assert [due - dues[0] for due in dues] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    clock = SimulatedClock()
    engine = SimulatedEngine(clock, step_time=0.5)
    report = replay(engine, [Plain(0.0, (1,), 4) for _ in range(9)], concurrency=3, clock=clock)
    assert engine.most == 3
    assert report.duration == 6.0
    assert report.concurrency is not None
    assert report.concurrency.mean == 3.0
    assert report.concurrency.most == 3


def test_a_closed_loop_sends_a_sessions_next_turn_only_after_its_last_has_ended() -> None:
    requests = [Plain(0.0, (i,), 4, session=s) for i, s in enumerate(["a", "a", "b", None])]
    report = _replay(requests, concurrency=2)
    sent = {record.id: record.sent for record in report.records}
    ended = {record.id: record.ended for record in report.records}
    assert sent["replay-2"] == sent["replay-0"], "b goes in the waiting a's place"
    assert sent["replay-1"] == ended["replay-0"]


def test_thinking_users_wait_before_they_send() -> None:
    requests = [Plain(0.0, (1,), 4), Plain(0.0, (1,), 4, think=3.0)]
    first, second = _replay(requests, concurrency=1, thinking=True).records
    assert first.ended is not None
    assert second.due == first.ended + 3.0
    assert second.latency == 1.0, "the time to think is nobody's latency"


def test_failed_and_refused_requests_are_counted_apart() -> None:
    clock = SimulatedClock()
    engine = SimulatedEngine(clock, step_time=0.25, too_long=100, broken=9)
    good = [Plain(4.0 * i, (1,) * 8, 5) for i in range(3)]
    bad = [Plain(1.0, (9,), 5), Plain(2.0, (1,) * 100, 5), Plain(2.0, (1,) * 200, 5)]
    report = replay(engine, [*good, *bad], clock=clock)
    assert (report.completed, report.failed, report.cancelled) == (3, 3, 0)
    assert report.e2e is not None
    assert report.e2e.mean == 1.25
    assert report.output_tokens == 15
    assert report.input_tokens == 24
    assert report.errors == {"the prompt is too long": 2, "the step failed": 1}


def test_after_its_patience_a_replay_cancels_what_is_left() -> None:
    requests = [Plain(10.0 * i, (1,), 100 if i == 1 else 2) for i in range(4)]
    report = _replay(requests, patience=12.0)
    assert (report.completed, report.failed, report.cancelled) == (1, 0, 3)
    assert report.e2e == _flat(0.5)


def test_requests_that_the_engine_forgets_fail_instead_of_hanging_the_replay() -> None:
    clock = SimulatedClock()
    engine = SimulatedEngine(clock, step_time=0.25)
    engine.submit = lambda request: None  # type: ignore[method-assign]
    report = replay(engine, [Plain(0.0, (1,), 4)], clock=clock)
    assert report.failed == 1
    assert "without ending" in report.records[0].error


def test_an_answer_to_nobody_is_an_error() -> None:
    clock = SimulatedClock()
    engine = SimulatedEngine(clock, step_time=0.25)
    engine.step = lambda: [Event("other", 1)]  # type: ignore[method-assign]
    with pytest.raises(TkccError, match="not in flight"):
        replay(engine, [Plain(0.0, (1,), 4)], clock=clock)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"speed": 0.0}, "speed"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 2, "speed": 2.0}, "both"),
        ({"patience": 0.0}, "patience"),
        ({"thinking": True}, "thinking"),
    ],
)
def test_arguments_without_sense_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(TkccError, match=what):
        _replay([Plain(0.0, (1,), 4)], **given)


def test_no_requests_are_refused() -> None:
    with pytest.raises(TkccError, match="no requests"):
        _replay([])


def test_a_report_as_text_and_as_data_has_its_figures() -> None:
    report = _replay([Plain(4.0 * i, (1,) * 8, 5) for i in range(10)])
    assert "10 completed, 0 failed, 0 cancelled in 37.25 s" in report.text()
    assert "e2e          1250.00" in report.text()
    data = report.to_json()
    assert data["ttft"] == {"mean": 0.25, "p50": 0.25, "p90": 0.25, "p99": 0.25}
    assert data["cache_hit_rate"] == 0.5
    assert "records" not in data
