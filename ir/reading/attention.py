"""Plain softmax attention, read back from the product with the values to q, k and the masks."""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node
from tkcc.ir.reading.axes import Dim, Dims
from tkcc.ir.reading.dots import plain_precision, read_dot
from tkcc.ir.reading.masks import Choice, Mask, Test, opposite, read_choice, read_mask
from tkcc.ir.reading.views import Reader, View, holds_all
from tkcc.ir.rewrite.editor import Editor

# What is added to (or put in the place of) a score at most that large makes its weight zero:
# exp(x) is 0 in float32 below -104, and scores are far smaller than this. -65504 is float16's.
HIDDEN = -5e4


@dataclasses.dataclass(frozen=True)
class Hiding:
    """Scores are kept where `mask` holds, and become `fill` elsewhere."""

    mask: Mask
    fill: float


@dataclasses.dataclass(frozen=True)
class Added:
    """`factor` times `view` is added; `choice` says if it only hides scores."""

    view: View
    factor: float
    choice: Choice | None


def mask_and_fill(step: Hiding | Added) -> tuple[Mask, float] | None:
    """Where a step keeps scores, and the number that hides them elsewhere; None if it does not
    hide."""
    if isinstance(step, Hiding):
        return step.mask, step.fill
    return None if step.choice is None else (step.choice.mask, step.choice.no)


@dataclasses.dataclass(frozen=True)
class Scores:
    """scale * (left . right), soft-capped, with hidings and additions in `steps`, the last first.

    `left` and `right` are read back through layout ops; `paired` holds the dimensions (as they
    stand in the product) that the two had in common there.
    """

    left: View
    right: View
    summed: Dim
    paired: Dims
    scale: float
    softcap: float | None
    steps: tuple[Hiding | Added, ...] = ()

    @property
    def tests(self) -> list[Test]:
        """The tests of all masks."""
        masks = [found[0] for found in map(mask_and_fill, self.steps) if found is not None]
        return [test for mask in masks for test in mask.tests]


@dataclasses.dataclass(frozen=True)
class Probabilities:
    """softmax(scores), in the axes of the product with the values; `rounded` is the narrowest
    dtype that they take on the way there."""

    scores: View
    rounded: str


def read_probabilities(
    reader: Reader, editor: Editor, view: View, keys: Dim
) -> Probabilities | None:
    """The softmax over `keys` whose result, with nothing but layout ops and conversions after it,
    is the value; None for any other value or if somebody else reads it too."""
    narrowest = view.dtype
    while editor.use_count(view.value) == 1:
        node = reader.node(view)
        if node is None:
            return None
        if node.op == "softmax":
            view = reader.resolve(view)
            if view.dims[-1] != reader.axes.parts(keys) or editor.use_count(node.operands[0]) != 1:
                return None
            return Probabilities(View(node.operands[0], view.dims), narrowest)
        earlier = reader.back(view)
        if earlier is None and node.op == "lax.convert_element_type":
            earlier = View(node.operands[0], view.dims)
        if earlier is None or not earlier.value.type.is_float:
            return None
        narrowest = earlier.dtype if holds_all(narrowest, earlier.dtype) else narrowest
        view = earlier
    return None


def _nothing(view: View, scale: float = 1.0) -> Scores:
    return Scores(view, view, (), (), scale, None)


