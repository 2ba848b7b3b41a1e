"""Rotary embeddings, read as what happens to the two halves of each pair of channels.

A value is read twice: in the channels of the first half (`Fixed(2, 0)`) and of the second
(`Fixed(2, 1)`). In each it must be a sum of two products of a channel with cos or sin. So
concatenated and split forms, doubled and single cos, stacks and strided slices read alike.
"""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node
from tkcc.ir.reading.angles import Angle, AngleReader, Trig
from tkcc.ir.reading.axes import Axis, Digit, Dims, Fixed
from tkcc.ir.reading.cuts import fixed_in, piece, uncut
from tkcc.ir.reading.scalars import near
from tkcc.ir.reading.views import Reader, View, widens

_MAX_STEPS = 24


@dataclasses.dataclass(frozen=True)
class Term:
    """factor * (channel half `half` of x) * trig, x given by the views that may be it."""

    factor: float
    sources: tuple[View, ...]
    trig: Trig


@dataclasses.dataclass(frozen=True)
class Rotation:
    """x with pairs of channels turned by an angle; `pairs` are the digits of the channels."""

    x: View
    pairs: tuple[Axis, Axis]  # as the last dimension: (half, frequency) or (frequency, half)
    angle: Angle
    scale: float
    dims: Dims  # of the result


