"""The format of Azure's public traces of language model inference: lengths and times only."""

from __future__ import annotations

import datetime
from pathlib import Path

from tkcc.traffic.readers.lines import Place, read_rows, shown, some, whole
from tkcc.traffic.records import TrafficRequest

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: str | Path) -> list[TrafficRequest]:
    """Requests of `TIMESTAMP` (ISO 8601, UTC if it names no zone) and two token counts.

    Nothing is known of prefixes. Sorted by time. Raises TkccError with the line.
    """
    path = Path(path)
    found = [
        (
            _seconds(row["TIMESTAMP"], place),
            whole(row["ContextTokens"], "ContextTokens", place, least=1),
            whole(row["GeneratedTokens"], "GeneratedTokens", place),
        )
        for place, row in read_rows(path, _COLUMNS)
    ]
    found = sorted(some(found, path), key=lambda row: row[0])
    return [TrafficRequest(when - found[0][0], given, made) for when, given, made in found]


def _seconds(text: str, place: Place) -> float:
    return moment(text, "TIMESTAMP", place)


def moment(text: str, name: str, place: Place) -> float:
    """Seconds since 1970 of an ISO 8601 time."""
    try:
        when = datetime.datetime.fromisoformat(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=datetime.UTC)
        return when.timestamp()
    except (ValueError, OverflowError):
        place.fail(f"{name} is {shown(text)}", "write it as 2023-11-16 18:17:03.97")
