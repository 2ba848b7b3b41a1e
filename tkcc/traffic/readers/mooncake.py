"""The Mooncake format: one JSON object a line, with ids of reusable prompt blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tkcc.traffic.readers.lines import Place, read_objects, real, shown, some, whole
from tkcc.traffic.records import TrafficRequest

BLOCK = 512  # tokens, in the published traces


def read_mooncake(path: str | Path, *, block_size: int = BLOCK) -> list[TrafficRequest]:
    """Requests of `timestamp` (ms), `input_length`, `output_length` and `hash_ids` (may be absent).

    There is one id per block of the prompt, the last one partial; equal ids are equal prefixes.
    Times stay as they are written; the published ones are rounded to 3 s, see `spread_steps`.
    Sorted by time. Raises TkccError with the line.
    """
    path = Path(path)
    found = [_request(place, row, block_size) for place, row in read_objects(path)]
    first = min((request.arrival for request in some(found, path)), default=0.0)
    shifted = [_shifted(request, first) for request in found]
    return sorted(shifted, key=lambda request: request.arrival)


def _request(place: Place, row: dict[str, Any], block_size: int) -> TrafficRequest:
    for name in ("timestamp", "input_length", "output_length"):
        if name not in row:
            place.fail(f"no {name}", "give timestamp, input_length and output_length")
    length = whole(row["input_length"], "input_length", place, least=1)
    hashes = _hashes(row.get("hash_ids", []), place)
    if len(hashes) * block_size >= length + block_size:
        place.fail(
            f"{len(hashes)} hash_ids for {length} tokens",
            f"give one per block of {block_size} tokens, or name the trace's block_size",
        )
    return TrafficRequest(
        arrival=real(row["timestamp"], "timestamp", place) / 1000,
        input_tokens=length,
        output_tokens=whole(row["output_length"], "output_length", place),
        block_hashes=hashes,
        block_size=block_size if hashes else 0,
    )


def _hashes(value: Any, place: Place) -> tuple[int, ...]:
    if not isinstance(value, list):
        place.fail(f"hash_ids is {shown(value)}", "give a list of whole numbers")
    return tuple(whole(item, "an item of hash_ids", place, most=2**64 - 1) for item in value)


def _shifted(request: TrafficRequest, first: float) -> TrafficRequest:
    return TrafficRequest(
        request.arrival - first,
        request.input_tokens,
        request.output_tokens,
        block_hashes=request.block_hashes,
        block_size=request.block_size,
    )
