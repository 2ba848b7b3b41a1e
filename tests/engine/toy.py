"""A model whose next token depends on every token before it, read back through the pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from tkcc.engine.requests import Event, Request
from tkcc.engine.scheduler import Limits, Plan, Scheduler

LIMITS = Limits(
    context=24,
    page_size=4,
    pages=14,
    decode=(1, 2, 4),
    extend=((1, 4), (2, 8)),
    reach=(8, 24),
    vocabulary=97,
    end_tokens=frozenset({0}),
    max_waiting=8,
)
EMPTY = -1


def following(tokens: Any, vocabulary: int = LIMITS.vocabulary) -> int:
    """The toy's next token: a hash of the whole history."""
    value = 7
    for token in tokens:
        value = (value * 31 + int(token) + 11) % 1_000_003
    return value % vocabulary


class Toy:
    """Runs plans: writes tokens into pages, and reads each history back from them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.limits = scheduler, scheduler.limits
        self.memory = np.full((self.limits.pages, self.limits.page_size), EMPTY)
        self.computed = 0

    def run(self, plan: Plan) -> list[int | None]:
        """One step: every row writes all its tokens before any row reads."""
        size = self.limits.page_size
        assert len(plan.rows) <= plan.batch
        tables = [self.scheduler.table(row, plan.reach // size) for row in plan.rows]
        for row, table, start, count in zip(
            plan.rows, tables, plan.starts, plan.counts, strict=True
        ):
            assert 0 < count <= plan.length
            assert start + count <= plan.reach
            self.computed += count
            for position in range(start, start + count):
                self.memory[table[position // size], position % size] = row.tokens[position]
        return [
            self._read(table, start + count) if draws else None
            for table, start, count, draws in zip(
                tables, plan.starts, plan.counts, plan.draws, strict=True
            )
        ]

    def _read(self, table: list[int], length: int) -> int:
        size = self.limits.page_size
        history = [self.memory[table[p // size], p % size] for p in range(length)]
        assert EMPTY not in history
        return following(history)


def alone(request: Request, limits: Limits = LIMITS) -> tuple[list[int], str]:
    """What a request must hear: its tokens and how it ends."""
    tokens, said = list(request.prompt), []
    while True:
        token = following(tokens)
        ends = token in limits.end_tokens and not request.sampling.ignore_end
        if ends or token in request.sampling.stop_tokens:
            return said, "stop"
        tokens.append(token)
        said.append(token)
        if len(said) >= request.sampling.max_tokens or len(tokens) >= limits.context:
            return said, "length"


def heard(events: list[Event]) -> dict[str, tuple[list[int], list[str]]]:
    """Per request: its tokens, and its ends (of which there is one)."""
    found: dict[str, tuple[list[int], list[str]]] = {}
    for event in events:
        tokens, ends = found.setdefault(event.request, ([], []))
        if event.token is not None:
            tokens.append(event.token)
        if event.finish is not None:
            ends.append(event.finish)
    return found
