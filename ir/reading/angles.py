"""cos and sin of positions times frequencies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tkcc.ir.graph import Node
from tkcc.ir.reading.axes import Axis, Dims
from tkcc.ir.reading.cuts import piece
from tkcc.ir.reading.dots import read_dot
from tkcc.ir.reading.forms import Form, index_of, read_form, resolved, substituted
from tkcc.ir.reading.rows import read_rows
from tkcc.ir.reading.views import Reader, View

_MAX_STEPS = 24


@dataclasses.dataclass(frozen=True)
class Frequency:
    """A vector over the frequencies; the angle is divided by it if `inverse`."""

    view: View
    inverse: bool


@dataclasses.dataclass(frozen=True)
class Angle:
    """position * factor * frequencies."""

    position: Form
    frequencies: tuple[Frequency, ...]
    factor: float


@dataclasses.dataclass(frozen=True)
class Trig:
    """`factor` * cos (or sin) of an angle."""

    kind: str
    factor: float
    angle: Angle


class AngleReader:
    """Reads values as cos or sin of an angle that is a product of a position and frequencies."""

    def __init__(self, reader: Reader, frequency: Axis) -> None:
        self.reader = reader
        self.frequency = frequency
        self.places: dict[Axis, Form] = {}  # rows of tables -> which row is read

    def trig(self, view: View) -> Trig | None:
        factor = 1.0
        for _ in range(_MAX_STEPS):
            node = self.reader.node(view)
            if node is None or not view.value.type.is_float:
                return None
            if node.op in ("lax.cos", "lax.sin"):
                angle = self.angle(View(node.operands[0], view.dims))
                return None if angle is None else Trig(node.op[4:], factor, angle)
            if node.op == "lax.mul":
                scaled = self._scaled(node, view)
                if scaled is None:
                    return None
                factor *= scaled[0]
                view = scaled[1]
                continue
            earlier = self._earlier(node, view)
            if earlier is None:
                return None
            view = earlier
        return None

    def _scaled(self, node: Node, view: View) -> tuple[float, View] | None:
        for side in (0, 1):
            number = self.reader.scalar(node.operands[side])
            if number is not None:
                return number, self.reader.operand(node, 1 - side, view.dims)
        return None

    def _earlier(self, node: Node, view: View) -> View | None:
        """A step back through layout ops, conversions, pieces and rows of tables."""
        earlier = self.reader.back(view) or piece(self.reader, view)
        if earlier is not None:
            return earlier
        view = self.reader.resolve(view)
        if node.op == "lax.convert_element_type":
            return View(node.operands[0], view.dims)
        if node.op == "lax.gather":
            return self._row(node, view)
        if node.op in ("lax.slice", "lax.dynamic_slice"):
            return self._part(node, view)
        return None

    def _row(self, node: Node, view: View) -> View | None:
        ids = read_rows(self.reader, node, view.dims)
        form = read_form(self.reader, ids) if ids is not None else None
        if form is None:
            return None
        lead = len(view.dims) - node.operands[0].type.rank + 1
        return self._with_rows(node, 0, form, view.dims[lead:])

    def _with_rows(self, node: Node, place: int, form: Form, rest: Dims) -> View | None:
        table = node.operands[0]
        row = self.reader.axes.fresh((table.type.shape[place],))[0]
        if not row:
            return None
        axis = row[0]
        assert isinstance(axis, Axis)
        self.places[axis] = form
        return View(table, (*rest[:place], row, *rest[place:]))

    def _part(self, node: Node, view: View) -> View | None:
        """A slice of a table along one dimension."""
        table = node.operands[0]
        shape, whole = view.value.type.shape, table.type.shape
        cut = [i for i in range(len(shape)) if shape[i] != whole[i]]
        if len(cut) != 1 or self.frequency in view.dims[cut[0]]:
            return None
        (place,) = cut
        if node.op == "lax.slice":
            start: Form | None = Form(node.attribute("start_indices")[place])
            stride = (node.attribute("strides") or (1,) * len(shape))[place]
        else:
            start, stride = read_form(self.reader, View(node.operands[1 + place], ())), 1
        if start is None:
            return None
        form = start.plus(index_of(view.dims[place]), stride)
        return self._with_rows(node, place, form, (*view.dims[:place], *view.dims[place + 1 :]))

    def angle(self, view: View) -> Angle | None:
        if view.dtype != "f32":
            return None
        positions: list[Form] = []
        frequencies: list[Frequency] = []
        number = 1.0
        for factor, inverse in self._factors(view, False, _MAX_STEPS):
            scalar = self.reader.scalar(factor.value)
            factor = self.reader.resolve(factor)
            if scalar:
                number *= 1 / scalar if inverse else scalar
            elif factor.axes == {self.frequency}:
                frequencies.append(Frequency(self.reader.base(factor), inverse))
            else:
                form = None if inverse or self.frequency in factor.axes else self._position(factor)
                if form is None:
                    return None
                positions.append(form)
        if len(positions) != 1 or not frequencies:
            return None
        return Angle(positions[0], tuple(frequencies), number)

    def _position(self, view: View) -> Form | None:
        form = read_form(self.reader, view)
        return None if form is None else substituted(resolved(self.reader, form), self.places)

    def _factors(self, view: View, inverse: bool, steps: int) -> Iterator[tuple[View, bool]]:
        """What is multiplied (or divided by), taken apart where positions meet frequencies."""
        view = self.reader.base(view)
        node = self.reader.node(view)
        parts = self._parts(node, view) if node is not None and steps else None
        if parts is None:
            yield view, inverse
            return
        for part, divides in parts:
            yield from self._factors(part, inverse != divides, steps - 1)

    def _parts(self, node: Node, view: View) -> list[tuple[View, bool]] | None:
        """The factors of a value (with True for a divisor), or None to leave it whole."""
        if node.op in ("lax.mul", "lax.div"):
            both = list(self.reader.operands(node, view.dims))
        elif node.op == "lax.dot_general":
            dot = read_dot(self.reader, node, view.dims)
            both = [] if dot.summed else [dot.left, dot.right]
        else:
            return self._unwrapped(node, view)
        only = view.axes == {self.frequency}
        if not both or (only and not any(map(self._is_number_read, both))):
            return None
        if self.frequency not in view.axes and not any(map(self._is_number, both)):
            return None
        return [(both[0], False), (both[1], node.op == "lax.div")]

    def _unwrapped(self, node: Node, view: View) -> list[tuple[View, bool]] | None:
        if self.frequency not in view.axes or (
            node.op == "lax.convert_element_type" and not node.operands[0].type.is_float
        ):
            return None
        earlier = self._earlier(node, view)
        return None if earlier is None else [(earlier, False)]

    def _is_number(self, view: View) -> bool:
        return self.reader.scalar(view.value) is not None

    def _is_number_read(self, view: View) -> bool:
        """Whether it is one number that is not known: a position, where there is only one."""
        return not self.reader.resolve(view).axes and not self._is_number(view)
