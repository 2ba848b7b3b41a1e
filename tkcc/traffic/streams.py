"""Engines that answer by streams, as engines to step: one thread listens to each request."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable

from tkcc.engine.requests import CANCELLED, ERROR, Event, Request
from tkcc.ir.errors import TkccError

Send = Callable[[Request], Iterable[Event]]
_WAIT = 0.002  # seconds; a request that falls due in the meantime is that late at most


class Streams:
    """Makes `send`, which gives a request's events as they come, an engine for `replay`.

    Threads, because `send` may block in any library; they only move events into one queue. A
    stream that breaks off, with an exception or without an end, fails its request alone. A request
    that was cancelled ends at once, and what its stream still says is not heard; `stop`, if given,
    is told its id.
    """

    def __init__(self, send: Send, stop: Callable[[str], None] | None = None) -> None:
        self.send, self.stop = send, stop
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._open: set[str] = set()

    @property
    def idle(self) -> bool:
        return not self._open

    def submit(self, request: Request) -> None:
        self._open.add(request.id)
        threading.Thread(target=self._listen, args=(request,), daemon=True).start()

    def step(self) -> list[Event]:
        """The events since the last step; waits for 2 ms at most."""
        found: list[Event] = []
        try:
            found.append(self._events.get(timeout=_WAIT))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            return [event for event in found if self._heard(event)]

    def cancel(self, name: str) -> list[Event]:
        if name not in self._open:
            return []
        self._open.remove(name)
        if self.stop is not None:
            self.stop(name)
        return [Event(name, finish=CANCELLED)]

    def _heard(self, event: Event) -> bool:
        known = event.request in self._open
        if event.finish is not None:
            self._open.discard(event.request)
        return known

    def _listen(self, request: Request) -> None:
        last: Event | None = None
        try:
            for last in self.send(request):
                self._events.put(last)
        except TkccError as error:
            self._fail(request, error.what)
        except Exception as error:  # noqa: BLE001  (any library's: the request fails, and says so)
            self._fail(request, f"{type(error).__name__}: {error}")
        else:
            if last is None or last.finish is None:
                self._fail(request, "the stream ended before the answer did")

    def _fail(self, request: Request, why: str) -> None:
        self._events.put(Event(request.id, finish=ERROR, error=why))
