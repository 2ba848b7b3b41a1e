"""From a repetition in the node sequence to a plan: which chunks become one scan.

A run says only that ops repeat. The plan picks where a chunk starts, keeps the stretch whose
wiring repeats too, adds the irregular first layer, and moves into the chunks what was computed for
each of them before all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.passes.rolling.chunks import (
    CARRY,
    CONST,
    INTERNAL,
    SLICED,
    Chunk,
    Wiring,
    dependents,
    longest_window,
    slots,
    wire,
)
from tkcc.ir.passes.rolling.periods import Run
from tkcc.ir.passes.rolling.predecessor import predecessor
from tkcc.ir.passes.rolling.rows import definer, rows_of
from tkcc.ir.passes.rolling.saving import MIN_SAVING, Sequenced, is_worth_it, saved_nodes
from tkcc.ir.passes.rolling.symbols import same_rows

_MAX_STARTS = 4
_MAX_VISITS = 64
_MAX_GROUPING = 16


@dataclasses.dataclass(frozen=True)
class Plan:
    """Chunks to be rolled. `lifted` are the places whose results are the same in every chunk."""

    chunks: list[Chunk]
    wiring: Wiring
    lifted: frozenset[int]
    saving: int

    @property
    def carries(self) -> int:
        return len({slot.values for slot in slots(self.wiring) if slot.kind == CARRY})

    @functools.cached_property
    def nodes(self) -> set[Node]:
        return {node for chunk in self.chunks for node in chunk}


def plans_for(given: Sequenced, runs: Sequence[Run], minimum: int) -> list[Plan]:
    """Plans for the runs, which come in order of what they may save.

    Runs of nodes that all are in plans that were found are skipped, and the work is bounded by a
    multiple of the sequence's length.
    """
    found: list[Plan] = []
    position = {node: i for i, node in enumerate(given.sequence)}
    covered = np.zeros(len(given.sequence), np.bool_)
    own = np.cumsum([0, *(given.reads_own(node) for node in given.sequence)])
    budget = _MAX_VISITS * len(given.sequence)
    for run in runs:
        has_own = own[run.stop] > own[run.start]
        if run.removable <= (1 if has_own else MIN_SAVING) or covered[run.start : run.stop].all():
            continue
        budget -= run.stop - run.start
        plan = best_plan(given, run, minimum) if budget > 0 else None
        if plan is not None:
            found.append(plan)
            covered[[position[node] for node in plan.nodes if node in position]] = True
    return found


def best_plan(given: Sequenced, run: Run, minimum: int) -> Plan | None:
    """The plan that saves most nodes for this run, or None if none is worth it.

    Of plans that save alike, the one whose chunks hand over fewest values.
    """
    found = [
        plan
        for start in _starts(given, run)
        if (plan := _plan_from(given, run, start, minimum)) is not None
    ]
    return max(found, key=lambda plan: (plan.saving, -plan.carries), default=None)


def _starts(given: Sequenced, run: Run) -> list[int]:
    """Where a chunk may start: where fewest values go from chunk to chunk (a layer's border).

    Starts that fit the most whole chunks into the run are tried too.
    """
    slack = (run.stop - run.start) % run.period
    crossing = _crossings(given, run)
    middle = run.period * (run.repeats // 2)
    counts = [crossing[middle + r] for r in range(run.period) if middle + r < run.stop - run.start]
    tight, full = _fewest(counts), _fewest(counts[: slack + 1])
    return [run.start + r for r in dict.fromkeys((*full, *tight))]


def _fewest(counts: Sequence[int]) -> list[int]:
    fewest = min(counts)
    return [i for i, count in enumerate(counts) if count == fewest][:_MAX_STARTS]


def _crossings(given: Sequenced, run: Run) -> list[int]:
    """For each position of the run, how many values are made before it and read from it on.

    Values that are read more than two periods later are not carries, and do not count.
    """
    nodes = given.sequence[run.start : run.stop]
    made = {value: i for i, node in enumerate(nodes) for value in node.results}
    last: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        for value in node.operands:
            if value in made and i - made[value] < 2 * run.period:
                last[value] = i
    steps = [0] * (len(nodes) + 2)
    for value, end in last.items():
        steps[made[value] + 1] += 1
        steps[end + 1] -= 1
    return list(itertools.accumulate(steps))


def _plan_from(given: Sequenced, run: Run, start: int, minimum: int) -> Plan | None:
    chunks = [
        tuple(given.sequence[at : at + run.period])
        for at in range(start, run.stop - run.period + 1, run.period)
    ]
    if len(chunks) < 2:
        return None
    first, last = longest_window(chunks)
    chunks = chunks[first:last]
    if len(chunks) < 2:
        return None
    wiring = wire(chunks)
    assert wiring is not None, "a window's chunks read alike"
    if not any(slot.kind == CARRY for slot in slots(wiring)):
        return None
    chunks, wiring = _with_predecessors(given, chunks, wiring)
    chunks, wiring = _without_repeated_slices(chunks, wiring)
    chunks, wiring = _absorbed(given, chunks, wiring)
    lifted = _lifted(chunks, wiring)
    saving = saved_nodes(given, chunks, wiring, lifted)
    stacked = {value for slot in slots(wiring) if slot.kind == SLICED for value in slot.values}
    if stacked & given.shared:
        return None
    if len(chunks) < minimum or not is_worth_it(given, wiring, saving):
        return None
    return Plan(chunks, wiring, lifted, saving)


def _with_predecessors(
    given: Sequenced, chunks: list[Chunk], wiring: Wiring
) -> tuple[list[Chunk], Wiring]:
    """Add earlier chunks that are not in sequence, as long as there are any."""
    while True:
        found = predecessor(given.function, chunks, wiring, given.symbol)
        if found is None:
            return chunks, wiring
        wired = wire([found, *chunks])
        if wired is None or dependents(given.function, [found, *chunks]) is None:
            return chunks, wiring
        chunks, wiring = [found, *chunks], wired


def _without_repeated_slices(chunks: list[Chunk], wiring: Wiring) -> tuple[list[Chunk], Wiring]:
    """Join m chunks to one where that lets no value be stacked more than once.

    So layers that take turns reading two masks become pairs of layers, and no mask is copied.
    """
    if not _repeats_slices(wiring):
        return chunks, wiring
    for size in range(2, min(len(chunks) // 2, _MAX_GROUPING) + 1):
        whole = len(chunks) // size * size
        joined = [tuple(itertools.chain(*chunks[at : at + size])) for at in range(0, whole, size)]
        wired = wire(joined)
        if wired is not None and not _repeats_slices(wired):
            return joined, wired
    return chunks, wiring


def _repeats_slices(wiring: Wiring) -> bool:
    return any(
        slot.kind == SLICED and len(set(slot.values)) < len(slot.values) for slot in slots(wiring)
    )


def _absorbed(given: Sequenced, chunks: list[Chunk], wiring: Wiring) -> tuple[list[Chunk], Wiring]:
    """Move equal nodes that each serve one chunk only, and stand before all, into their chunks."""
    while True:
        makers = list(_absorbable(given, chunks, wiring))
        tries = [makers] if len(makers) < 2 else [makers, *([one] for one in makers)]
        found = next((new for some in tries if (new := _with_lead(chunks, some))), None)
        if not makers or found is None:
            return chunks, wiring
        chunks, wiring = found


def _with_lead(
    chunks: Sequence[Chunk], makers: Sequence[Chunk]
) -> tuple[list[Chunk], Wiring] | None:
    """The chunks with these nodes in front; None if they do not read alike then, because a node
    that is in its chunk now has another place in one of the others."""
    lead = list(zip(*makers, strict=True)) if makers else [() for _ in chunks]
    longer = [(*made, *chunk) for made, chunk in zip(lead, chunks, strict=True)]
    wired = wire(longer)
    return None if wired is None else (longer, wired)


def _absorbable(given: Sequenced, chunks: list[Chunk], wiring: Wiring) -> Iterator[Chunk]:
    """Per group of equal nodes, its node for each chunk."""
    define = definer(given.function)
    owner = {node: number for number, chunk in enumerate(chunks) for node in chunk}
    outputs = set(given.function.outputs)
    seen: set[Node] = set()
    for slot in slots(wiring):
        makers = [define(value) for value in slot.values] if slot.kind == SLICED else [None]
        nodes = tuple(maker for maker in makers if maker is not None)
        alike = len(nodes) == len(makers) and _are_equal(given, nodes)
        if not alike or len(set(nodes)) < len(nodes) or nodes[0] in seen:
            continue
        if rows_of(slot.values, define) is None and all(
            _serves_only(given.function, node, number, owner, outputs)
            for number, node in enumerate(nodes)
        ):
            seen.update(nodes)
            yield nodes


def _are_equal(given: Sequenced, nodes: Chunk) -> bool:
    """Whether the nodes do the same to what they read."""
    return len({given.symbol(node) for node in nodes}) == 1 and same_rows(nodes)


def _serves_only(
    function: Function, node: Node, number: int, owner: dict[Node, int], outputs: set[Value]
) -> bool:
    """Whether all readers of the node's results are in chunk `number`."""
    readers = (reader for value in node.results for reader in function.uses.get(value, ()))
    return not outputs.intersection(node.results) and all(
        owner.get(reader) == number for reader in readers
    )


def _lifted(chunks: Sequence[Chunk], wiring: Wiring) -> frozenset[int]:
    """Places that compute the same in every chunk: once is enough, before the scan."""
    lifted: set[int] = set()
    for place, row in enumerate(wiring):
        if same_rows([chunk[place] for chunk in chunks]) and all(
            slot.kind == CONST or (slot.kind == INTERNAL and slot.place[0] in lifted)
            for slot in row
        ):
            lifted.add(place)
    return frozenset(lifted)