class ScoreReader:
    """Walks back from the softmax's operand to the product of queries and keys."""

    def __init__(self, reader: Reader, editor: Editor) -> None:
        self.reader, self.editor = reader, editor

    def read(self, view: View) -> Scores | None:
        return self._read(view, _nothing(view))

    def _read(self, view: View, so_far: Scores) -> Scores | None:
        while self.editor.use_count(view.value) == 1:
            node = self.reader.node(view)
            if node is None or not view.value.type.is_float:
                return None
            view = self.reader.resolve(view)
            earlier = self.reader.back(view)
            if earlier is not None:
                view = earlier
            elif node.op == "lax.convert_element_type":
                view = View(node.operands[0], view.dims)
            elif node.op in ("lax.add", "lax.sub"):
                return self._addition(node, view, so_far)
            elif node.op == "lax.dot_general":
                return self._product(node, view, so_far)
            else:
                found = self._step(node, view, so_far)
                if found is None:
                    return None
                view, so_far = found
        return None

    def _step(self, node: Node, view: View, so_far: Scores) -> tuple[View, Scores] | None:
        if node.op in ("lax.mul", "lax.div"):
            return self._scaled(node, view, so_far)
        if node.op == "lax.tanh" and so_far.softcap is None and so_far.scale > 0:
            inner = dataclasses.replace(so_far, softcap=so_far.scale, scale=1.0)
            return View(node.operands[0], view.dims), inner
        if node.op == "lax.select_n" and len(node.operands) == 3 and so_far.softcap is None:
            return self._hidden(node, view, so_far)
        return None

    def _scaled(self, node: Node, view: View, so_far: Scores) -> tuple[View, Scores] | None:
        for side in (0, 1) if node.op == "lax.mul" else (1,):
            number = self.reader.scalar(node.operands[side])
            if number:
                factor = number if node.op == "lax.mul" else 1 / number
                changed = dataclasses.replace(so_far, scale=so_far.scale * factor)
                return self.reader.operand(node, 1 - side, view.dims), changed
        return None

    def _hidden(self, node: Node, view: View, so_far: Scores) -> tuple[View, Scores] | None:
        test, *cases = self.reader.operands(node, view.dims)
        for side in (0, 1):
            fill = self.reader.scalar(cases[side].value)
            if fill is None:
                continue
            fill *= so_far.scale
            hiding = Hiding(read_mask(self.reader, test, wanted=side == 0), fill)
            changed = dataclasses.replace(so_far, steps=(*so_far.steps, hiding))
            return (cases[1 - side], changed) if fill <= HIDDEN else None
        return None

    def _addition(self, node: Node, view: View, so_far: Scores) -> Scores | None:
        if so_far.softcap is not None:
            return None
        operands = self.reader.operands(node, view.dims)
        for side in (0, 1) if node.op == "lax.add" else (0,):
            scores, other = operands[side], operands[1 - side]
            if scores.value.type.shape != view.value.type.shape or not other.value.type.is_float:
                continue
            factor = so_far.scale if node.op == "lax.add" else -so_far.scale
            added = Added(other, factor, self._hiding_choice(other, factor))
            changed = dataclasses.replace(so_far, steps=(*so_far.steps, added))
            found = self._read(scores, changed)
            if found is not None:
                return found
        return None

    def _hiding_choice(self, view: View, factor: float) -> Choice | None:
        """The addition as 0 where scores are kept and a hiding number elsewhere."""
        choice = read_choice(self.reader, view)
        if choice is None:
            return None
        yes, no = factor * choice.yes, factor * choice.no
        if yes == 0 and no <= HIDDEN:
            return Choice(choice.mask, 0.0, no)
        other = opposite(choice.mask)
        return Choice(other, 0.0, yes) if no == 0 and yes <= HIDDEN and other else None

    def _product(self, node: Node, view: View, so_far: Scores) -> Scores | None:
        if not plain_precision(node):
            return None
        dot = read_dot(self.reader, node, view.dims)
        left, right = self._unscaled(dot.left), self._unscaled(dot.right)
        scale = so_far.scale * (so_far.softcap or 1.0) * left[1] * right[1]
        paired = tuple(dim for dim in dot.left.dims if dim and dim in dot.right.dims)
        return dataclasses.replace(
            so_far,
            left=left[0],
            right=right[0],
            summed=dot.summed,
            paired=tuple(dim for dim in paired if not set(dim) & set(dot.summed)),
            scale=scale,
        )

    def _unscaled(self, view: View) -> tuple[View, float]:
        """The operand of the product as far back as layout ops, exact conversions and products
        with numbers go, and the product of those numbers."""
        narrowest = view.dtype
        best, factor = (view, 1.0), 1.0
        while True:
            node = self.reader.node(view)
            earlier = self.reader.back(view)
            if node is None:
                return best
            if earlier is None and node.op == "lax.convert_element_type":
                earlier = View(node.operands[0], view.dims)
            if earlier is None and node.op in ("lax.mul", "lax.div"):
                found = self._scaled(node, view, _nothing(view, factor))
                if found is not None and found[0].value.type.shape == view.value.type.shape:
                    earlier, factor = found[0], found[1].scale
            if earlier is None or not earlier.value.type.is_float:
                return best
            view = self.reader.resolve(earlier)
            if holds_all(narrowest, view.dtype):
                best, narrowest = (view, factor), view.dtype
