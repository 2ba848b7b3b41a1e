"""What a compiler says of a program with loops, counted as often as the loops run.

XLA's cost analysis takes a loop's body once, however often it runs: of 16 layers in one scan it
sees one. The share of a body is found by compiling the function again, with every scan cut to one
step, and again with one of them cut to two: the difference is one more run of that body. (Without
the cut, by unrolling, it would also count the slicing of stacks whose length is odd.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from tkcc.backends.xla.placement import Placement
from tkcc.ir.evaluate import Override, evaluate
from tkcc.ir.graph import Function, Node


@dataclasses.dataclass(frozen=True)
class Figures:
    """Flops, bytes and seconds of one call, as a compiler counts them; None if it does not."""

    flops: float | None
    bytes: float | None
    seconds: float | None

    def plus(self, other: Figures, times: float = 1.0) -> Figures:
        """self + times * other, field by field."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Figures(*(None if None in (a, b) else a + times * b for a, b in pairs))


Measure = Callable[[Override], Figures]  # compile with this override, and read the figures


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
    """A scan of two steps or more, and those inside its body."""

    node: Node
    inner: tuple[Scan, ...]

    @property
    def runs(self) -> int:
        return int(self.node.attribute("length"))

    @property
    def counted(self) -> int:
        """How many copies of the body stand in the compiled code, as lax.scan unrolls it."""
        unroll = int(self.node.attribute("unroll"))
        return min(self.runs, unroll + self.runs % unroll)


def with_loops(
    function: Function, once: Figures, placement: Placement, measure: Measure
) -> Figures:
    """`once`, what the compiler says of the function, with scans counted as often as they run.

    `placement` is what the function was compiled with. While loops and loops inside lax ops stay
    counted once.
    """
    loops = tuple(_loops(function, placement))
    everything = scans(function, placement)
    if not everything:
        return once
    nodes = frozenset(loop.node for loop in everything)
    single = measure(_cut(nodes, None, placement))
    shares = {
        loop.node: measure(_cut(nodes, loop.node, placement)).plus(single, -1.0)
        for loop in everything
    }
    total = once
    for loop in loops:
        total = total.plus(_cost(loop, shares, lambda item: item.runs), loop.runs)
        total = total.plus(_cost(loop, shares, lambda item: item.counted), -loop.counted)
    return total


def _loops(function: Function, placement: Placement) -> Iterator[Scan]:
    """The function's outermost scans of two steps or more that `evaluate` reaches."""
    for node in function.nodes:
        if node.op.startswith("lax.") or node in placement.calls:
            continue
        inner = tuple(loop for region in node.regions for loop in _loops(region, placement))
        if node.op == "scan" and node.attribute("length") > 1:
            yield Scan(node, inner)
        else:
            yield from inner


def scans(function: Function, placement: Placement) -> list[Scan]:
    """Every scan of two steps or more that `evaluate` reaches, outer ones first."""
    return list(_flat(tuple(_loops(function, placement))))


def _flat(loops: Sequence[Scan]) -> Iterator[Scan]:
    for loop in loops:
        yield loop
        yield from _flat(loop.inner)


def _cost(loop: Scan, shares: dict[Node, Figures], times: Callable[[Scan], int]) -> Figures:
    """One run of a body whose inner loops run `times` times."""
    cost = shares[loop.node]
    for inner in loop.inner:
        cost = cost.plus(shares[inner.node], -1.0)
        cost = cost.plus(_cost(inner, shares, times), times(inner))
    return cost


def _cut(loops: frozenset[Node], twice: Node | None, placement: Placement) -> Override:
    """Runs every loop for one step, and `twice` for two, without a loop."""

    def override(node: Node, operands: Sequence[Any]) -> Sequence[Any] | None:
        if node in loops:
            return _steps(node, operands, 2 if node is twice else 1, override)
        return placement.override(node, operands)

    return override


def _steps(node: Node, operands: Sequence[Any], steps: int, override: Override) -> tuple[Any, ...]:
    first, carry = node.attribute("consts"), node.attribute("carry")
    consts, state = operands[:first], tuple(operands[first : first + carry])
    stacked = operands[first + carry :]
    slices = []
    for step in range(steps):
        inputs = [*consts, *state, *(x[step] for x in stacked)]
        out = evaluate(node.regions[0], inputs, override)
        state = out[:carry]
        slices.append(out[carry:])
    return (*state, *_written(node, carry, slices, list(stacked)))


def _written(
    node: Node, carry: int, slices: list[tuple[Any, ...]], stacked: list[Any]
) -> Iterator[Any]:
    """The stacked results: slices written over an operand of the same type (a cache) or zeros."""
    for number, value in enumerate(node.results[carry:]):
        struct = value.type.struct()
        same = [x for x in stacked if x.shape == struct.shape and x.dtype == struct.dtype]
        whole = same[0] if same else jnp.zeros(struct.shape, struct.dtype)
        stacked = [x for x in stacked if x is not whole]
        for step, items in enumerate(slices):
            whole = lax.dynamic_update_index_in_dim(whole, items[number], step, 0)
        yield whole
