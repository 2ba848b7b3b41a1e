"""What every reader gives: one request of a trace."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class TrafficRequest:
    """One request. Times are in seconds, lengths in tokens.

    Two prompts whose first n `block_hashes` are equal share their first n * `block_size` tokens;
    the last block may be partial. What the trace does not tell is None or empty.
    """

    arrival: float  # since the trace's first request
    input_tokens: int
    output_tokens: int
    session: str | None = None
    block_hashes: tuple[int, ...] = ()
    block_size: int = 0
    reused_tokens: int | None = None  # as recorded, where prompts before the trace count too
    turn: int | None = None  # 1 is the session's first
    think: float | None = None  # between the session's last answer and this request
    latency: float | None = None  # until the last token, on the server that was recorded
