"""What a roll saves, and whether that is enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.passes.rolling.chunks import SLICED, Chunk, Wiring, read_outside, slots
from tkcc.ir.passes.rolling.rows import JOINS, NODES_PER_ROW, definer, rows_of

MIN_SAVING = 8  # nodes; shorter chains without inputs of their own are left to be fused

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

    def is_own(self, value: Value) -> bool:
        """Whether the value is an input, or made of inputs before all layers."""
        if value in self.literal:
            return False
        found = self.function.definitions.get(value)
        return found is None or found[0] in self.early

    def reads_own(self, node: Node) -> bool:
        return any(self.is_own(value) for value in node.operands)


def saved_nodes(
    given: Sequenced, chunks: Sequence[Chunk], wiring: Wiring, lifted: frozenset[int]
) -> int:
    """Nodes fewer than before. Stacks of inputs are not counted: they are hoisted or merged."""
    define = definer(given.function)
    stacks = {
        slot.values
        for slot in slots(wiring)
        if slot.kind == SLICED and not given.is_own(slot.values[0])
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


def is_worth_it(given: Sequenced, wiring: Wiring, saving: int) -> bool:
    """Layers have weights or state of their own; other chains are rolled only when long."""
    has_own = any(slot.kind == SLICED and given.is_own(slot.values[0]) for slot in slots(wiring))
    return saving >= (1 if has_own else MIN_SAVING)
