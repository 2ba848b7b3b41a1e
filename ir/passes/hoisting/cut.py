"""Smallest vertex cut of a graph (Dinic's maximum flow, on vertices split in two)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Vertex = TypeVar("Vertex", bound=Hashable)


def smallest_cut(
    weights: Mapping[Vertex, int],
    edges: Iterable[tuple[Vertex, Vertex]],
    sources: Iterable[Vertex],
    sinks: Iterable[Vertex],
) -> set[Vertex]:
    """The vertices of least total weight that every path from a source to a sink goes through.

    Of cuts that weigh alike, the one nearest to the sinks. Sources and sinks may be cut too.
    """
    number = {vertex: i for i, vertex in enumerate(weights)}
    start, end = 2 * len(number), 2 * len(number) + 1
    endless = sum(weights.values()) + 1
    flow = _Flow(end + 1)
    for vertex, i in number.items():
        flow.add(2 * i, 2 * i + 1, weights[vertex])
    for a, b in edges:
        flow.add(2 * number[a] + 1, 2 * number[b], endless)
    for vertex in sources:
        flow.add(start, 2 * number[vertex], endless)
    for vertex in sinks:
        flow.add(2 * number[vertex] + 1, end, endless)
    flow.maximise(start, end)
    after = flow.reaching(end)
    return {v for v, i in number.items() if 2 * i + 1 in after and 2 * i not in after}


class _Flow:
    """A flow network. Edge 2k and its reverse 2k + 1 share their remaining capacity."""

    def __init__(self, vertices: int) -> None:
        self.leaving: list[list[int]] = [[] for _ in range(vertices)]
        self.target: list[int] = []
        self.room: list[int] = []

    def add(self, a: int, b: int, capacity: int) -> None:
        for origin, target, room in ((a, b, capacity), (b, a, 0)):
            self.leaving[origin].append(len(self.target))
            self.target.append(target)
            self.room.append(room)

    def maximise(self, start: int, end: int) -> None:
        while (level := self._levels(start))[end] >= 0:
            following = [0] * len(self.leaving)
            while path := self._path(start, end, level, following):
                pushed = min(self.room[e] for e in path)
                for e in path:
                    self.room[e] -= pushed
                    self.room[e ^ 1] += pushed

    def _levels(self, start: int) -> list[int]:
        level = [-1] * len(self.leaving)
        level[start] = 0
        queue = deque([start])
        while queue:
            at = queue.popleft()
            for e in self.leaving[at]:
                if self.room[e] > 0 and level[self.target[e]] < 0:
                    level[self.target[e]] = level[at] + 1
                    queue.append(self.target[e])
        return level

    def _path(self, start: int, end: int, level: list[int], following: list[int]) -> list[int]:
        """Edges to `end` along rising levels. `following` counts each vertex's edges that lead
        nowhere any more."""
        path: list[int] = []
        at = start
        while at != end:
            if following[at] < len(self.leaving[at]):
                e = self.leaving[at][following[at]]
                if self.room[e] > 0 and level[self.target[e]] == level[at] + 1:
                    path.append(e)
                    at = self.target[e]
                    continue
            elif not path:
                return []
            else:
                at = self.target[path.pop() ^ 1]
            following[at] += 1
        return path

    def reaching(self, end: int) -> set[int]:
        """The vertices from which more could flow to `end`."""
        found, queue = {end}, deque([end])
        while queue:
            for e in self.leaving[queue.popleft()]:
                if self.room[e ^ 1] > 0 and self.target[e] not in found:
                    found.add(self.target[e])
                    queue.append(self.target[e])
        return found
