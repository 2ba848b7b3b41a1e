"""Replace the chunks of a plan by one scan."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from tkcc.ir.attributes import Dense
from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.hashing import node_key
from tkcc.ir.op import build
from tkcc.ir.passes.clean import with_operands
from tkcc.ir.passes.naming import shared_source, starred
from tkcc.ir.passes.rolling.chunks import (
    CARRY,
    CONST,
    INTERNAL,
    Place,
    Reads,
    Slot,
    dependents,
    read_outside,
)
from tkcc.ir.passes.rolling.plan import Plan
from tkcc.ir.passes.rolling.rows import definer, stack, take_row
from tkcc.ir.passes.rolling.symbols import same_rows
from tkcc.ir.types import TensorType


def apply_plan(function: Function, plan: Plan) -> Function | None:
    """The function with the plan's chunks rolled; None if they are no longer free to be.

    Values read after the scan keep their identity, so nodes that only read them do not change.
    """
    after = dependents(function, plan.chunks)
    if after is None or not plan.nodes <= set(function.nodes):
        return None
    renamed = _lifted_values(plan)
    nodes = _Roller(function, plan, renamed).nodes()
    once = {plan.chunks[0][place] for place in plan.lifted}
    outside = [node for node in function.nodes if node not in plan.nodes or node in once]
    ordered = (
        *(with_operands(node, renamed) for node in outside if node not in after),
        *nodes,
        *(with_operands(node, renamed) for node in outside if node in after),
    )
    outputs = tuple(renamed.get(value, value) for value in function.outputs)
    return function.replace(nodes=ordered, outputs=outputs)


def _lifted_values(plan: Plan) -> dict[Value, Value]:
    """Results of lifted nodes -> those of the first one that computes the same."""
    renamed: dict[Value, Value] = {}
    seen: dict[Hashable, Node] = {}
    for place in sorted(plan.lifted):
        for chunk in plan.chunks:
            node = with_operands(chunk[place], renamed)
            known = seen.setdefault(node_key(node), node)
            if known is not node:
                renamed.update(zip(node.results, known.results, strict=True))
    return renamed


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


def _number(number: int) -> Node:
    return build("constant", attributes={"value": Dense.of(np.int32(number))})


class _Roller:
    """Builds the body, the scan, and what stacks its operands and takes its results apart."""

    def __init__(self, function: Function, plan: Plan, renamed: dict[Value, Value]) -> None:
        self.function, self.plan, self.define = function, plan, definer(function)
        self.renamed = renamed
        self.consts, self.carries, self.sliced = _Inputs(), _Inputs(), _Inputs()
        self.updates: dict[tuple[Value, ...], Place] = {}
        self.made: dict[Place, Value] = {}
        self.copied: dict[Value, Value] = {}
        self.indices: dict[tuple[int, ...], Value] = {}
        self.constants: list[Node] = []
        self.body: list[Node] = []

    def nodes(self) -> list[Node]:
        for place, row in enumerate(self.plan.wiring):
            if place not in self.plan.lifted:
                self._copy(place, row)
        updates = [self._result(place) for place in self.updates.values()]
        reads = read_outside(self.function, self.plan.chunks, self.plan.wiring, self.plan.lifted)
        outputs = (*updates, *(self.made[place] for place in reads.rows))
        lead, operands = self._operands()
        scan = self._scan(operands, outputs)
        return [*lead, *self._split(scan, reads)]

    def _copy(self, place: int, row: Sequence[Slot]) -> None:
        copies = [chunk[place] for chunk in self.plan.chunks]
        operands = [self._read(slot) for slot in row]
        source = shared_source([copy.source for copy in copies])
        if same_rows(copies):
            results = tuple(Value(value.type) for value in copies[0].results)
            node = copies[0].replace(operands=tuple(operands), results=results, source=source)
        else:
            node = self._picked(operands[0], copies).replace(source=source)
        self.made.update({(place, i): value for i, value in enumerate(node.results)})
        self.body.append(node)

    def _picked(self, whole: Value, copies: Sequence[Node]) -> Node:
        """`whole[i : i + 1]` for the i of the step."""
        numbers = tuple(int(node.attribute("start_indices")[0]) for node in copies)
        if numbers not in self.indices:
            self.indices[numbers] = Value(TensorType("i32", ()))
        zero = _number(0)
        self.constants.append(zero)
        shape = (1, *whole.type.shape[1:])
        return build(
            "lax.dynamic_slice",
            whole,
            self.indices[numbers],
            *(zero.result for _ in shape[1:]),
            attributes={"slice_sizes": shape},
        )

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
        value = self.renamed.get(value, value)
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
        for numbers in self.indices:
            constants = [_number(number) for number in numbers]
            made, value = stack([node.result for node in constants], self.define)
            nodes += [*constants, *made]
            operands.append(value)
        return nodes, operands

    def _scan(self, operands: Sequence[Value], outputs: tuple[Value, ...]) -> Node:
        kinds = (self.consts, self.carries, self.sliced)
        inputs = tuple(value for kind in kinds for value in kind.inner.values())
        inputs += tuple(self.indices.values())
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

    def _split(self, scan: Node, reads: Reads) -> list[Node]:
        """The scan, its final carries under the last chunk's values, and rows of the rest."""
        results, rows = list(scan.results), []
        carries = list(self.updates.values())
        for place in reads.ends:
            results[carries.index(place)] = self._outer(-1, place)
        for (place, numbers), whole in zip(
            reads.rows.items(), results[len(carries) :], strict=True
        ):
            for number in numbers:
                piece, row = take_row(whole, number)
                rows += [piece, row.replace(results=(self._outer(number, place),))]
        return [scan.replace(results=tuple(results)), *rows]

    def _outer(self, number: int, place: Place) -> Value:
        return self.plan.chunks[number][place[0]].results[place[1]]


__all__ = ["apply_plan"]
