"""What a compiler says of a program with loops, counted as often as the loops run.

XLA's cost analysis takes a loop's body once, however often it runs: of 16 layers in one scan it
sees one. What a body costs where it stands is found by compiling the function again with that scan
unrolled further: the difference is a known number of further copies of the body. (A body compiled
outside its loop would not do: small programs copy their weights into fast memory first, and count
those copies several times.)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tkcc.backends.xla.placement import Placement
from tkcc.ir.evaluate import Override, evaluate_node
from tkcc.ir.graph import Function, Node

LARGEST_UNROLL = 8


@dataclasses.dataclass(frozen=True)
class Figures:
    """Flops, bytes and seconds of one call, as a compiler counts them; None if it does not.

    `untimed` ops have no part in the seconds.
    """

    flops: float | None
    bytes: float | None
    seconds: float | None
    untimed: float = 0.0

    def plus(self, other: Figures, times: float = 1.0) -> Figures:
        """self + times * other, field by field."""

        def added(a: float | None, b: float | None) -> float | None:
            return None if a is None or b is None else a + times * b

        return Figures(
            added(self.flops, other.flops),
            added(self.bytes, other.bytes),
            added(self.seconds, other.seconds),
            self.untimed + times * other.untimed,
        )

    def times(self, factor: float) -> Figures:
        return Figures(0.0, 0.0, 0.0).plus(self, factor)


Measure = Callable[[Override], Figures]  # compile with this override, and read the figures


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
    """A scan of two steps or more. `around` is how many copies of it the compiled code has."""

    node: Node
    inner: tuple[Scan, ...]
    around: int

    @property
    def runs(self) -> int:
        return int(self.node.attribute("length"))

    @property
    def unroll(self) -> int:
        return int(self.node.attribute("unroll"))

    @property
    def counted(self) -> int:
        """How many copies of the body one copy of the scan has."""
        return copies(self.runs, self.unroll)


def copies(runs: int, unroll: int) -> int:
    """Bodies in the code of a scan as lax.scan lays it out: those of the loop, and the rest."""
    return min(runs, unroll + runs % unroll)


def scans(function: Function, placement: Placement) -> list[Scan]:
    """Every scan of two steps or more that `evaluate` reaches, outer ones first."""
    return list(_flat(_scans(function, placement, 1)))


def _scans(function: Function, placement: Placement, around: int) -> tuple[Scan, ...]:
    return tuple(_found(function, placement, around))


def _found(function: Function, placement: Placement, around: int) -> Iterator[Scan]:
    for node in function.nodes:
        if node.op.startswith("lax.") or node in placement.calls:
            continue
        if node.op == "scan" and node.attribute("length") > 1:
            held = copies(node.attribute("length"), node.attribute("unroll"))
            yield Scan(node, _scans(node.regions[0], placement, around * held), around)
        else:
            for region in node.regions:
                yield from _found(region, placement, around)


def _flat(found: Sequence[Scan]) -> Iterator[Scan]:
    for scan in found:
        yield scan
        yield from _flat(scan.inner)


def with_loops(
    function: Function, once: Figures, placement: Placement, measure: Measure
) -> Figures:
    """`once`, what the compiler says of the function, with scans counted as often as they run.

    `placement` is what the function was compiled with. While loops and loops inside lax ops stay
    counted once.
    """
    outer = _scans(function, placement, 1)
    bodies = {scan.node: _body(scan, once, placement, measure) for scan in _flat(outer)}
    total = once
    for scan in outer:
        total = total.plus(_true_body(scan, bodies), scan.runs)
        total = total.plus(bodies[scan.node], -scan.counted)
    return total


def _body(scan: Scan, once: Figures, placement: Placement, measure: Measure) -> Figures:
    """One copy of a scan's body as the compiler counts it, inner loops once."""
    few, many = unrolls(scan.runs, scan.unroll)

    def unrolled(unroll: int) -> Figures:
        if unroll == scan.unroll:
            return once
        return measure(_unrolling({scan.node: unroll}, placement))

    further = scan.around * (copies(scan.runs, many) - copies(scan.runs, few))
    return unrolled(many).plus(unrolled(few), -1.0).times(1.0 / further)


def _true_body(scan: Scan, bodies: Mapping[Node, Figures]) -> Figures:
    """One run of a scan's body, inner loops as often as they run."""
    cost = bodies[scan.node]
    for inner in scan.inner:
        cost = cost.plus(bodies[inner.node], -inner.counted)
        cost = cost.plus(_true_body(inner, bodies), inner.runs)
    return cost


def unrolls(runs: int, unroll: int) -> tuple[int, int]:
    """Two ways to unroll a scan that differ in nothing but how many copies its loop holds.

    Both leave the same rest: where there is one, lax.scan slices the stacks, which copies them. The
    scan's own unrolling is the first of the two where it can be, which saves compiling it again.
    """
    half = runs // 2
    few = range(1, min(half, LARGEST_UNROLL) + 1)
    pairs = [(a, b) for a, b in itertools.combinations(few, 2) if runs % a == runs % b]
    own = [pair for pair in pairs if pair[0] == unroll]
    if own or pairs:
        return (own or pairs)[0]
    return (1, runs)  # of so few steps, all may be laid out


def _unrolling(changed: Mapping[Node, int], placement: Placement) -> Override:
    """Runs the scans in `changed` with another unrolling, and all else as placed."""

    def override(node: Node, operands: Sequence[Any]) -> Sequence[Any] | None:
        if node not in changed:
            return placement.override(node, operands)
        attributes = {**dict(node.attributes), "unroll": changed[node]}
        again = node.replace(attributes=tuple(sorted(attributes.items())))
        return evaluate_node(again, operands, override)

    return override
