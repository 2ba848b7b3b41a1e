"""Masks and biases of plain attention as operands and attributes of the named op."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tkcc.ir.graph import Value
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.reading.attention import Added, Hiding, Scores
from tkcc.ir.reading.axes import Dims
from tkcc.ir.reading.bounds import (
    Bounds,
    Groups,
    never_sees_a_key,
    read_bounds,
    sees_a_key,
)
from tkcc.ir.reading.build import arrange, binary, convert, full, integers
from tkcc.ir.reading.masks import Mask, Test
from tkcc.ir.reading.views import Reader, View

# Added to a score, it gives itself: the weight is zero, or all weights are equal if it is added to
# every score of a query.
_MOST_VALUES = 100  # that are looked at
_SMALLEST = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True)
class Visible:
    """Optional operands and attributes of `attention`."""

    operands: dict[str, Value | None]
    attributes: dict[str, object]


def decide_visible(
    editor: Editor, reader: Reader, scores: Scores, groups: Groups
) -> Visible | None:
    """What hides keys, in the op's terms; None if the op cannot say it."""
    divided = _Division(editor, reader, scores, groups).divide()
    if divided is None:
        return None
    tests, hidings, added = divided
    bounds = read_bounds(reader, tests, groups)
    builder = _Builder(editor, reader, groups)
    operands = {
        "positions": builder.positions(bounds),
        "lengths": builder.lengths(bounds),
        "mask": builder.mask(bounds.rest),
        "bias": builder.bias(hidings, added),
    }
    attributes = {"causal": bounds.causal, "window": bounds.window, "softcap": scores.softcap}
    return Visible(operands, attributes)


class _Division:
    """Divides what hides scores into tests (bounds and the mask operand) and the bias operand.

    Hidden with -inf, a key has weight zero, as in the op. Hidden with a finite number, all keys of
    a query that sees none weigh the same, while the op gives zeros: such masks become tests only
    if every query sees a key, and else a bias.
    """

    def __init__(self, editor: Editor, reader: Reader, scores: Scores, groups: Groups) -> None:
        self.editor, self.reader, self.groups = editor, reader, groups
        self.hidings = [hiding for hiding in scores.hidings if _says_something(hiding.mask)]
        self.choices = [item for item in scores.added if item.choice is not None]
        self.others = [item for item in scores.added if item.choice is None]

    def divide(self) -> tuple[list[Test], list[Hiding], list[Added]] | None:
        pairs = [(hiding.mask, hiding.fill) for hiding in self.hidings]
        pairs += [(item.choice.mask, item.choice.no) for item in self.choices if item.choice]
        if any(mask.never for mask, _ in pairs) or self._gives_nan(pairs):
            return None
        everything = [test for mask, _ in pairs for test in mask.tests]
        infinite = [fill == -math.inf for _, fill in pairs]
        if all(infinite):
            return self._infinite()
        if self._all_see_a_key(everything):
            return everything, [], self.others
        if any(infinite):
            return None
        return [], self.hidings, [*self.choices, *self.others]

    def _gives_nan(self, pairs: Sequence[tuple[Mask, float]]) -> bool:
        """Whether -inf certainly hides every key from some query."""
        tests = [test for mask, fill in pairs if fill == -math.inf for test in mask.tests]
        return never_sees_a_key(read_bounds(self.reader, tests, self.groups))

    def _infinite(self) -> tuple[list[Test], list[Hiding], list[Added]]:
        tests = [test for hiding in self.hidings for test in hiding.mask.tests]
        kept = list(self.others)
        for item in self.choices:
            found = item.choice.mask.tests if item.choice else ()
            if read_bounds(self.reader, found, self.groups).rest:
                kept.append(item)  # it is a bias already
            else:
                tests += found
        return tests, [], kept

    def _all_see_a_key(self, tests: Sequence[Test]) -> bool:
        bounds = read_bounds(self.reader, tests, self.groups)
        moderate = all(_is_fixed(self.editor, item.view.value) for item in self.others)
        return moderate and not bounds.rest and sees_a_key(bounds, self.groups)


def _says_something(mask: Mask) -> bool:
    return bool(mask.tests) or mask.never


def _is_fixed(editor: Editor, value: Value) -> bool:
    """Whether a value is made of parameters and counts alone: no data that may hide a key."""
    seen: set[Value] = set()
    stack = [value]
    while stack and len(seen) < _MOST_VALUES:
        top = stack.pop()
        node = editor.node_of(top)
        if top in seen or editor.is_parameter(top):
            continue
        if node is None:
            return False
        seen.add(top)
        stack += node.operands
    return not stack


class _Builder:
    """Makes the operands; rows are [b, t], scores [b, h, t, s]."""

    def __init__(self, editor: Editor, reader: Reader, groups: Groups) -> None:
        self.editor, self.reader, self.groups = editor, reader, groups
        heads = (*groups.heads, *groups.repeats)
        self.rows: Dims = (groups.batch, groups.queries)
        self.scores: Dims = (groups.batch, heads, groups.queries, groups.keys)

    def positions(self, bounds: Bounds) -> Value | None:
        if bounds.positions is None or bounds.positions == self.groups.default_positions():
            return None
        return integers(self.editor, bounds.positions, self.rows)

    def lengths(self, bounds: Bounds) -> Value | None:
        if bounds.lengths is None:
            return None
        return integers(self.editor, bounds.lengths, (self.groups.batch,))

    def mask(self, tests: Sequence[Test]) -> Value | None:
        total: Value | None = None
        for test in tests:
            value = self._laid_out(test.view)
            if not test.wanted:
                (value,) = self.editor.add("lax.not", value)
            total = value if total is None else binary(self.editor, "lax.and", total, value)
        return total

    def bias(self, hidings: Sequence[Hiding], added: Sequence[Added]) -> Value | None:
        parts = [self._hiding(hiding) for hiding in hidings]
        parts += [self._addition(item) for item in added]
        total: Value | None = None
        for part in parts:
            total = part if total is None else binary(self.editor, "lax.add", total, part)
        return total

    def _hiding(self, hiding: Hiding) -> Value:
        """0 where scores are kept, else the smallest float32."""
        kept = self.mask(hiding.mask.tests)
        assert kept is not None, "masks that say nothing were left out"
        cases = [
            full(self.editor, number, "f32", kept.type.shape) for number in (_SMALLEST, 0.0)
        ]
        return self.editor.add("lax.select_n", kept, *cases)[0]

    def _addition(self, item: Added) -> Value:
        value = self._laid_out(item.view)
        value = value if value.type.dtype == "f64" else convert(self.editor, value, "f32")
        if item.factor == 1:
            return value
        factor = full(self.editor, item.factor, value.type.dtype, ())
        return binary(self.editor, "lax.mul", value, factor)

    def _laid_out(self, view: View) -> Value:
        base = self.reader.base(view)
        return arrange(self.editor, base, self.scores)
