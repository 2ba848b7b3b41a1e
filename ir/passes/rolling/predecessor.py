"""The chunk before the first one, found along the data flow.

The first layer of a model often holds extra nodes (what all layers share is computed in it), so
its nodes do not stand in the order of the other layers. They are found from the values that the
next chunk takes from it.
"""

from __future__ import annotations

from collections.abc import Callable

from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.passes.rolling.chunks import CARRY, CONST, INTERNAL, Chunk, Slot, Wiring
from tkcc.ir.passes.rolling.rows import definer

Symbol = Callable[[Node], int]


class _Conflict(Exception):
    """A node that cannot take the place it was meant for."""


class _Matcher:
    """Builds up which node of the function stands at which place of the chunk."""

    def __init__(
        self, function: Function, chunks: list[Chunk], wiring: Wiring, symbol: Symbol
    ) -> None:
        self.function, self.define, self.symbol = function, definer(function), symbol
        self.template, self.wiring = chunks[0], wiring
        self.taken = {node for chunk in chunks for node in chunk}
        self.found: dict[int, Node] = {}
        self.bound: dict[tuple[Value, ...], Value] = {}

    def run(self) -> Chunk:
        for row in self.wiring:
            for slot in row:
                if slot.kind == CARRY:
                    self._define(slot.values[0], *slot.place)
        while self._match_readers():
            pass
        if len(self.found) != len(self.template):
            raise _Conflict
        return tuple(self.found[i] for i in range(len(self.template)))

    def _define(self, value: Value, place: int, result: int) -> None:
        """`value` must be that result of the node at `place`."""
        node = self.define(value)
        if node is None or node.results[result : result + 1] != (value,):
            raise _Conflict
        self._assign(place, node)

    def _assign(self, place: int, node: Node) -> None:
        """Put the node at that place, and what it reads at the places that follow from it."""
        pending = [(place, node)]
        while pending:
            at, candidate = pending.pop()
            known = self.found.get(at)
            if known is candidate:
                continue
            if known is not None or candidate in self.taken or not self._alike(at, candidate):
                raise _Conflict
            self.found[at] = candidate
            self.taken.add(candidate)
            pending += self._operands(at, candidate)

    def _alike(self, place: int, node: Node) -> bool:
        return self.symbol(node) == self.symbol(self.template[place])

    def _operands(self, place: int, node: Node) -> list[tuple[int, Node]]:
        """Check the node's operands; returns what must stand where because of them."""
        needed = []
        for slot, value in zip(self.wiring[place], node.operands, strict=True):
            if slot.kind == INTERNAL:
                maker = self.define(value)
                inner, result = slot.place
                if maker is None or maker.results[result : result + 1] != (value,):
                    raise _Conflict
                needed.append((inner, maker))
            elif not self._bind(slot, value):
                raise _Conflict
        return needed

    def _bind(self, slot: Slot, value: Value) -> bool:
        """Whether the value may be read in that slot, given what is read elsewhere."""
        if slot.kind == CONST:
            return value is slot.values[0]
        return self.bound.setdefault(slot.values, value) is value

    def _match_readers(self) -> bool:
        """Find nodes among the readers of what was found; False if there were none."""
        missing = [place for place in range(len(self.template)) if place not in self.found]
        found = [self._match_reader(place) for place in missing]
        return any(found)

    def _match_reader(self, place: int) -> bool:
        for slot in self.wiring[place]:
            if slot.kind == INTERNAL and slot.place[0] in self.found:
                value = self.found[slot.place[0]].results[slot.place[1]]
                readers = self.function.uses.get(value, ())
                if any(self._try(place, node) for node in readers):
                    return True
        return False

    def _try(self, place: int, node: Node) -> bool:
        if place in self.found or node in self.taken or not self._alike(place, node):
            return False
        kept = dict(self.found), dict(self.bound), set(self.taken)
        try:
            self._assign(place, node)
        except _Conflict:
            self.found, self.bound, self.taken = kept
            return False
        return True


def predecessor(
    function: Function, chunks: list[Chunk], wiring: Wiring, symbol: Symbol
) -> Chunk | None:
    """The nodes that stand to the first chunk as it stands to the second one, or None."""
    try:
        return _Matcher(function, chunks, wiring, symbol).run()
    except _Conflict:
        return None
