"""The engine: a runtime that booted once, a scheduler, and steps through what is in the slot."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from tkcc.backends.base import Program, Runtime, SwapReport
from tkcc.engine.programs import ServeShape
from tkcc.engine.requests import Event, Request
from tkcc.engine.sampling import draw
from tkcc.engine.scheduler import DECODE, Limits, Plan, Row, Scheduler
from tkcc.ir.errors import BackendError


@dataclasses.dataclass
class Clock:
    """Where the engine's time went, in seconds, and how many steps of each kind it took.

    `device` is spent in the compiled step, until its result is on the host; the rest of `total` is
    the engine's own.
    """

    total: float = 0.0
    device: float = 0.0
    decode_steps: int = 0
    extend_steps: int = 0
    tokens_read: int = 0
    tokens_drawn: int = 0


class Engine:
    """Owns the runtime, whose slot must hold a program of `serving_module` with the same shape.

    Tokens are 0 to `vocabulary` - 1; `end_tokens` are the model's own; more than `max_waiting`
    waiting requests are refused. One thread calls `submit`, `cancel`, `step` and `swap`. Example:
        engine.submit(Request("a", (1, 2, 3)))
        while not engine.idle:
            for event in engine.step(): ...
    """

    def __init__(
        self,
        runtime: Runtime,
        shape: ServeShape,
        *,
        vocabulary: int,
        end_tokens: Iterable[int] = (),
        max_waiting: int = 1024,
    ) -> None:
        self.runtime, self.shape = runtime, shape
        self.scheduler = Scheduler(
            Limits(
                context=shape.context,
                page_size=shape.page_size,
                pages=shape.pages,
                decode=shape.decode,
                extend=shape.extend,
                reach=shape.reach,
                vocabulary=vocabulary,
                end_tokens=frozenset(end_tokens),
                max_waiting=max_waiting,
            )
        )
        self.clock = Clock()
        self._salts: dict[str, int] = {}

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def submit(self, request: Request) -> None:
        """Raises RequestError; then nothing has changed."""
        self.scheduler.submit(request)
        self._salts[request.id] = secrets.randbits(64)

    def cancel(self, name: str) -> list[Event]:
        """End a request now; nothing if it is not in flight."""
        return self._ended(self.scheduler.cancel(name))

    def step(self) -> list[Event]:
        """Compute one step, if there is work, and tell what came of it.

        After a step that fails (the device, or logits that no token can be drawn from) no page can
        be trusted: every request that holds pages ends, with the reason. Those that wait go on.
        """
        began = time.perf_counter()
        plan = self.scheduler.next()
        if plan is None:
            return []
        try:
            tokens = self._compute(plan)
        except BackendError as error:
            return self._lose(error)
        events = self.scheduler.commit(plan, tokens)
        self._count(plan, began)
        return self._ended(events)

    def swap(self, program: Program, *, exact: bool = True) -> SwapReport:
        """Put a program into the slot between two steps. Requests in flight go on with it.

        What is in the cache was computed by the old program. An exact one would have computed the
        same; after any other, new requests do not use pages of before.
        """
        report = self.runtime.swap(program)
        if not exact:
            self.scheduler.stop_sharing()
        return report

    def _lose(self, error: BackendError) -> list[Event]:
        events = self.scheduler.fail(tuple(self.scheduler.running), error.what)
        self.scheduler.lose_pages()
        self.runtime.reset_state()
        return self._ended(events)

    def _ended(self, events: list[Event]) -> list[Event]:
        for event in events:
            if event.finish is not None:
                self._salts.pop(event.request, None)
        return events

    # --- one step ------------------------------------------------------------------------------

    def _compute(self, plan: Plan) -> list[int | None]:
        name, given = self._arguments(plan)
        began = time.perf_counter()
        out = self.runtime.step(name, given)
        greedy = np.asarray(out["next_tokens"])
        self.clock.device += time.perf_counter() - began
        # logits stay on the device unless somebody draws from them
        free = any(row.request.sampling.temperature > 0 for row in plan.rows)
        logits = np.asarray(out["logits"]) if free else None
        return [
            self._token(row, int(greedy[i]), None if logits is None else logits[i])
            if draws
            else None
            for i, (row, draws) in enumerate(zip(plan.rows, plan.draws, strict=True))
        ]

    def _token(self, row: Row, greedy: int, logits: Any) -> int:
        sampling = row.request.sampling
        if sampling.temperature == 0:
            return greedy
        return draw(logits, sampling, len(row.tokens), self._salts[row.request.id])

    def _arguments(self, plan: Plan) -> tuple[str, dict[str, Any]]:
        columns = self.shape.columns(plan.reach)
        tables = np.zeros((plan.batch, columns), np.int32)
        starts = np.zeros(plan.batch, np.int32)
        tokens = np.zeros((plan.batch, plan.length), np.int32)
        counts = np.zeros(plan.batch, np.int32)
        for i, (row, start, count) in enumerate(
            zip(plan.rows, plan.starts, plan.counts, strict=True)
        ):
            tables[i] = self.scheduler.table(row, columns)
            tokens[i, :count] = row.tokens[start : start + count]
            starts[i], counts[i] = start, count
        if plan.kind == DECODE:
            given = {"tokens": tokens[:, 0], "positions": starts, "tables": tables}
            return self.shape.decode_name(plan.batch, plan.reach), given
        given = {"tokens": tokens, "starts": starts, "counts": counts, "tables": tables}
        return self.shape.extend_name(plan.batch, plan.length, plan.reach), given

    def _count(self, plan: Plan, began: float) -> None:
        clock = self.clock
        clock.total += time.perf_counter() - began
        clock.tokens_drawn += sum(plan.draws)
        if plan.kind == DECODE:
            clock.decode_steps += 1
        else:
            clock.extend_steps += 1
            clock.tokens_read += sum(plan.counts)
