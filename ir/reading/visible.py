"""Masks and biases of plain attention as operands and attributes of the named op."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tkcc.ir.graph import Value
from tkcc.ir.reading.attention import Added, Hiding, Scores, mask_and_fill
from tkcc.ir.reading.axes import Dims
from tkcc.ir.reading.bounds import (
    Bounds,
    Groups,
    never_sees_a_key,
    read_bounds,
    sees_a_key,
)
from tkcc.ir.reading.build import arrange, binary, broadcast, convert, full, integers
from tkcc.ir.reading.masks import Mask, Test
from tkcc.ir.reading.views import Reader, View
from tkcc.ir.rewrite.editor import Editor

# Added to a score, these give themselves (scores are far below 2^-24 of them): the weight is zero,
# or all weights are equal where they are added to every score of a query.
_ABSORBING = -1e9
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
    tests, steps = divided
    bounds = read_bounds(reader, tests, groups)
    hidings = [step for step in steps if isinstance(step, Hiding)]
    written_out = [*bounds.rest, *(test for step in hidings for test in step.mask.tests)]
    if any(test.view is None for test in written_out):
        return None
    builder = _Builder(editor, reader, groups)
    operands = {
        "positions": builder.positions(bounds),
        "lengths": builder.lengths(bounds),
        "mask": builder.mask(bounds.rest),
        "bias": builder.bias(steps),
    }
    return Visible(
        operands,
        {"causal": bounds.causal, "window": bounds.window, "softcap": scores.softcap},
    )


_Steps = list[Hiding | Added]


class _Division:
    """Divides what hides scores into tests (bounds and the mask operand) and the bias operand.

    Hidden with -inf, a key has weight zero, as in the op. Hidden with a finite number, all keys of
    a query that sees none weigh the same, while the op gives zeros: such masks become tests only
    if every query sees a key, and else a bias.
    """

    def __init__(self, editor: Editor, reader: Reader, scores: Scores, groups: Groups) -> None:
        self.editor, self.reader, self.groups = editor, reader, groups
        self.steps = [step for step in scores.steps if _says_something(step)]
        self.pairs = [(s, pair) for s in self.steps if (pair := mask_and_fill(s)) is not None]

    def divide(self) -> tuple[list[Test], _Steps] | None:
        """The tests, and the steps that become the bias (the last first)."""
        if any(mask.never for _, (mask, _) in self.pairs) or self._gives_nan():
            return None
        infinite = [fill == -math.inf for _, (_, fill) in self.pairs]
        if all(infinite):
            return self._infinite()
        if self._all_see_a_key():
            others = [step for step in self.steps if mask_and_fill(step) is None]
            return [test for _, (mask, _) in self.pairs for test in mask.tests], others
        return None if any(infinite) else ([], self.steps)

    def _gives_nan(self) -> bool:
        """Whether -inf certainly hides every key from some query."""
        hidden = [mask for _, (mask, fill) in self.pairs if fill == -math.inf]
        tests = [test for mask in hidden for test in mask.tests]
        return never_sees_a_key(read_bounds(self.reader, tests, self.groups))

    def _infinite(self) -> tuple[list[Test], _Steps]:
        tests: list[Test] = []
        kept: _Steps = []
        for step in self.steps:
            pair = mask_and_fill(step)
            bounded = pair is not None and not self._rest(pair[0])
            if pair is not None and (isinstance(step, Hiding) or bounded):
                tests += pair[0].tests
            else:
                kept.append(step)  # an addition is a bias already
        return tests, kept

    def _rest(self, mask: Mask) -> list[Test]:
        return read_bounds(self.reader, mask.tests, self.groups).rest

    def _all_see_a_key(self) -> bool:
        tests = [test for _, (mask, _) in self.pairs for test in mask.tests]
        bounds = read_bounds(self.reader, tests, self.groups)
        others = [step for step in self.steps if mask_and_fill(step) is None]
        moderate = all(
            isinstance(s, Added) and _is_fixed(self.editor, s.view.value) for s in others
        )
        return moderate and not bounds.rest and sees_a_key(bounds, self.groups)


def _says_something(step: Hiding | Added) -> bool:
    pair = mask_and_fill(step)
    return pair is None or bool(pair[0].tests) or pair[0].never


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
        for view, wanted in dict.fromkeys((test.view, test.wanted) for test in tests):
            assert view is not None, "decide_visible refuses these"
            value = self._laid_out(view)
            if not wanted:
                (value,) = self.editor.add("lax.not", value)
            total = value if total is None else binary(self.editor, "lax.and", total, value)
        return total

    def bias(self, steps: Sequence[Hiding | Added]) -> Value | None:
        """The sum of what is added to a score, the smallest number where it is hidden."""
        total: Value | None = None
        for step in reversed(steps):
            if isinstance(step, Hiding):
                total = self._hidden(step, total)
            else:
                value = self._addition(step)
                total = value if total is None else binary(self.editor, "lax.add", total, value)
        return total

    def _hidden(self, step: Hiding, inner: Value | None) -> Value:
        """`inner` (or 0) where scores are kept, else a number beside which scores vanish."""
        kept = self.mask(step.mask.tests)
        assert kept is not None, "masks that say nothing were left out"
        dtype = inner.type.dtype if inner is not None else "f32"
        inner = inner if inner is not None else full(self.editor, 0.0, dtype, (1, 1, 1, 1))
        shape = np.broadcast_shapes(kept.type.shape, inner.type.shape)
        kept, inner = (broadcast(self.editor, v, shape, (0, 1, 2, 3)) for v in (kept, inner))
        fill = step.fill if step.fill <= _ABSORBING else _SMALLEST
        return self.editor.add("lax.select_n", kept, full(self.editor, fill, dtype, shape), inner)[
            0
        ]

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
