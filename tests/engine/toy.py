"""A model whose next token depends on every token before it, read back through the pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tkcc.engine.pages import NULL_PAGE
from tkcc.engine.requests import Event, Request, Sampling
from tkcc.engine.sampling import draw
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
EMPTY, PADDING = -1, -2


def following(tokens: Any, sampling: Sampling) -> int:
    """The toy's next token: from a hash of the whole history, greedy or drawn."""
    value = 7
    for token in tokens:
        value = (value * 31 + int(token) + 11) % 1_000_003
    if sampling.temperature == 0:
        return value % LIMITS.vocabulary
    logits = np.random.default_rng(value).normal(size=LIMITS.vocabulary).astype(np.float32)
    return draw(logits, sampling, len(tokens), salt=0)


class Toy:
    """Runs plans as a device does: writes tokens (and padding) into pages, then reads each row's
    history back from them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.limits = scheduler, scheduler.limits
        self.memory = np.full((self.limits.pages, self.limits.page_size), EMPTY)
        self.computed = 0

    def run(self, plan: Plan) -> list[int | None]:
        """One step: every row writes all its tokens before any row reads."""
        assert len(plan.rows) <= plan.batch
        columns = plan.reach // self.limits.page_size
        tables = [self.scheduler.table(row, columns) for row in plan.rows]
        for row, table, start, count in zip(
            plan.rows, tables, plan.starts, plan.counts, strict=True
        ):
            assert 0 < count <= plan.length
            assert start + count <= plan.reach
            self.computed += count
            padding = [PADDING] * (plan.length - count)
            self._write(table, start, [*row.tokens[start : start + count], *padding])
        for _ in range(plan.batch - len(plan.rows)):
            self._write([NULL_PAGE] * columns, 0, [PADDING] * plan.length)
        return [
            following(self._read(table, start + count), row.request.sampling) if draws else None
            for row, table, start, count, draws in zip(
                plan.rows, tables, plan.starts, plan.counts, plan.draws, strict=True
            )
        ]

    def check(self) -> None:
        """Assert that each row's pages hold what it believes, and that none has page 0."""
        for row in self.scheduler.running:
            assert NULL_PAGE not in row.pages
            assert list(self._read(row.pages, row.computed)) == row.tokens[: row.computed]

    def _write(self, table: Sequence[int], start: int, tokens: Sequence[int]) -> None:
        size = self.limits.page_size
        for position, token in enumerate(tokens, start):
            inside = position < len(table) * size
            page = table[position // size] if inside else NULL_PAGE
            holders = [row for row in self.scheduler.running if page in row.pages]
            assert page == NULL_PAGE or len(holders) == 1, "a page that others read is written"
            self.memory[page, position % size] = token

    def _read(self, table: Sequence[int], length: int) -> list[int]:
        size = self.limits.page_size
        history = [int(self.memory[table[p // size], p % size]) for p in range(length)]
        assert EMPTY not in history
        assert PADDING not in history
        return history


def alone(request: Request, limits: Limits = LIMITS) -> tuple[list[int], str]:
    """What a request must hear: its tokens and how it ends."""
    tokens, said = list(request.prompt), []
    while True:
        token = following(tokens, request.sampling)
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
        assert not ends, "something is heard after the end"
        if event.token is not None:
            tokens.append(event.token)
        if event.finish is not None:
            ends.append(event.finish)
    return found
