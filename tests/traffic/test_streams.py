from __future__ import annotations

import threading
from collections.abc import Iterator

from tests.traffic.simulated import Plain
from tkcc.engine.requests import LENGTH, Event, Request, RequestError
from tkcc.traffic.replay import replay
from tkcc.traffic.streams import Streams


def _answer(request: Request) -> Iterator[Event]:
    kind = request.prompt[0]
    if kind == 1:
        raise RequestError("bad", "refused at the door")
    yield Event(request.id, 7, cached_tokens=1)
    if kind == 2:
        raise OSError("the connection broke")
    if kind != 3:
        yield Event(request.id, 8, LENGTH)


def test_streams_are_replayed_and_a_broken_one_fails_its_request_alone() -> None:
    requests = [Plain(0.0, (kind, 5), 2) for kind in (0, 1, 2, 3, 0)]
    report = replay(Streams(_answer), requests)
    assert (report.completed, report.failed) == (2, 3)
    assert [record.tokens for record in report.records if record.completed] == [[7, 8], [7, 8]]
    assert set(report.errors) == {
        "refused at the door",
        "OSError: the connection broke",
        "the stream ended before the answer did",
    }
    assert report.cache_hit_rate == 0.5


def test_a_stream_that_hangs_is_cancelled_and_its_sender_told() -> None:
    release = threading.Event()
    stopped: list[str] = []

    def hang(request: Request) -> Iterator[Event]:
        release.wait(30)
        yield Event(request.id, 1, LENGTH)

    report = replay(Streams(hang, stopped.append), [Plain(0.0, (1,), 2)], patience=0.05)
    release.set()
    assert report.cancelled == 1
    assert stopped == ["replay-0"]
