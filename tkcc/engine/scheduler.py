"""Which tokens the next step computes: continuous batching over a paged cache.

The rule: a step that reads prompts and a step that decodes take turns while both have work, so
neither waits for more than one step of the other. Prompts are read in pieces, oldest request
first. A request is let in when its whole prompt has pages; if decoding runs out of pages, the
request that came last gives its pages up and is read again later (its full pages stay known while
there is room).

The scheduler knows no device: `next` says what to compute, `commit` takes the drawn tokens.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from tkcc.engine.pages import NULL_PAGE, PagePool, block_hashes
from tkcc.engine.plans import DECODE, EXTEND, Limits, Plan, Row, extend_bucket
from tkcc.engine.requests import (
    CANCELLED,
    ERROR,
    LENGTH,
    STOP,
    Event,
    Request,
    RequestError,
    validate,
)

__all__ = ["DECODE", "EXTEND", "Limits", "Plan", "Row", "Scheduler"]


class Scheduler:
    """Requests in, plans and events out. Not thread-safe: one loop owns it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = PagePool(limits.pages)
        self.waiting: collections.deque[Row] = collections.deque()
        self.running: list[Row] = []  # in the order of arrival
        self._rows: dict[str, Row] = {}
        self._last = EXTEND
        self._planned: Plan | None = None

    def submit(self, request: Request) -> None:
        """Raises RequestError; then nothing has changed."""
        validate(request, vocabulary=self.limits.vocabulary, context=self.limits.context)
        if request.id in self._rows:
            raise RequestError("duplicate_id", f"request {request.id!r} is in flight", "rename it")
        if len(self.waiting) >= self.limits.max_waiting:
            raise RequestError(
                "overloaded", f"{len(self.waiting)} requests are waiting", "try again later"
            )
        row = Row(request, list(request.prompt))
        self._rows[request.id] = row
        self.waiting.append(row)

    def cancel(self, name: str) -> list[Event]:
        """End a request now; nothing if it is not in flight."""
        row = self._rows.get(name)
        return [] if row is None else [self._finish(row, CANCELLED)]

    def fail(self, rows: Sequence[Row], error: str) -> list[Event]:
        """End rows whose step went wrong."""
        self._planned = None
        return [self._finish(row, ERROR, error) for row in rows if self._alive(row)]

    def lose_pages(self) -> None:
        """What the pages held is gone. Requests in flight are read again, and hear no difference.

        A plan that is not committed is void.
        """
        self._planned = None
        for row in reversed(self.running):
            self._put_off(row)
        self.pool.forget()

    def stop_sharing(self) -> None:
        """What the pages hold would be computed otherwise now. Requests in flight go on with it;
        others share nothing with them."""
        self.pool.forget()
        for row in self.running:
            row.apart = True

    @property
    def idle(self) -> bool:
        return not self._rows

    # --- planning ------------------------------------------------------------------------------

    def next(self) -> Plan | None:
        """What to compute now; None only if nothing is in flight. Commit or fail each plan."""
        assert self._planned is None, "commit the last plan first"
        self._admit()
        # all that decode may have given way to those that read, so each may have nothing to do
        if self._last == EXTEND:
            plan = self._decode() or self._extend()
        else:
            plan = self._extend() or self._decode()
        assert plan is not None or self.idle
        if plan is not None:
            self._last = plan.kind
        self._planned = plan
        return plan

    def _admit(self) -> None:
        """Let waiting requests in, in order, while there are rows and pages for them."""
        while self.waiting and len(self.running) < max(self.limits.decode):
            if not self._start(self.waiting[0]):
                return
            row = self.waiting.popleft()
            self.running.append(row)

    def _start(self, row: Row) -> bool:
        """Give a row the pages of all its tokens, those that are known first."""
        size = self.limits.page_size
        row.hashes = block_hashes(row.tokens, size, row.hashes)
        # one token at least is computed, for its logits
        known = self.pool.match(row.hashes[: (len(row.tokens) - 1) // size])
        self.pool.hold(known)
        needed = -(-len(row.tokens) // size) - len(known)
        fresh = self.pool.allocate(needed)
        if fresh is None:
            self.pool.release(reversed(known))
            return False
        row.pages, row.computed, row.apart = [*known, *fresh], len(known) * size, False
        if not row.started:
            row.started, row.cached = True, row.computed
            self.pool.counts.hits += row.computed
            self.pool.counts.misses += len(row.tokens) - row.computed
        return True

    def _extend(self) -> Plan | None:
        reading = [row for row in self.running if row.reading]
        if not reading:
            return None
        pending = [row.pending for row in reading]
        batch, length = extend_bucket(self.limits.extend, pending)
        rows = tuple(reading[:batch])
        counts = tuple(min(row.pending, length) for row in rows)
        draws = tuple(c == row.pending for row, c in zip(rows, counts, strict=True))
        return self._plan(EXTEND, batch, length, rows, counts, draws)

    def _decode(self) -> Plan | None:
        decoding = [row for row in self.running if not row.reading]
        # who comes later gives way first, so a row that has its place keeps it
        rows = tuple(row for row in decoding if self._has_place(row))
        if not rows:
            return None
        batch = min(size for size in self.limits.decode if size >= len(rows))
        return self._plan(DECODE, batch, 1, rows, (1,) * len(rows), (True,) * len(rows))

    def _plan(
        self,
        kind: str,
        batch: int,
        length: int,
        rows: tuple[Row, ...],
        counts: tuple[int, ...],
        draws: tuple[bool, ...],
    ) -> Plan:
        starts = tuple(row.computed for row in rows)
        ends = max(start + count for start, count in zip(starts, counts, strict=True))
        reach = min(size for size in self.limits.reach if size >= ends)
        return Plan(kind, batch, length, reach, rows, starts, counts, draws)

    def _has_place(self, row: Row) -> bool:
        """Give a row the page of its newest token; the last to come may have to give way."""
        while row.pages and len(row.pages) * self.limits.page_size < len(row.tokens):
            fresh = self.pool.allocate(1)
            if fresh is not None:
                row.pages += fresh
            else:
                self._put_off(self.running[-1])
        return bool(row.pages)

    def _put_off(self, row: Row) -> None:
        """Take a row's pages; it is the first to be let in again."""
        self.pool.release(reversed(row.pages))
        row.pages, row.computed = [], 0
        self.running.remove(row)
        self.waiting.appendleft(row)

    def table(self, row: Row, columns: int) -> list[int]:
        """The row's pages, filled up with the null page."""
        pages = row.pages[:columns]
        return pages + [NULL_PAGE] * (columns - len(pages))

    # --- what became of it ---------------------------------------------------------------------

    def commit(self, plan: Plan, tokens: Sequence[int | None]) -> list[Event]:
        """The plan was computed; `tokens[i]` is the token drawn for row i, where it draws one."""
        assert plan is self._planned
        self._planned = None
        events: list[Event] = []
        for row, count, draws, token in zip(
            plan.rows, plan.counts, plan.draws, tokens, strict=True
        ):
            if not self._alive(row):
                continue  # cancelled while its step ran
            self._remember(row, row.computed + count)
            if draws:
                assert token is not None
                events.append(self._take(row, token))
        return events

    def _remember(self, row: Row, computed: int) -> None:
        """More of a row is in the cache: its pages that became full may serve others."""
        size = self.limits.page_size
        first, last = row.computed // size, computed // size
        row.computed = computed
        if row.apart:
            return
        if last > len(row.hashes):
            row.hashes = block_hashes(row.tokens[:computed], size, row.hashes)
        for block in range(first, last):
            self.pool.remember(row.pages[block], row.hashes[block])

    def _take(self, row: Row, token: int) -> Event:
        sampling, name = row.request.sampling, row.request.id
        ends = token in self.limits.end_tokens and not sampling.ignore_end
        if ends or token in sampling.stop_tokens:
            return self._finish(row, STOP)
        row.tokens.append(token)
        full = len(row.tokens) >= self.limits.context
        if row.answered >= sampling.max_tokens or full:
            return dataclasses.replace(self._finish(row, LENGTH), token=token)
        return Event(name, token, cached_tokens=row.cached)

    def _alive(self, row: Row) -> bool:
        return self._rows.get(row.request.id) is row

    def _finish(self, row: Row, finish: str, error: str = "") -> Event:
        del self._rows[row.request.id]
        if row in self.running:
            self.running.remove(row)
        else:
            self.waiting.remove(row)
        self.pool.release(reversed(row.pages))
        row.pages = []
        return Event(row.request.id, None, finish, error, row.cached)
