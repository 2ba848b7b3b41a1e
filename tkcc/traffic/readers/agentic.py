"""Replays of recorded coding-agent sessions: who reused how much of the last prompt."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tkcc.traffic.readers.lines import Place, read_rows, real, some, whole
from tkcc.traffic.records import TrafficRequest

BLOCK = 64  # tokens
_PAUSE = 3600.0  # seconds without a request: another replay with the same settings
_COLUMNS = (
    *("tp", "users", "offload", "request_idx", "trace_id"),
    *("input_tokens", "output_tokens_expected", "cache_hit_blocks", "cache_miss_blocks"),
    *("ttlt", "delay_expected", "request_start_time"),
)

Run = tuple[int, int, str]


@dataclasses.dataclass(frozen=True)
class _Row:
    run: Run
    start: float
    session: str
    index: int
    input_tokens: int
    output_tokens: int
    hits: int
    misses: int
    latency: float
    think: float


def read_agentic(path: str | Path, *, run: Run | None = None) -> list[TrafficRequest]:
    """Recorded requests, each once, by session and turn; or those of one replay, by time.

    `run` is (tp, users, offload), as in the file; of several replays with the same settings it
    gives the longest. `arrival` is when the replay sent the request, so without `run` the arrivals
    of different sessions belong to different replays and say nothing together. `reused_tokens` is
    the recorded reuse, which counts turns before the replay's first one. Raises TkccError.
    """
    path = Path(path)
    rows = [_row(place, row) for place, row in read_rows(path, _COLUMNS)]
    if run is None:
        chosen = _distinct(rows)
    else:
        chosen = _longest_replay([row for row in rows if row.run == run])
    return _requests(some(chosen, path))


def _row(place: Place, row: dict[str, str]) -> _Row:
    tp, users = (whole(row[name], name, place) for name in ("tp", "users"))
    made = _Row(
        run=(tp, users, row["offload"]),
        start=real(row["request_start_time"], "request_start_time", place),
        session=row["trace_id"],
        index=whole(row["request_idx"], "request_idx", place),
        input_tokens=whole(row["input_tokens"], "input_tokens", place, least=1),
        output_tokens=whole(row["output_tokens_expected"], "output_tokens_expected", place),
        hits=whole(row["cache_hit_blocks"], "cache_hit_blocks", place),
        misses=whole(row["cache_miss_blocks"], "cache_miss_blocks", place),
        latency=real(row["ttlt"], "ttlt", place),
        think=real(row["delay_expected"], "delay_expected", place),
    )
    if made.hits + made.misses != made.input_tokens // BLOCK:
        place.fail(
            f"{made.hits} + {made.misses} blocks for {made.input_tokens} tokens",
            f"hit and miss blocks of {BLOCK} tokens must add up to the prompt",
        )
    return made


def _distinct(rows: list[_Row]) -> list[_Row]:
    first: dict[tuple[str, int], _Row] = {}
    for row in rows:
        first.setdefault((row.session, row.index), row)
    return sorted(first.values(), key=lambda row: (row.session, row.index))


def _longest_replay(rows: list[_Row]) -> list[_Row]:
    replays: list[list[_Row]] = []
    for row in sorted(rows, key=lambda row: row.start):
        if not replays or row.start - replays[-1][-1].start > _PAUSE:
            replays.append([])
        replays[-1].append(row)
    return max(replays, key=len, default=[])


def _requests(rows: list[_Row]) -> list[TrafficRequest]:
    """Block hashes follow from the counts: a turn keeps the hit blocks of the session's last."""
    first = min(row.start for row in rows)
    context: dict[str, list[int]] = {}
    fresh = iter(range(1, 1 << 62))
    made = []
    for row in rows:
        kept = context.get(row.session, [])[: row.hits]
        blocks = kept + [next(fresh) for _ in range(row.hits + row.misses - len(kept))]
        context[row.session] = blocks
        made.append(_request(row, tuple(blocks), first))
    return made


def _request(row: _Row, blocks: tuple[int, ...], first: float) -> TrafficRequest:
    return TrafficRequest(
        arrival=row.start - first,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        session=row.session,
        block_hashes=blocks,
        block_size=BLOCK,
        reused_tokens=row.hits * BLOCK,
        turn=row.index + 1,
        think=row.think if row.index else None,
        latency=row.latency,
    )
