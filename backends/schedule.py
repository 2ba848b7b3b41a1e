"""`Schedule`: the choices that shape kernels, separate from the IR."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from tkcc.ir.errors import BackendError


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What a backend does with each group: group label -> entry, a mapping of plain data.

    A key is a group's label (`mlp`), a label in one function (`decode/mlp`), a site of the
    program's report (`decode:4.0.2`), or the backend's own name for its compiler's settings
    (`xla`). Entries mean what the backend says they mean; most have `kernel` and `config`. The
    empty schedule is the backend's default. Two schedules with the same entries are equal and have
    the same hash, whatever the order of their keys.

        Schedule.of({"mlp": {"kernel": "pallas:swiglu_mlp", "config": {"block_m": 128}}})
    """

    text: str = "{}"

    @staticmethod
    def of(entries: Mapping[str, Mapping[str, Any]]) -> Schedule:
        """From plain data. Raises BackendError for what JSON cannot hold exactly."""
        for key, entry in entries.items():
            if not isinstance(key, str) or not isinstance(entry, Mapping):
                raise BackendError(
                    f"schedule entry {key!r} is a {type(entry).__name__}, not a mapping",
                    remedy='write {"label": {"kernel": ..., "config": {...}}}',
                )
        return Schedule(json.dumps(_plain(entries, "schedule"), sort_keys=True))

    @staticmethod
    def parse(text: str) -> Schedule:
        """From JSON text. Raises BackendError."""
        try:
            entries = json.loads(text)
        except json.JSONDecodeError as error:
            raise BackendError(
                f"the schedule is not JSON: {error}", remedy='write {"label": {"kernel": ...}}'
            ) from error
        if not isinstance(entries, dict):
            raise BackendError(
                f"the schedule is a JSON {type(entries).__name__}, not an object",
                remedy='write {"label": {"kernel": ...}}',
            )
        return Schedule.of(entries)

    def __post_init__(self) -> None:
        assert isinstance(self._loaded, dict), "make schedules with Schedule.of"

    @functools.cached_property
    def _loaded(self) -> Any:
        return json.loads(self.text)

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """A fresh copy of the entries."""
        return dict(json.loads(self.text))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._loaded)

    def get(self, *keys: str) -> tuple[str, dict[str, Any]] | None:
        """The first of `keys` that has an entry, with a copy of the entry."""
        for key in keys:
            if key in self._loaded:
                return key, json.loads(json.dumps(self._loaded[key]))
        return None

    def with_entry(self, key: str, entry: Mapping[str, Any]) -> Schedule:
        """This schedule with one entry set."""
        return Schedule.of({**self.entries, key: entry})

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of the entries, the same in every process."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def _plain(value: Any, where: str) -> Any:
    """`value` with mappings as dicts and sequences as lists; BackendError for anything else."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise BackendError(f"{where}: key {key!r} is no text", remedy="use string keys")
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    finite = not isinstance(value, float) or math.isfinite(value)
    if value is None or (isinstance(value, (bool, int, float, str)) and finite):
        return value
    raise BackendError(
        f"{where} is {value!r} ({type(value).__name__}), which JSON cannot hold",
        remedy="use text, finite numbers, true, false, lists and mappings",
    )
