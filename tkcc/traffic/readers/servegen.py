"""ServeGen's client rates: how many clients send how often, and how bursty each is."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tkcc.ir.errors import TkccError
from tkcc.traffic.quantiles import Quantiles
from tkcc.traffic.readers.lines import Place, read_document, read_rows, real, shown, whole
from tkcc.traffic.records import TrafficRequest

BIN = 600.0  # seconds
_COLUMNS = ("category", "client", "t", "rate", "cv", "pattern", "arg1", "arg2")
_FAMILIES = ("Gamma", "Weibull")


@dataclasses.dataclass(frozen=True)
class Spell:
    """`BIN` seconds of one client. `shape` is that of the gaps' Gamma or Weibull distribution."""

    start: float
    rate: float
    family: str
    shape: float


@dataclasses.dataclass(frozen=True)
class ClientRates:
    """The clients of one category, and the quantiles of their requests' lengths.

    Lengths are those of all clients together, weighted by rate: clients differ by orders of
    magnitude, and requests drawn here do not.
    """

    category: str
    clients: dict[int, tuple[Spell, ...]]
    input: Quantiles
    output: Quantiles

    @property
    def span(self) -> float:
        """Seconds until the end of the last spell."""
        return max(spells[-1].start for spells in self.clients.values()) + BIN

    def rate(self, time: float) -> float:
        """Requests per second of all clients at `time`."""
        spells = (_at(spells, time) for spells in self.clients.values())
        return sum(spell.rate for spell in spells if spell)

    def requests(
        self, start: float, seconds: float, *, seed: int = 0, most: int = 1_000_000
    ) -> list[TrafficRequest]:
        """Draw the requests of a stretch of time. The session is the client.

        Gaps have the recorded distribution's shape, scaled to the recorded rate. Raises TkccError
        if there are none, or more than `most`.
        """
        rng = np.random.default_rng(seed)
        found = [
            (when, client)
            for client, spells in sorted(self.clients.items())
            for spell in spells
            for when in _arrivals(spell, start, start + seconds, rng)
        ]
        if not 0 < len(found) <= most:
            raise TkccError(
                f"{len(found)} requests from {start:g} s on",
                where=self.category,
                remedy=f"choose a stretch within {self.span:g} s, with at most {most} requests",
            )
        return self._with_lengths(sorted(found), start, rng)

    def _with_lengths(
        self, found: list[tuple[float, int]], start: float, rng: np.random.Generator
    ) -> list[TrafficRequest]:
        given = self.input.counts(rng.uniform(size=len(found)))
        made = self.output.counts(rng.uniform(size=len(found)))
        return [
            TrafficRequest(when - start, int(i), int(o), session=f"client-{client}")
            for (when, client), i, o in zip(found, given, made, strict=True)
        ]


def _at(spells: tuple[Spell, ...], time: float) -> Spell | None:
    index = bisect.bisect_right(spells, time, key=lambda spell: spell.start) - 1
    return spells[index] if index >= 0 and time < spells[index].start + BIN else None


def _arrivals(spell: Spell, start: float, end: float, rng: np.random.Generator) -> Iterator[float]:
    low, high = max(start, spell.start), min(end, spell.start + BIN)
    if high <= low:
        return
    # the first gap begins at a random point of itself, or bins would start with a burst
    time = low - float(rng.uniform()) * _gap(spell, rng)
    while (time := time + _gap(spell, rng)) < high:
        if time >= low:
            yield time


def _gap(spell: Spell, rng: np.random.Generator) -> float:
    if spell.family == "Gamma":
        return float(rng.gamma(spell.shape)) / spell.shape / spell.rate
    mean = math.gamma(1 + 1 / spell.shape)
    return float(rng.weibull(spell.shape)) / mean / spell.rate


def read_servegen(
    rates: str | Path, lengths: str | Path, category: str = "language/m-large"
) -> ClientRates:
    """`rates` is the CSV of client rates, `lengths` the JSON of length quantiles per category.

    Raises TkccError with the line, or if a file does not know the category.
    """
    found: dict[int, list[Spell]] = {}
    categories = set()
    for place, row in read_rows(Path(rates), _COLUMNS):
        categories.add(row["category"])
        if row["category"] == category:
            client = whole(row["client"], "client", place)
            found.setdefault(client, []).append(_spell(place, row))
    if not found:
        _unknown(category, sorted(categories), Path(rates))
    clients = {c: tuple(sorted(s, key=lambda spell: spell.start)) for c, s in found.items()}
    return ClientRates(category, clients, *_lengths(Path(lengths), category))


def _spell(place: Place, row: dict[str, str]) -> Spell:
    if row["pattern"] not in _FAMILIES:
        place.fail(f"pattern is {shown(row['pattern'])}", "use Gamma or Weibull")
    return Spell(
        start=real(row["t"], "t", place),
        rate=real(row["rate"], "rate", place, least=1e-9, most=1e6),
        family=row["pattern"],
        shape=real(row["arg1"], "arg1", place, least=1e-2, most=1e6),
    )


def _lengths(path: Path, category: str) -> tuple[Quantiles, Quantiles]:
    place, table = read_document(path)
    if category not in table:
        _unknown(category, sorted(table), path)
    try:
        fields = table[category]["fields"]
        return (
            _quantiles(fields["input_tokens"], place),
            _quantiles(fields["output_tokens"], place),
        )
    except (KeyError, TypeError, AttributeError):
        place.fail(
            f"no length quantiles for {category}",
            "give fields.input_tokens and fields.output_tokens, each with mean and quantiles",
        )


def _quantiles(field: dict[str, Any], place: Place) -> Quantiles:
    pairs = sorted(
        (real(q, "a quantile", place, most=1.0), real(v, "a length", place))
        for q, v in field["quantiles"].items()
    )
    mean = real(field["mean"], "mean", place)
    return Quantiles.from_pairs(mean, pairs)


def _unknown(category: str, known: list[str], path: Path) -> None:
    raise TkccError(
        f"no category {category!r}", where=str(path), remedy=f"use one of {', '.join(known[:20])}"
    )
