"""Replace the chunks of a plan by one scan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.op import build
from tkcc.ir.passes.clean import with_operands
from tkcc.ir.passes.naming import shared_source, starred
from tkcc.ir.passes.rolling.chunks import (
    CARRY,
    CONST,
    INTERNAL,
    Place,
    Slot,
    dependents,
)
from tkcc.ir.passes.rolling.plan import Plan
from tkcc.ir.passes.rolling.rows import definer, stack, take_row


def apply_plan(function: Function, plan: Plan) -> Function | None:
    """The function with the plan's chunks rolled; None if they are no longer free to be.

    Values read after the scan keep their identity, so nodes that only read them do not change.
    """
    after = dependents(function, plan.chunks)
    if after is None:
        return None
    rolled = _Roller(function, plan)
    nodes = rolled.nodes()
    once = {plan.chunks[0][place] for place in plan.lifted}
    outside = [node for node in function.nodes if node not in plan.nodes or node in once]
    renamed = _lifted_values(plan)
    ordered = (
        *(node for node in outside if node not in after),
        *nodes,
        *(with_operands(node, renamed) for node in outside if node in after),
    )
    outputs = tuple(renamed.get(value, value) for value in function.outputs)
    return function.replace(nodes=ordered, outputs=outputs)


def _lifted_values(plan: Plan) -> dict[Value, Value]:
    """Later chunks' results of lifted nodes -> the first chunk's."""
    return {
        value: kept
        for place in plan.lifted
        for chunk in plan.chunks[1:]
        for value, kept in zip(chunk[place].results, plan.chunks[0][place].results, strict=True)
    }


@dataclasses.dataclass
class _Inputs:
    """The body's inputs of one kind: outer values (one per chunk or one for all) -> inner value."""

    inner: dict[tuple[Value, ...], Value] = dataclasses.field(default_factory=dict)

    def get(self, values: tuple[Value, ...]) -> Value:
        if values not in self.inner:
            names = [value.name for value in values]
            self.inner[values] = Value(values[0].type, starred(names) if all(names) else "")
        return self.inner[values]


def _is_free(node: Node) -> bool:
    """Whether a copy in every step beats reading it: it holds less than it gives."""
    grows = node.op == "lax.broadcast_in_dim" and (
        node.result.type.size > node.operands[0].type.size
    )
    return grows or node.op in ("constant", "lax.iota")


class _Roller:
    """Builds the body, the scan, and what stacks its operands and takes its results apart."""

    def __init__(self, function: Function, plan: Plan) -> None:
        self.function, self.plan, self.define = function, plan, definer(function)
        self.consts, self.carries, self.sliced = _Inputs(), _Inputs(), _Inputs()
        self.updates: dict[tuple[Value, ...], Place] = {}
        self.made: dict[Place, Value] = {}
        self.copied: dict[Value, Value] = {}
        self.constants: list[Node] = []
        self.body: list[Node] = []

    def nodes(self) -> list[Node]:
        for place, row in enumerate(self.plan.wiring):
            if place not in self.plan.lifted:
                self._copy(place, row)
        updates = [self._result(place) for place in self.updates.values()]
        read = self._read_outside()
        stacked = [place for place in read if not self._is_last_carry(place, read[place])]
        outputs = (*updates, *(self.made[place] for place in stacked))
        lead, operands = self._operands()
        scan = self._scan(operands, outputs)
        return [*lead, *self._split(scan, read, stacked)]

    def _copy(self, place: int, row: Sequence[Slot]) -> None:
        copies = [chunk[place] for chunk in self.plan.chunks]
        node = copies[0]
        results = tuple(Value(value.type) for value in node.results)
        self.made.update({(place, i): value for i, value in enumerate(results)})
        operands = tuple(self._read(slot) for slot in row)
        source = shared_source([copy.source for copy in copies])
        self.body.append(node.replace(operands=operands, results=results, source=source))

    def _read(self, slot: Slot) -> Value:
        if slot.kind == INTERNAL:
            return self._result(slot.place)
        if slot.kind == CONST:
            return self._const(slot.values[0])
        if slot.kind == CARRY:
            self.updates[slot.values] = slot.place
            return self.carries.get(slot.values)
        return self.sliced.get(slot.values)

    def _result(self, place: Place) -> Value:
        if place[0] in self.plan.lifted:
            return self._const(self.plan.chunks[0][place[0]].results[place[1]])
        return self.made[place]

    def _const(self, value: Value) -> Value:
        """The value inside the body: an operand of the scan, or copied if that costs nothing."""
        node = self.define(value)
        if node is None or not _is_free(node):
            return self.consts.get((value,))
        if value not in self.copied:
            operands = tuple(self._const(operand) for operand in node.operands)
            self.copied[value] = Value(value.type, value.name)
            made = node.replace(operands=operands, results=(self.copied[value],))
            self.constants.append(made)
        return self.copied[value]

    def _operands(self) -> tuple[list[Node], list[Value]]:
        nodes: list[Node] = []
        operands = [values[0] for values in (*self.consts.inner, *self.carries.inner)]
        for values in self.sliced.inner:
            made, value = stack(values, self.define)
            nodes += made
            operands.append(value)
        return nodes, operands

    def _scan(self, operands: Sequence[Value], outputs: tuple[Value, ...]) -> Node:
        kinds = (self.consts, self.carries, self.sliced)
        inputs = tuple(value for kind in kinds for value in kind.inner.values())
        sources = [node.source for chunk in self.plan.chunks for node in chunk[-1:]]
        return build(
            "scan",
            *operands,
            attributes={
                "consts": len(self.consts.inner),
                "carry": len(self.carries.inner),
                "length": len(self.plan.chunks),
            },
            regions=[Function(inputs, (*self.constants, *self.body), outputs)],
            source=shared_source(sources).touched("roll"),
        )

    def _read_outside(self) -> dict[Place, list[int]]:
        """Results that something outside the chunks reads, and of which chunks."""
        inside, outputs = self.plan.nodes, set(self.function.outputs)
        found: dict[Place, list[int]] = {}
        for number, chunk in enumerate(self.plan.chunks):
            for i, node in enumerate(chunk):
                if i in self.plan.lifted:
                    continue
                for k, value in enumerate(node.results):
                    readers = self.function.uses.get(value, ())
                    if value in outputs or any(reader not in inside for reader in readers):
                        found.setdefault((i, k), []).append(number)
        return found

    def _is_last_carry(self, place: Place, chunks: Sequence[int]) -> bool:
        """Whether only the last chunk's result is read, and the scan's final carry has it."""
        return list(chunks) == [len(self.plan.chunks) - 1] and place in self.updates.values()

    def _split(
        self, scan: Node, read: dict[Place, list[int]], stacked: Sequence[Place]
    ) -> list[Node]:
        """The scan, its final carries under the last chunk's values, and single rows."""
        last = len(self.plan.chunks) - 1
        results, rows, named = list(scan.results), [], set()
        for number, place in enumerate(self.updates.values()):
            if place in read and last in read[place] and place not in named:
                results[number] = self._outer(last, place)
                named.add(place)
        for place, whole in zip(stacked, results[len(self.updates) :], strict=True):
            for number in read[place]:
                if number != last or place not in named:
                    piece, row = take_row(whole, number)
                    rows += [piece, row.replace(results=(self._outer(number, place),))]
        return [scan.replace(results=tuple(results)), *rows]

    def _outer(self, number: int, place: Place) -> Value:
        return self.plan.chunks[number][place[0]].results[place[1]]


__all__ = ["apply_plan"]
