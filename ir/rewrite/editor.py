"""A function being edited: indexed by op, with use lists, so that a rewrite costs what it touches.

Values are stable: when an operand is replaced, the reading node is replaced by a record with the
same results. A node is named by its first result.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tkcc.ir.errors import IRError
from tkcc.ir.graph import PARAMETER, Function, Node, Source, Value
from tkcc.ir.op import build


class Editor:
    """Edit `function`; `parameters` are the inputs that hold (slices of) parameters."""

    def __init__(self, function: Function, parameters: Collection[Value] | None = None) -> None:
        self.function = function
        if parameters is None:
            parameters = function.inputs_of(PARAMETER)
        self.outputs = list(function.outputs)
        self._inputs = frozenset(function.inputs)
        self._is_parameter: dict[Value, bool] = dict.fromkeys(function.inputs, False)
        self._is_parameter.update(dict.fromkeys(parameters, True))
        self._nodes: dict[Value, Node] = {}  # any result -> its node
        self._users: dict[Value, dict[Value, None]] = {}  # value -> first results of its readers
        self._users_by_op: dict[tuple[Value, str], dict[Value, None]] = {}
        self._by_op: dict[str, dict[Value, None]] = {}
        self._order: dict[Value, tuple[int, int]] = {}  # first result -> place in the program
        self._counter = itertools.count(1)
        self._output_uses: dict[Value, int] = {}
        self._cursor = 0
        self.source = Source()  # provenance of nodes made by `add`
        self.added: list[Node] = []
        for place, node in enumerate(function.nodes):
            self._insert(node, (place, 0))
        for value in self.outputs:
            self._output_uses[value] = self._output_uses.get(value, 0) + 1

    # --- reading -------------------------------------------------------------------------------

    def node_of(self, value: Value) -> Node | None:
        """The node that defines the value, or None for an input."""
        return self._nodes.get(value)

    def result_index(self, value: Value) -> int:
        return self._nodes[value].results.index(value)

    def users(self, value: Value) -> list[Node]:
        """The nodes that read the value, in the order in which they came to read it."""
        return [self._nodes[key] for key in self._users.get(value, ())]

    def users_with_op(self, value: Value, op: str) -> list[Node]:
        """As `users`, but only nodes with that op; costs nothing for the other readers."""
        return [self._nodes[key] for key in self._users_by_op.get((value, op), ())]

    def count_users_with_op(self, value: Value, op: str) -> int:
        return len(self._users_by_op.get((value, op), ()))

    def use_count(self, value: Value) -> int:
        """Number of reading nodes, plus one per function output that is this value."""
        return len(self._users.get(value, ())) + self._output_uses.get(value, 0)

    def nodes(self) -> list[Node]:
        """Every node, by its place in the program."""
        found = dict.fromkeys(self._nodes.values())
        return sorted(found, key=lambda node: self._order[node.results[0]])

    def nodes_with_op(self, op: str) -> list[Node]:
        return [self._nodes[key] for key in self._by_op.get(op, ())]

    def holds(self, node: Node) -> bool:
        """Whether the node (or its changed record) is still part of the function."""
        return node.results[0] in self._nodes

    def current(self, node: Node) -> Node:
        """The present record of a node whose operands may have changed."""
        return self._nodes[node.results[0]]

    def is_parameter(self, value: Value) -> bool:
        """Whether the value depends on parameters alone (constants may take part)."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self._is_parameter:
                stack.pop()
                continue
            operands = self._nodes[top].operands
            unknown = [v for v in operands if v not in self._is_parameter]
            if unknown:
                stack.extend(unknown)
                continue
            self._is_parameter[top] = self._all_parameters(operands)
            stack.pop()
        return self._is_parameter[value]

    def _all_parameters(self, operands: Sequence[Value]) -> bool:
        own = [v for v in operands if not self._is_constant(v)]
        return bool(own) and all(self._is_parameter[v] for v in own)

    def _is_constant(self, value: Value) -> bool:
        node = self._nodes.get(value)
        return node is not None and node.op == "constant"

    def constant(self, value: Value) -> Any:
        """The array of a constant value, or None if the value is not a constant."""
        node = self._nodes.get(value)
        if node is None or node.op != "constant":
            return None
        return node.attribute("value").array()

    # --- changing ------------------------------------------------------------------------------

    def at(self, node: Node, rewrite: str) -> None:
        """Nodes added from now on stand at `node`'s place and carry its source."""
        self._cursor = self._order[node.results[0]][0]
        self.source = node.source.touched(rewrite) if rewrite else node.source
        self.added = []

    def add(
        self,
        op: str,
        *operands: Value,
        attributes: Mapping[str, Any] | None = None,
        optional: Mapping[str, Value | None] | None = None,
        regions: Sequence[Function] = (),
        source: Source | None = None,
    ) -> tuple[Value, ...]:
        """Build a node and put it in; returns its results. Raises IRError if it is ill-typed."""
        node = build(
            op,
            *operands,
            attributes=attributes,
            optional=optional,
            regions=regions,
            source=source or self.source,
        )
        self._insert(node, (self._cursor, next(self._counter)))
        self.added.append(node)
        return node.results

    def replace(self, old: Value, new: Value) -> None:
        """Let every reader of `old` read `new`; nodes that nobody reads any more are dropped.

        Raises IRError if the types differ, or if `new` is no value of the function (any more).
        """
        self.replace_all({old: new})

    def replace_all(self, replacement: Mapping[Value, Value]) -> None:
        """As `replace`, one after the other; nodes are dropped when all are done."""
        for old, new in replacement.items():
            if old is not new:
                self._redirect(old, new)
        for old in replacement:
            self.drop_if_dead(old)

    def _redirect(self, old: Value, new: Value) -> None:
        if old.type != new.type:
            raise IRError(
                f"cannot replace a value of type {old.type} by one of type {new.type}",
                remedy="the replacement must have the same types as the pattern's outputs",
            )
        if new not in self._nodes and new not in self._inputs:
            raise IRError(
                "a replacement is no value of the function",
                remedy="replace values by values that are kept, or by results of new nodes",
            )
        if old.name and not new.name and self._is_new(new):
            new.name = old.name  # not that of a value which the unedited function shares
        for key in list(self._users.get(old, ())):
            node = self._nodes[key]
            operands = tuple(new if v is old else v for v in node.operands)
            self._swap(node, node.replace(operands=operands))
        if old in self._output_uses:
            self.outputs = [new if v is old else v for v in self.outputs]
            count = self._output_uses.pop(old)
            self._output_uses[new] = self._output_uses.get(new, 0) + count

    def _is_new(self, value: Value) -> bool:
        node = self._nodes.get(value)
        return node is not None and self._order[node.results[0]][1] > 0

    def replace_node(self, old: Node, new: Node) -> None:
        """Put `new`, a record with the same results, in the place of `old`."""
        assert list(old.results) == list(new.results)
        self._swap(self._nodes[old.results[0]], new)

    def drop_if_dead(self, value: Value) -> None:
        """Drop the node of an unread value, and what only it read."""
        stack = [value]
        while stack:
            node = self._nodes.get(stack.pop())
            if node is None or any(self.use_count(v) for v in node.results):
                continue
            self._remove(node)
            stack.extend(node.operands)

    def depends_on(self, starts: Iterable[Value], targets: Collection[Value]) -> bool:
        """Whether any of `starts` is computed from any of `targets`."""
        wanted, seen = set(targets), set()
        stack = list(starts)
        while stack:
            value = stack.pop()
            if value in wanted:
                return True
            node = self._nodes.get(value)
            if node is None or node.results[0] in seen:
                continue
            seen.add(node.results[0])
            stack.extend(node.operands)
        return False

    def freeze(self) -> Function:
        """The edited function; node order stays as close to the old one as dependencies allow."""
        waiting: dict[Value, int] = {}
        ready: list[tuple[tuple[int, int], int, Node]] = []
        tie = itertools.count()
        nodes = {node.results[0]: node for node in self._nodes.values()}
        for key, node in nodes.items():
            waiting[key] = len(
                {self._nodes[v].results[0] for v in node.operands if v in self._nodes}
            )
            if not waiting[key]:
                heapq.heappush(ready, (self._order[key], next(tie), node))
        order: list[Node] = []
        while ready:
            node = heapq.heappop(ready)[2]
            order.append(node)
            readers = dict.fromkeys(k for v in node.results for k in self._users.get(v, ()))
            for key in readers:
                waiting[key] -= 1
                if not waiting[key]:
                    heapq.heappush(ready, (self._order[key], next(tie), self._nodes[key]))
        if len(order) != len(nodes):
            raise IRError("the rewrite made a cycle", remedy="report the rule; nothing was changed")
        return self.function.replace(nodes=tuple(order), outputs=tuple(self.outputs))

    # --- indices -------------------------------------------------------------------------------

    def _insert(self, node: Node, place: tuple[int, int]) -> None:
        key = node.results[0]
        for value in node.results:
            self._nodes[value] = node
        for value in node.operands:
            self._users.setdefault(value, {})[key] = None
            self._users_by_op.setdefault((value, node.op), {})[key] = None
        self._by_op.setdefault(node.op, {})[key] = None
        self._order[key] = place

    def _remove(self, node: Node) -> None:
        key = node.results[0]
        for value in node.results:
            del self._nodes[value]
        for value in set(node.operands):
            del self._users[value][key]
            del self._users_by_op[value, node.op][key]
        del self._by_op[node.op][key]

    def _swap(self, old: Node, new: Node) -> None:
        place = self._order[old.results[0]]
        self._remove(old)
        self._insert(new, place)
