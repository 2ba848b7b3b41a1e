"""Which layers of a model are stacked, and how the stacks are scanned.

Layers of one kind share their shapes, so they can be stacked; layers that follow each other can be
scanned. A model is a list of runs, each one scan whose body holds one period of layers: Qwen3 is
one run of one layer, gpt-oss one run of a (sliding, full) pair, DeepSeek-V3 a run of dense layers
and a run of mixtures. So the attributes of a layer (a window) stay constants of its scan's body,
where kernels and costs can see them, and every cache is sliced and stacked by one scan only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_PERIOD = 8


@dataclass(frozen=True)
class Stack:
    """Alike layers, stacked: their kind, and their numbers in the model."""

    kind: str
    layers: range

    @property
    def name(self) -> str:
        """Of the parameters and caches, where a model has several stacks: `moe_3`."""
        return f"{self.kind}_{self.layers.start}"


Run = tuple[Stack, ...]  # one period of layers; all its stacks are equally long


def find_runs(kinds: Sequence[str]) -> tuple[Run, ...]:
    """Cut layers of these kinds into as few periodic runs as a greedy search finds."""
    runs: list[Run] = []
    start = 0
    while start < len(kinds):
        period, repeats = _longest(kinds, start)
        end = start + period * repeats
        places = range(start, start + period)
        runs.append(tuple(Stack(kinds[at], range(at, end, period)) for at in places))
        start = end
    return tuple(runs)


def _longest(kinds: Sequence[str], start: int) -> tuple[int, int]:
    """(period, repeats) from `start` on that reach furthest, the shortest period among equals."""
    best = (1, 1)
    for period in range(1, min(_LONGEST_PERIOD, len(kinds) - start) + 1):
        repeats = _repeats(kinds, start, period)
        if repeats > 1 and period * repeats > best[0] * best[1]:
            best = (period, repeats)
    return best


def _repeats(kinds: Sequence[str], start: int, period: int) -> int:
    block, repeats = kinds[start : start + period], 1
    while kinds[start + repeats * period : start + (repeats + 1) * period] == block:
        repeats += 1
    return repeats
