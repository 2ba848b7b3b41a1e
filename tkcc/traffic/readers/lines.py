"""Lines of a file that nobody vouches for: bounded in size, with the place of each mistake."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from tkcc.ir.errors import TkccError

MAX_BYTES = 4 << 30  # after decompression
MAX_LINE = 4 << 20  # bytes
MAX_LINES = 20_000_000
MAX_TOKENS = 100_000_000  # of one request
_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of a file, where something may be wrong."""

    path: Path
    line: int

    def fail(self, what: str, remedy: str) -> NoReturn:
        raise TkccError(what, where=f"{self.path}:{self.line}", remedy=remedy)


def read_lines(
    path: Path, *, max_bytes: int = MAX_BYTES, max_line: int = MAX_LINE
) -> Iterator[tuple[Place, str]]:
    """The lines that are not blank, of plain or gzip-compressed UTF-8 text, one at a time.

    Raises TkccError for what cannot be read, is too long, or is not text.
    """
    total = 0
    with _opened(path) as file:
        for number in range(1, MAX_LINES + 1):
            place = Place(path, number)
            raw = _next(file, place, max_line)
            if not raw:
                return
            total += len(raw)
            if total > max_bytes:
                place.fail(f"the file has more than {max_bytes} bytes", "split it")
            if text := _decoded(raw, place).strip():
                yield place, text
        Place(path, MAX_LINES).fail(f"the file has more than {MAX_LINES} lines", "split it")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP
            file.seek(0)
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if compressed else file
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile) or error.strerror is None:
            raise _damaged(path) from error
        raise TkccError(f"cannot read {path}: {error.strerror}", remedy="check the path") from error
    except (EOFError, zlib.error) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> TkccError:
    return TkccError("the gzip data is damaged", where=str(path), remedy="fetch the file again")


def _next(file: BinaryIO, place: Place, limit: int) -> bytes:
    raw = file.readline(limit + 1)
    if len(raw) > limit:
        place.fail(f"the line is longer than {limit} bytes", "check the file's format")
    return raw


def _decoded(raw: bytes, place: Place) -> str:
    try:
        return raw.decode("utf-8-sig" if place.line == 1 else "utf-8")
    except UnicodeDecodeError:
        place.fail("the line is not UTF-8 text", "check the file's format")


def read_objects(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """One JSON object a line."""
    for place, text in read_lines(path):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            place.fail("the line is not JSON", "write one JSON object a line")
        if not isinstance(value, dict):
            place.fail("the line is not a JSON object", "write one JSON object a line")
        yield place, value


def read_document(path: Path) -> tuple[Place, dict[str, Any]]:
    """The one JSON object that the file holds."""
    place = Place(path, 1)
    try:
        value = json.loads("\n".join(text for _, text in read_lines(path, max_bytes=64 << 20)))
    except (ValueError, RecursionError):
        place.fail("the file is not JSON", "write one JSON object")
    if not isinstance(value, dict):
        place.fail("the file is not a JSON object", "write one JSON object")
    return place, value


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Place, dict[str, str]]]:
    """Rows of a CSV file whose first line names at least `columns`. A row is one line."""
    header: list[str] | None = None
    for place, text in read_lines(path, max_line=1 << 16):
        cells = _cells(text, place)
        if header is None:
            header = cells
            missing = [name for name in columns if name not in header]
            if missing:
                place.fail(f"no column {', '.join(missing)}", f"name {', '.join(columns)}")
            continue
        if len(cells) != len(header):
            place.fail(
                f"{len(cells)} cells, but the first line names {len(header)} columns",
                "give every row one cell per column",
            )
        yield place, dict(zip(header, cells, strict=True))


def _cells(text: str, place: Place) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([text], strict=True))]
    except csv.Error:
        place.fail("the line is not CSV", "check its quotes and commas")


def whole(value: Any, name: str, place: Place, *, least: int = 0, most: int = MAX_TOKENS) -> int:
    """`value` as a whole number within bounds; text is parsed."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        place.fail(f"{name} is {shown(value)}", f"give a whole number from {least} to {most}")
    return value


def real(value: Any, name: str, place: Place, *, least: float = 0.0, most: float = 1e15) -> float:
    """`value` as a finite number within bounds; text is parsed."""
    try:
        found = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not least <= found <= most:
        place.fail(f"{name} is {shown(value)}", f"give a number from {least:g} to {most:g}")
    return found


def shown(value: Any) -> str:
    """A short form of any value, for messages."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and not -(10**30) < value < 10**30:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def some(requests: list[Any], path: Path) -> list[Any]:
    """`requests`; refused if there are none."""
    if not requests:
        raise TkccError("the file has no requests", where=str(path), remedy="check the path")
    return requests
