"""Named axes: what each dimension of a value stands for, whatever reshapes lie in between.

A dimension is a sequence of digits, most significant first. A digit is an `Axis` (it runs over
its size) or `Fixed` (one chosen index of that size). A dimension of size 1 has no digits. So
`[b, t, h * d]` and `[b, t, h, d]` are read in the same axes, and a transpose or a repeat of heads
is seen for what it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence


class Axis:
    """One axis; two axes are the same only if they are one object."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size

    def __repr__(self) -> str:
        return f"<axis {self.size} at {id(self) % 10_000}>"


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Index `index` of a digit that has `size` values."""

    size: int
    index: int


Digit = Axis | Fixed
Dim = tuple[Digit, ...]
Dims = tuple[Dim, ...]


def size_of(dim: Iterable[Digit]) -> int:
    return math.prod(digit.size for digit in dim)


def flat(dims: Iterable[Dim]) -> Dim:
    """All digits in row-major order."""
    return tuple(digit for dim in dims for digit in dim)


def axes_in(dims: Iterable[Dim]) -> set[Axis]:
    return {digit for dim in dims for digit in dim if isinstance(digit, Axis)}


class Axes:
    """Makes axes and remembers how some were split into two smaller ones."""

    def __init__(self) -> None:
        self._splits: dict[Axis, tuple[Axis, Axis]] = {}

    def fresh(self, shape: Sequence[int]) -> Dims:
        """New axes, one per dimension that is not of size 1."""
        return tuple((Axis(size),) if size != 1 else () for size in shape)

    def resolve(self, dims: Sequence[Dim]) -> Dims:
        """The dimensions with every axis that was split replaced by its parts."""
        if not self._splits:
            return tuple(dims)
        return tuple(self.parts(dim) for dim in dims)

    def parts(self, dim: Iterable[Digit]) -> Dim:
        found: list[Digit] = []
        for digit in dim:
            if isinstance(digit, Axis) and digit in self._splits:
                found += self.parts(self._splits[digit])
            else:
                found.append(digit)
        return tuple(found)

    def regroup(self, dims: Sequence[Dim], shape: Sequence[int]) -> Dims | None:
        """The digits of `dims`, in order, cut into dimensions of the sizes `shape`.

        Splits an axis where a cut falls inside it; None where that is not possible.
        """
        todo = list(reversed(self.parts(flat(dims))))
        if 0 in shape or any(digit.size == 0 for digit in todo):
            return None
        grouped: list[Dim] = []
        for size in shape:
            taken = self._take(todo, size)
            if taken is None:
                return None
            grouped.append(taken)
        return tuple(grouped) if not todo else None

    def _take(self, todo: list[Digit], size: int) -> Dim | None:
        """Remove digits of this total size from the end of `todo`."""
        taken: list[Digit] = []
        while size > 1:
            if not todo:
                return None
            digit = todo.pop()
            if size % digit.size == 0:
                taken.append(digit)
                size //= digit.size
                continue
            if digit.size % size:
                return None
            high, low = self._split(digit, size)
            taken.append(high)
            todo.append(low)
            size = 1
        return tuple(taken)

    def _split(self, digit: Digit, high: int) -> tuple[Digit, Digit]:
        low = digit.size // high
        if isinstance(digit, Fixed):
            return Fixed(high, digit.index // low), Fixed(low, digit.index % low)
        parts = (Axis(high), Axis(low))
        self._splits[digit] = parts
        return parts
