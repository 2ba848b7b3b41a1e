"""Earlier prompts that a made-up request can continue, and the choice among them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tkcc.traffic.generate import Piece

_KEPT = 8192  # prompts
_LEAST = 0.5  # of the wanted tokens, or it is not the conversation that was meant
_TOO_SHORT = 8.0  # a prompt that is too short costs shared tokens, a long one only realism
_TIMING = 0.3  # weight of the time since, against that of the length


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Conversation:
    """A prompt that was sent at `time`, `length` tokens long, the `turn`-th of its session."""

    time: float
    length: int
    session: int
    turn: int
    pieces: tuple[Piece, ...]


class History:
    """The last prompts, in rings of numbers so that the choice is one numpy expression."""

    def __init__(self) -> None:
        self._items: list[Conversation] = []
        self._lengths = np.zeros(_KEPT)
        self._times = np.zeros(_KEPT)
        self._added = 0
        self._sessions = 0

    def next_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def add(self, made: Conversation) -> None:
        place = self._added % _KEPT
        if place == len(self._items):
            self._items.append(made)
        else:
            self._items[place] = made
        self._lengths[place], self._times[place] = made.length, made.time
        self._added += 1

    def find(self, time: float, length: int, gap: float | None) -> Conversation | None:
        """The prompt that is nearest to `length` tokens long and `gap` seconds old.

        None if none has at least half of the tokens.
        """
        known = len(self._items)
        have = np.maximum(self._lengths[:known], 1)
        ratio = np.log(have / length)
        cost = np.where(ratio < 0, -_TOO_SHORT * ratio, ratio)
        if gap is not None:
            age = time - self._times[:known]
            cost = cost + _TIMING * np.abs(np.log((age + 1) / (gap + 1)))
        cost[have < _LEAST * length] = np.inf
        if not known or not np.isfinite(best := cost.min()):
            return None
        return self._items[int(np.flatnonzero(cost == best)[-1])]