def read_rotation(reader: Reader, view: View, *, interleaved: bool) -> Rotation | None:
    """The rotation that a value is; its last dimension must hold one fresh axis."""
    lead, channels = view.dims[:-1], view.value.type.shape[-1]
    frequency, half = Axis(channels // 2), Axis(2)
    halves = []
    for number in (0, 1):
        fixed = Fixed(2, number)
        last: tuple[Digit, ...] = (frequency, fixed) if interleaved else (fixed, frequency)
        terms = _Terms(reader, frequency).read(View(view.value, (*lead, last)))
        if terms is None or len(terms) != 2:
            return None
        halves.append({term.trig.kind: term for term in terms})
    if any(set(terms) != {"cos", "sin"} for terms in halves):
        return None
    found = _same_rotation(halves)
    if found is None:
        return None
    x, angle, scale = found
    pairs = (frequency, half) if interleaved else (half, frequency)
    swapped = View(x.value, _with_half(x.dims, half))
    return Rotation(swapped, pairs, angle, scale, reader.axes.resolve((*lead, pairs)))


def _with_half(dims: Dims, half: Axis) -> Dims:
    return tuple(tuple(half if isinstance(d, Fixed) else d for d in dim) for dim in dims)


def _same_rotation(halves: list[dict[str, Term]]) -> tuple[View, Angle, float] | None:
    """x, the angle and the scale, if the four products make a rotation of one x by one angle.

    first = x0 cos - x1 sin, second = x1 cos + x0 sin.
    """
    (first, second) = halves
    four = [first["cos"], first["sin"], second["cos"], second["sin"]]
    factors = [term.factor * term.trig.factor for term in four]
    scale = factors[0]
    signs = (1, -1, 1, 1)
    turned = all(near(f * sign, scale) for f, sign in zip(factors, signs, strict=True))
    angles = {term.trig.angle for term in four}
    if scale <= 0 or not turned or len(angles) != 1:
        return None
    sources = [_sources(term, half) for term, half in zip(four, (0, 1, 1, 0), strict=True)]
    shared = [x for x in sources[0] if all(x in others for others in sources[1:])]
    return (shared[-1], angles.pop(), scale) if shared else None


_ANY = Fixed(2, 0)


def _sources(term: Term, half: int) -> list[View]:
    """The views that x may be, seen from half `half`, with the half left open."""
    found = []
    for view in term.sources:
        if fixed_in(view.dims) == [Fixed(2, half)]:
            dims = tuple(
                tuple(_ANY if isinstance(d, Fixed) else d for d in dim) for dim in view.dims
            )
            found.append(View(view.value, dims))
    return found


class _Terms:
    """Reads a value, seen in one half of the channels, as a sum of products."""

    def __init__(self, reader: Reader, frequency: Axis) -> None:
        self.reader = reader
        self.angles = AngleReader(reader, frequency)

    def read(self, view: View, factor: float = 1.0, steps: int = _MAX_STEPS) -> list[Term] | None:
        node = self.reader.node(view)
        if node is None or steps == 0 or not view.value.type.is_float:
            return None
        if node.op in ("lax.add", "lax.sub"):
            return self._sum(node, view, factor)
        if node.op in ("lax.real", "lax.imag"):
            return self._complex(node, view, factor)
        earlier = self._earlier(node, view)
        return None if earlier is None else self.read(earlier, factor, steps - 1)

    def _sum(self, node: Node, view: View, factor: float) -> list[Term] | None:
        one, two = self.reader.operands(node, view.dims)
        left = self._summand(one, factor)
        if left is None:
            return None
        right = self._summand(two, factor if node.op == "lax.add" else -factor)
        return None if right is None else left + right

    def _summand(self, view: View, factor: float) -> list[Term] | None:
        """One product (a rotation has no sum within a sum)."""
        for _ in range(_MAX_STEPS):
            node = self.reader.node(view)
            if node is None or node.op == "lax.mul":
                return None if node is None else self._product(node, view, factor)
            if node.op == "lax.neg":
                view, factor = View(node.operands[0], view.dims), -factor
                continue
            earlier = self._earlier(node, view)
            if earlier is None:
                return None
            view = earlier
        return None

    def _earlier(self, node: Node, view: View) -> View | None:
        earlier = self.reader.back(view) or piece(self.reader, view)
        if earlier is None and widens(node):
            return View(node.operands[0], view.dims)
        return earlier

    def _product(self, node: Node, view: View, factor: float) -> list[Term] | None:
        view = self.reader.resolve(view)
        sides = self.reader.operands(node, view.dims)
        for x, other in (sides, sides[::-1]):
            trig = self.angles.trig(other)
            if trig is not None and x.value.type.shape == view.value.type.shape:
                sources, sign = self._channel(x)
                return [Term(factor * sign, tuple(sources), trig)]
        return None

    def _channel(self, view: View) -> tuple[list[View], float]:
        """The views that a channel of x comes from, the nearest first, and its sign."""
        views, sign = [self.reader.resolve(view)], 1.0
        for _ in range(_MAX_STEPS):
            view = views[-1]
            node = self.reader.node(view)
            if node is None:
                break
            earlier = self._earlier(node, view) or uncut(self.reader, view)
            if earlier is None and node.op == "lax.neg":
                earlier, sign = View(node.operands[0], view.dims), -sign
                views.clear()
            if earlier is None:
                break
            views.append(earlier)
        return [self.reader.resolve(item) for item in views], sign

    def _complex(self, node: Node, view: View, factor: float) -> list[Term] | None:
        """The real or imaginary part of (a + ib) (cos + i sin)."""
        product = self.reader.base(View(node.operands[0], view.dims))
        times = self.reader.node(product)
        if times is None or times.op != "lax.mul":
            return None
        sides = self.reader.operands(times, product.dims)
        for z, turn in (sides, sides[::-1]):
            pair, trig = self._parts(z), self._turn(turn)
            if pair is None or trig is None:
                continue
            (a, b), (cos, sin) = pair, trig
            if node.op == "lax.real":
                return [self._term(factor, a, cos), self._term(-factor, b, sin)]
            return [self._term(factor, b, cos), self._term(factor, a, sin)]
        return None

    def _term(self, factor: float, x: View, trig: Trig) -> Term:
        sources, sign = self._channel(x)
        return Term(factor * sign, tuple(sources), trig)

    def _parts(self, view: View) -> tuple[View, View] | None:
        view = self.reader.base(view)
        node = self.reader.node(view)
        if node is None or node.op != "lax.complex":
            return None
        real, imaginary = self.reader.operands(node, view.dims)
        return real, imaginary

    def _turn(self, view: View) -> tuple[Trig, Trig] | None:
        """cos + i sin: complex(cos, sin) or exp(i * angle)."""
        parts = self._parts(view)
        if parts is not None:
            cos, sin = self.angles.trig(parts[0]), self.angles.trig(parts[1])
            right = cos is not None and sin is not None and (cos.kind, sin.kind) == ("cos", "sin")
            return (cos, sin) if right and cos is not None and sin is not None else None
        view = self.reader.base(view)
        node = self.reader.node(view)
        angle = self._exponent(View(node.operands[0], view.dims)) if node is not None else None
        if node is None or node.op != "lax.exp" or angle is None:
            return None
        return Trig("cos", 1.0, angle), Trig("sin", 1.0, angle)

    def _exponent(self, view: View) -> Angle | None:
        """The angle of i * angle."""
        view = self.reader.base(view)
        node = self.reader.node(view)
        if node is None or node.op != "lax.mul":
            return None
        sides = self.reader.operands(node, view.dims)
        for i, other in (sides, sides[::-1]):
            unit = self.reader.node(self.reader.base(i))
            real = self.reader.node(self.reader.base(other))
            if unit is None or unit.op != "constant" or real is None:
                continue
            is_i = bool((unit.attribute("value").array() == 1j).all())
            if is_i and real.op == "lax.convert_element_type":
                return self.angles.angle(View(real.operands[0], self.reader.base(other).dims))
        return None
