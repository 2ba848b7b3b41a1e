"""Chunks: aligned copies of the same nodes, and how each copy is wired to the others.

A list of chunks is rolled into a scan only if `wire` accepts it: for every operand position, all
copies must read alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.passes.rolling.rows import JOINS

Chunk = tuple[Node, ...]
Place = tuple[int, int]  # node within the chunk, result of the node

INTERNAL, CARRY, CONST, SLICED = "internal", "carry", "const", "sliced"


@dataclasses.dataclass(frozen=True)
class Slot:
    """What one operand position reads in every chunk (`values`, one per chunk).

    `kind` is INTERNAL (a result of the same chunk, at `place`), CARRY (a result of the chunk
    before, at `place`; the first chunk reads a value from outside), CONST (one value from outside)
    or SLICED (a value from outside for each chunk).
    """

    kind: str
    values: tuple[Value, ...]
    place: Place = (-1, -1)


Wiring = list[tuple[Slot, ...]]  # per node of the chunk, per operand


def places(chunks: Sequence[Chunk]) -> dict[Value, tuple[int, Place]]:
    """Which chunk defines a value, and where in it."""
    return {
        value: (number, (i, k))
        for number, chunk in enumerate(chunks)
        for i, node in enumerate(chunk)
        for k, value in enumerate(node.results)
    }


def wire(chunks: Sequence[Chunk]) -> Wiring | None:
    """The slots of every node, or None if the chunks do not read alike."""
    known = places(chunks)
    wiring: Wiring = []
    for copies in zip(*chunks, strict=True):
        columns = zip(*(node.operands for node in copies), strict=True)
        slots = [_slot(tuple(values), known) for values in columns]
        if None in slots:
            return None
        wiring.append(tuple(slot for slot in slots if slot is not None))
    return wiring


def _slot(values: tuple[Value, ...], known: dict[Value, tuple[int, Place]]) -> Slot | None:
    found = [known.get(value) for value in values]
    first, second = found[0], found[1]
    if first is not None:
        inside = all(at == (number, first[1]) for number, at in enumerate(found))
        return Slot(INTERNAL, values, first[1]) if inside else None
    if second is not None:
        carried = all(at == (number, second[1]) for number, at in enumerate(found[1:]))
        return Slot(CARRY, values, second[1]) if carried else None
    if any(at is not None for at in found):
        return None
    return Slot(CONST if len(set(values)) == 1 else SLICED, values)


def slots(wiring: Wiring) -> Iterator[Slot]:
    for row in wiring:
        yield from row


def longest_window(chunks: Sequence[Chunk]) -> tuple[int, int]:
    """(first, last + 1) of the longest stretch of chunks that `wire` accepts, in linear time.

    A stretch of an accepted stretch is accepted, so for each end the earliest start only grows.
    """
    known = places(chunks)
    links = [_Link() for node in chunks[0] for _ in node.operands]
    start, best = 0, (0, 0)
    for number, chunk in enumerate(chunks):
        operands = (value for node in chunk for value in node.operands)
        for link, value in zip(links, operands, strict=True):
            start = max(start, link.advance(number, known.get(value)))
        if number + 1 - start > best[1] - best[0]:
            best = (start, number + 1)
    return best


class _Link:
    """The earliest start of a stretch that ends here, for one operand position."""

    def __init__(self) -> None:
        self.inside_from = self.carry_from = self.outside_from = 0
        self.inside: Place | None = None
        self.carry: Place | None = None

    def advance(self, number: int, found: tuple[int, Place] | None) -> int:
        owner, place = found if found is not None else (-1, None)
        self._inside(number, place if owner == number else None)
        self._carry(number, place if owner == number - 1 else None, owner == number)
        self.outside_from = max(self.outside_from, owner + 1)
        return min(self.inside_from, self.carry_from, self.outside_from)

    def _inside(self, number: int, place: Place | None) -> None:
        if place is None:
            self.inside_from = number + 1
        elif place != self.inside:
            self.inside_from = max(self.inside_from, number)
        self.inside = place

    def _carry(self, number: int, place: Place | None, is_own: bool) -> None:
        if place is None:
            self.carry_from = number + 1 if is_own else number
        elif self.carry is not None and place != self.carry:
            self.carry_from = max(self.carry_from, number - 1)
        self.carry = place


def dependents(function: Function, chunks: Sequence[Chunk]) -> set[Node] | None:
    """The nodes outside the chunks that need a result of theirs.

    None if one of them feeds a chunk again: then the chunks cannot become one node.
    """
    inside = {node for chunk in chunks for node in chunk}
    reached = {value for node in inside for value in node.results}
    after: set[Node] = set()
    late: set[Value] = set()
    for node in function.nodes:
        if node not in inside and any(value in reached for value in node.operands):
            after.add(node)
            reached.update(node.results)
            late.update(node.results)
    if any(value in late for node in inside for value in node.operands):
        return None
    return after


@dataclasses.dataclass(frozen=True)
class Reads:
    """What is read of the chunks' results from outside.

    `ends`: places whose last result the scan's final carry holds. `rows`: places whose results are
    stacked by the scan, and the chunks they are read of.
    """

    ends: list[Place]
    rows: dict[Place, list[int]]


def read_outside(
    function: Function, chunks: Sequence[Chunk], wiring: Wiring, lifted: Collection[int]
) -> Reads:
    """What nodes outside the chunks, or the function's outputs, read; lifted places aside."""
    inside = {node for chunk in chunks for node in chunk}
    carried = {slot.place for slot in slots(wiring) if slot.kind == CARRY}
    reads = Reads([], {})
    for number, chunk in enumerate(chunks):
        for i, node in enumerate(chunk):
            for k, value in enumerate(node.results) if i not in lifted else ():
                readers = set(function.uses.get(value, ())) - inside
                if not readers and value not in function.outputs:
                    continue
                is_joined = any(reader.op in JOINS for reader in readers)
                if (i, k) in carried and number == len(chunks) - 1 and not is_joined:
                    reads.ends.append((i, k))
                else:
                    reads.rows.setdefault((i, k), []).append(number)
    return reads
