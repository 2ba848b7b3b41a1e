"""Which parameter-only values are worth keeping as new parameters.

The rule: a step shall read as few bytes as it can. Parameters and what is computed from them form
a graph; of all ways to cut it into "once, in prepare" and "in every step", the one whose border
has the fewest bytes is taken, and of equal ones the one that leaves least work to the step. So
concatenated, transposed, merged and quantised weights move to prepare, while what makes data
larger (dequantising, widening, broadcasting, expanding a low-rank product, several forms of one
parameter) stays in the step, which reads the small form. Refinements:

* computed values may have 1/16 more bytes than the parameters they replace: moving saves work;
* small results (up to 1 MiB, and to 1 % of all parameters) move even if they grow: the bytes do
  not matter, the fewer nodes do;
* views (reshape, broadcast, ...) at the border stay: moving them saves no work;
* a `prepared` op's result moves whatever its size: whoever put it there asked for that.

What the step reads of a parameter for other reasons does not count, since it is read anyway.
"""

from __future__ import annotations

from collections.abc import Iterable

from tkcc.ir.graph import Node, Value
from tkcc.ir.passes.hoisting.cut import smallest_cut
from tkcc.ir.passes.hoisting.flow import VIEWS, ParameterFlow

PREPARED = "prepared"
SMALL_BYTES = 1 << 20
SMALL_PART = 100  # of all parameters' bytes


def choose(flow: ParameterFlow) -> set[Value]:
    """The computed arrays that become parameters of the step."""
    staying = _promoted(flow, _after_cut(flow, _cut(flow)))
    staying |= _border_views(flow, staying)
    stored = _needed(flow, staying)
    return stored - flow.originals


def _cut(flow: ParameterFlow) -> set[Value]:
    arrays = [*flow.originals, *(array for node in flow.nodes for array in flow.arrays_of(node))]
    edges = {
        (fact.array, array)
        for node in flow.nodes
        for fact in flow.parameters_of(node)
        for array in flow.arrays_of(node)
    }
    part = {array: 17 if array in flow.originals else 16 for array in arrays}
    weights = {array: part[array] * flow.bytes(array) for array in arrays}
    asked = [flow.arrays_of(node)[0] for node in flow.nodes if node.op == PREPARED]
    weights.update(dict.fromkeys(asked, 0))
    return smallest_cut(weights, edges, flow.originals, flow.read - flow.originals)


def _after_cut(flow: ParameterFlow, cut: set[Value]) -> set[Node]:
    """The nodes that stay: those that lead from the cut to what the step reads."""
    needed, staying = set(flow.read), set()
    for node in reversed(flow.nodes):
        if any(array in needed and array not in cut for array in flow.arrays_of(node)):
            staying.add(node)
            needed.update(fact.array for fact in flow.parameters_of(node))
    return staying


def _promoted(flow: ParameterFlow, staying: set[Node]) -> set[Node]:
    """Without the nodes whose results are small and whose operands prepare has."""
    small = min(SMALL_BYTES, sum(v.type.bytes for v in flow.originals) // SMALL_PART)
    in_step: set[Value] = set()
    kept = set()
    for node in flow.nodes:
        if node not in staying:
            continue
        movable = not any(fact.array in in_step for fact in flow.parameters_of(node))
        if not movable or any(flow.bytes(array) > small for array in flow.arrays_of(node)):
            kept.add(node)
            in_step.update(flow.arrays_of(node))
    return kept


def _border_views(flow: ParameterFlow, staying: set[Node]) -> set[Node]:
    """Views whose results the step would read."""
    needed = _read_by(flow, staying)
    found = set()
    for node in reversed(flow.nodes):
        is_view = node.op in VIEWS and node not in staying
        if is_view and any(array in needed for array in flow.arrays_of(node)):
            found.add(node)
            needed.update(fact.array for fact in flow.parameters_of(node))
    return found


def _read_by(flow: ParameterFlow, staying: Iterable[Node]) -> set[Value]:
    return flow.read | {fact.array for node in staying for fact in flow.parameters_of(node)}


def _needed(flow: ParameterFlow, staying: set[Node]) -> set[Value]:
    """What the step reads of what it does not compute itself."""
    made = {array for node in staying for array in flow.arrays_of(node)}
    return _read_by(flow, staying) - made
