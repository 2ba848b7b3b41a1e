"""What in a step function depends on parameters alone, inside the bodies of its scans too."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable

from tkcc.ir.graph import PARAMETER, Function, Node, Value
from tkcc.ir.hashing import node_key
from tkcc.ir.op import lookup
from tkcc.ir.ops.collectives import Collective

# They only show the same elements in another shape, at no cost.
VIEWS = {"reshape", "lax.reshape", "lax.squeeze", "lax.expand_dims", "lax.broadcast_in_dim"}


@dataclasses.dataclass(frozen=True)
class Fact:
    """A value that depends on parameters and constants only.

    `array` is the value that holds it: itself, or the first value that is computed in the same way,
    or for an input of a scan's body the operand of the scan. `loops` are the scans that see another
    slice of it, or compute it anew, in each step. `is_constant`: it depends on no parameter.
    """

    array: Value
    loops: frozenset[Node] = frozenset()
    is_constant: bool = False


class ParameterFlow:
    """The facts of a function, and how they hang together.

    `facts`: what is known of values; all others depend on arguments or state. `nodes`: those that
    could move, in program order. `read`: arrays that something which cannot move reads.
    """

    def __init__(self, function: Function) -> None:
        self.facts: dict[Value, Fact] = {v: Fact(v) for v in function.inputs_of(PARAMETER)}
        self.originals = set(self.facts)
        self.nodes: list[Node] = []
        self.read: set[Value] = set()
        self._known: dict[Hashable, tuple[Value, ...]] = {}
        self._walk(function)

    def _walk(self, function: Function) -> None:
        for node in function.nodes:
            facts = [self.facts.get(value) for value in node.operands]
            known = [fact for fact in facts if fact is not None]
            if len(known) == len(facts) and can_move(node):
                self._add(node, known)
            elif node.op == "scan":
                self._enter(node)
            else:
                self._reads(node.operands)
        self._reads(function.outputs)

    def _add(self, node: Node, operands: list[Fact]) -> None:
        is_constant = all(fact.is_constant for fact in operands)
        loops = frozenset().union(*(fact.loops for fact in operands))
        arrays = self._known.setdefault(_expression(node, operands), node.results)
        for value, array in zip(node.results, arrays, strict=True):
            self.facts[value] = Fact(array, loops, is_constant)
        if not is_constant:
            self.nodes.append(node)

    def _enter(self, node: Node) -> None:
        """A scan that must stay: its body knows of constants and slices from outside."""
        consts, carry = node.attribute("consts"), node.attribute("carry")
        body = node.regions[0]
        for position, (inner, outer) in enumerate(zip(body.inputs, node.operands, strict=True)):
            fact = self.facts.get(outer)
            if fact is None:
                continue
            if position < consts:
                self.facts[inner] = fact
            elif position < consts + carry:
                self._reads((outer,))
            elif not fact.is_constant:
                sliced = Fact(fact.array, fact.loops | {node})
                self.facts[inner] = sliced
        self._walk(body)

    def _reads(self, values: tuple[Value, ...]) -> None:
        for value in values:
            fact = self.facts.get(value)
            if fact is not None and not fact.is_constant:
                self.read.add(fact.array)

    def bytes(self, array: Value) -> int:
        """Memory of an array; for one that is computed in loops, of all its steps together."""
        steps = math.prod(int(loop.attribute("length")) for loop in self.facts[array].loops)
        return array.type.bytes * steps

    def arrays_of(self, node: Node) -> list[Value]:
        """What holds the node's results."""
        return [self.facts[value].array for value in node.results]

    def held(self, function: Function, arrays: set[Value]) -> list[Value]:
        """The results of the function's own nodes that these arrays hold."""
        values = (value for node in function.nodes for value in node.results)
        return [v for v in values if v in self.facts and self.facts[v].array in arrays]

    def parameters_of(self, node: Node) -> list[Fact]:
        """The node's operands that depend on parameters."""
        facts = (self.facts[value] for value in node.operands)
        return [fact for fact in facts if not fact.is_constant]


def _expression(node: Node, operands: list[Fact]) -> Hashable:
    """Equal for nodes that compute the same, also from equally many slices in two scans."""
    read = [(f.array, *sorted(int(n.attribute("length")) for n in f.loops)) for f in operands]
    return (*node_key(node.replace(operands=())), tuple(read))


def can_move(node: Node) -> bool:
    """Groups are one kernel each and stay where they were drawn; collectives and questions about
    the platform mean something only inside the step."""
    if node.op in ("group", "lax.platform_index", "lax.axis_index") or isinstance(
        lookup(node.op), Collective
    ):
        return False
    return all(can_move(inner) for region in node.regions for inner in region.nodes)
