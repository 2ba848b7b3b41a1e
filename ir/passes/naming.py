"""Names for what stands for several layers: `layers.0.w`, `layers.1.w` become `layers.*.w`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tkcc.ir.graph import NO_SOURCE, Source

_FIELD = re.compile(r"\d+|\D+")


def _fields(names: Sequence[str]) -> list[tuple[str, ...]] | None:
    """Per position the field of every name, or None if the names are not built alike."""
    rows = [tuple(_FIELD.findall(name)) for name in names]
    if not rows or len({len(row) for row in rows}) != 1:
        return None
    columns = list(zip(*rows, strict=True))
    alike = all(len(set(column)) == 1 or all(map(str.isdigit, column)) for column in columns)
    return columns if alike else None


def starred(names: Sequence[str]) -> str:
    """One name for all: numbers that differ become `*`; else the common ends around a `*`."""
    columns = _fields(names)
    if columns is not None:
        return "".join(column[0] if len(set(column)) == 1 else "*" for column in columns)
    head = os.path.commonprefix(list(names))
    tail = os.path.commonprefix([name[len(head) :][::-1] for name in names])[::-1]
    return f"{head}*{tail}"


def stacked_name(names: Sequence[str]) -> str:
    """`starred`, and which numbers it stands for unless they are 0, 1, 2, ...

    Example: `k_1`, `k_3`, `k_5` give `k_*[1:6:2]`.
    """
    columns = _fields(names) or []
    differing = [column for column in columns if len(set(column)) > 1]
    if len(differing) != 1:
        return starred(names)
    return starred(names) + _range_text([int(text) for text in differing[0]])


def _range_text(numbers: Sequence[int]) -> str:
    if list(numbers) == list(range(len(numbers))):
        return ""
    steps = {b - a for a, b in zip(numbers, numbers[1:], strict=False)}
    if len(steps) == 1 and (step := steps.pop()) > 0:
        return f"[{numbers[0]}:{numbers[-1] + 1}" + (f":{step}]" if step > 1 else "]")
    return f"[{','.join(map(str, numbers))}]"


def shared_source(sources: Sequence[Source]) -> Source:
    """The first source, with the layer's number in its path replaced by `*`."""
    first = sources[0] if sources else NO_SOURCE
    columns = _fields([source.path for source in sources])
    if columns is None or not first.path:
        return first
    return Source(starred([source.path for source in sources]), first.file, first.rewrites)
