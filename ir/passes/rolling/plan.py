"""From a repetition in the node sequence to a plan: which chunks become one scan.

A run says only that ops repeat. The plan picks where a chunk starts, keeps the stretch whose
wiring repeats too, adds the irregular first layer, and moves into the chunks what was computed for
each of them before all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

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
    read_outside,
    slots,
    wire,
)
from tkcc.ir.passes.rolling.periods import Run
from tkcc.ir.passes.rolling.predecessor import predecessor
from tkcc.ir.passes.rolling.rows import JOINS, NODES_PER_ROW, definer, rows_of
from tkcc.ir.passes.rolling.symbols import same_rows

MIN_SAVING = 8  # nodes; shorter chains without inputs of their own are left to be fused
_MAX_STARTS = 4
_MAX_VISITS = 64
_MAX_GROUPING = 16

Symbol = Callable[[Node], int]


@dataclasses.dataclass(frozen=True)
class Sequenced:
    """A function, the nodes whose repetition counts (in order), and their symbols.

    `literal` are values computed from constants alone. `shared` are values that belong to no single
    layer, and are not stacked: in a loop's body, what is the same in every step. Layers that read
    different ones are of different kinds.
    """

    function: Function
    sequence: list[Node]
    early: set[Node]
    symbol: Symbol
    literal: Collection[Value]
    shared: set[Value]


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
    own = np.cumsum([0, *(_reads_own(given, node) for node in given.sequence)])
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


def _reads_own(given: Sequenced, node: Node) -> bool:
    return any(_is_own(given, value) for value in node.operands)


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
    saving = _saving(given, chunks, wiring, lifted)
    stacked = {value for slot in slots(wiring) if slot.kind == SLICED for value in slot.values}
    if stacked & given.shared:
        return None
    if len(chunks) < minimum or not _is_worth_it(given, wiring, saving):
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
    while makers := list(_absorbable(given, chunks, wiring)):
        lead = list(zip(*makers, strict=True))
        chunks = [(*made, *chunk) for made, chunk in zip(lead, chunks, strict=True)]
        wired = wire(chunks)
        assert wired is not None, "what a chunk read from outside is computed outside"
        wiring = wired
    return chunks, wiring


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


def _saving(
    given: Sequenced, chunks: Sequence[Chunk], wiring: Wiring, lifted: frozenset[int]
) -> int:
    """Nodes fewer than before. Stacks of inputs are not counted: they are hoisted or merged."""
    define = definer(given.function)
    stacks = {
        slot.values
        for slot in slots(wiring)
        if slot.kind == SLICED and not _is_own(given, slot.values[0])
        if rows_of(slot.values, define) is None
    }
    kept = len(chunks[0]) - len(lifted)
    rows = _rows_taken(given, chunks, wiring, lifted)
    return (len(chunks) - 1) * kept - 1 - len(stacks) - NODES_PER_ROW * rows


def _rows_taken(
    given: Sequenced, chunks: Sequence[Chunk], wiring: Wiring, lifted: frozenset[int]
) -> int:
    """How many results of single chunks must be taken out of the scan's stacked results.

    Not counted: new state, which is merged, and what is only stacked again.
    """
    rows = read_outside(given.function, chunks, wiring, lifted).rows
    inside = {node for chunk in chunks for node in chunk}
    outputs = set(given.function.outputs)
    state = {given.function.outputs[i] for i, _ in given.function.aliases}
    count = 0
    for (i, k), numbers in rows.items():
        for value in (chunks[number][i].results[k] for number in numbers):
            readers = set(given.function.uses.get(value, ())) - inside
            is_joined = value not in outputs and all(n.op in JOINS for n in readers)
            count += value not in state and not is_joined
    return count


def _is_own(given: Sequenced, value: Value) -> bool:
    """Whether the value is an input, or made of inputs before all layers."""
    if value in given.literal:
        return False
    found = given.function.definitions.get(value)
    return found is None or found[0] in given.early


def _is_worth_it(given: Sequenced, wiring: Wiring, saving: int) -> bool:
    """Layers have weights or state of their own; other chains are rolled only when long."""
    has_own = any(slot.kind == SLICED and _is_own(given, slot.values[0]) for slot in slots(wiring))
    return saving >= (1 if has_own else MIN_SAVING)
