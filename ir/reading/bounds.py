"""Which keys a query sees: index comparisons as causal, window and length bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tkcc.ir.reading.axes import Axis, Dim, axes_in, size_of
from tkcc.ir.reading.forms import Form, index_of, resolved
from tkcc.ir.reading.masks import Test
from tkcc.ir.reading.views import Reader


@dataclasses.dataclass(frozen=True)
class Groups:
    """The axes of an attention: batch, queries, key heads, query heads per key head, keys,
    channels of q and k, channels of v."""

    batch: Dim
    queries: Dim
    heads: Dim
    repeats: Dim
    keys: Dim
    channels: Dim
    outputs: Dim

    @property
    def rows(self) -> set[Axis]:
        return axes_in((self.batch, self.queries))

    def default_positions(self) -> Form:
        """The queries as the last of the keys."""
        first = size_of(self.keys) - size_of(self.queries)
        return index_of(self.queries).shifted(first)


@dataclasses.dataclass
class Bounds:
    """What the tests say: keys j <= `positions` (if `causal`), j > positions - `window`,
    j < `lengths`; `rest` are tests that are none of these."""

    causal: bool = False
    positions: Form | None = None
    window: int | None = None
    lengths: Form | None = None
    rest: list[Test] = dataclasses.field(default_factory=list)


def read_bounds(reader: Reader, tests: Iterable[Test], groups: Groups) -> Bounds:
    """Sort the tests of a mask."""
    bounds = Bounds()
    lower: list[tuple[Form, Test]] = []
    for test in tests:
        upper, least = _limits(reader, test, groups)
        if upper is not None:
            if not _add_upper(bounds, upper, groups):
                bounds.rest.append(test)
        elif least is not None:
            lower.append((least, test))
        else:
            bounds.rest.append(test)
    for least, test in lower:
        if least.largest() > 0 and not _add_lower(bounds, least, groups):
            bounds.rest.append(test)
    return bounds


def _limits(reader: Reader, test: Test, groups: Groups) -> tuple[Form | None, Form | None]:
    """(u, None) if the test is j <= u, (None, l) if it is j >= l, for key j; else two Nones."""
    if test.form is None or not groups.keys:
        return None, None
    form = resolved(reader, test.form)
    last = groups.keys[-1]
    factor = form.factor(last) if isinstance(last, Axis) else 0
    if factor not in (1, -1):
        return None, None
    rest = form.plus(index_of(groups.keys), -factor)
    if not rest.axes <= groups.rows:
        return None, None
    return (rest.times(-1), None) if factor == 1 else (None, rest)


def _add_upper(bounds: Bounds, upper: Form, groups: Groups) -> bool:
    """Take j <= upper as causal or as a length; False if that place is taken by another bound."""
    if upper.smallest() >= size_of(groups.keys) - 1:
        return True  # always so
    moves = bool(upper.axes & axes_in((groups.queries,)))
    is_position = upper.number == 0 and bool(upper.bases)
    if moves or (not groups.queries and is_position):
        tighter = _tighter(bounds.positions, upper, 1)
        bounds.causal, bounds.positions = True, tighter or bounds.positions
    else:
        tighter = _tighter(bounds.lengths, upper.shifted(1), 1)
        bounds.lengths = tighter or bounds.lengths
    return tighter is not None


def _tighter(known: Form | None, other: Form, sign: int) -> Form | None:
    """The smaller of two bounds (the larger, for sign -1); None if that depends."""
    if known is None:
        return other
    difference = other.plus(known, -1)
    if difference.axes or difference.bases:
        return None
    return other if sign * difference.number < 0 else known


def _add_lower(bounds: Bounds, least: Form, groups: Groups) -> bool:
    """Take j >= least as a window before the query's position."""
    positions = bounds.positions or groups.default_positions()
    width = positions.plus(least, -1).shifted(1)
    if width.axes or width.bases or width.number < 1:
        return False
    bounds.window = min(width.number, bounds.window or width.number)
    return True


def sees_a_key(bounds: Bounds, groups: Groups) -> bool:
    """Whether every query sees a key, for positions >= 0 that lie in the keys and lengths >= 1."""
    keys = size_of(groups.keys)
    positions = bounds.positions or groups.default_positions()
    if bounds.causal and not positions.bases and positions.smallest() < 0:
        return False
    if bounds.lengths is not None and not bounds.lengths.bases and bounds.lengths.smallest() < 1:
        return False
    if bounds.window is None:
        return True
    inside = bool(positions.bases) or positions.largest() - bounds.window + 1 <= keys - 1
    return bounds.lengths is None and inside


def never_sees_a_key(bounds: Bounds) -> bool:
    """Whether some query certainly sees no key: its position is known and negative."""
    positions = bounds.positions
    return (
        bounds.causal and positions is not None and positions.smallest() < 0 and not positions.bases
    )
