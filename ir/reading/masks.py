"""Masks: a boolean value as a conjunction of index comparisons and of values that are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tkcc.ir.graph import Node
from tkcc.ir.reading.axes import Dims
from tkcc.ir.reading.forms import (
    Form,
    is_whole,
    read_form,
    read_part,
    resolved,
    substituted,
)
from tkcc.ir.reading.scalars import rounded
from tkcc.ir.reading.views import Reader, View

_MAX_DEPTH = 16


@dataclasses.dataclass(frozen=True)
class Test:
    """One condition: `form <= 0`, or (without a form) that `view` is `wanted`.

    `view` is a boolean value that equals the condition (or, where several tests have it, all of
    them together) if `wanted`, else its opposite; None if there is no such value.
    """

    view: View | None
    wanted: bool
    form: Form | None = None


@dataclasses.dataclass(frozen=True)
class Mask:
    """All of `tests` hold; `never` if the mask is false everywhere."""

    tests: tuple[Test, ...] = ()
    never: bool = False

    def also(self, other: Mask) -> Mask:
        return Mask(self.tests + other.tests, self.never or other.never)


ALWAYS, NEVER = Mask(), Mask((), never=True)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A number: `yes` where the mask holds, else `no`."""

    mask: Mask
    yes: float
    no: float


def read_mask(reader: Reader, view: View, wanted: bool = True, depth: int = _MAX_DEPTH) -> Mask:
    """Where the boolean value is `wanted`."""
    number = reader.scalar(view.value)
    if number is not None:
        return ALWAYS if bool(number) == wanted else NEVER
    node = reader.node(view)
    step = _STEPS.get(node.op) if node is not None else None
    if node is not None and step is not None and depth:
        mask = step(reader, node, reader.resolve(view), wanted, depth - 1)
        if mask is not None:
            return mask
    earlier = reader.back(view)
    if earlier is not None and depth:
        return read_mask(reader, earlier, wanted, depth - 1)
    return Mask((Test(reader.resolve(view), wanted),))


def _and(reader: Reader, node: Node, view: View, wanted: bool, depth: int) -> Mask | None:
    """a & b where true is wanted; a | b where false is."""
    if wanted != (node.op == "lax.and"):
        return None
    left, right = reader.operands(node, view.dims)
    return read_mask(reader, left, wanted, depth).also(read_mask(reader, right, wanted, depth))


def _not(reader: Reader, node: Node, view: View, wanted: bool, depth: int) -> Mask | None:
    return read_mask(reader, View(node.operands[0], view.dims), not wanted, depth)


def _comparison(reader: Reader, node: Node, view: View, wanted: bool, depth: int) -> Mask | None:
    """Integer comparisons as `form <= 0`; comparisons of a choice with a number."""
    decided = _against_number(reader, node, view.dims, wanted, depth)
    if decided is not None:
        return decided
    one, two = (read_form(reader, operand) for operand in reader.operands(node, view.dims))
    if one is None or two is None:
        return None
    return _ordered(node, view, wanted, resolved(reader, one), resolved(reader, two))


def _ordered(node: Node, view: View, wanted: bool, one: Form, two: Form) -> Mask | None:
    op = node.op if wanted else _OPPOSITE[node.op]
    if op in ("lax.eq", "lax.ne"):
        return None
    if op in ("lax.gt", "lax.ge"):
        one, two = two, one
    form = one.plus(two, -1).shifted(1 if op in ("lax.lt", "lax.gt") else 0)
    if not form.axes:
        return None if form.bases else (ALWAYS if form.number <= 0 else NEVER)
    return Mask((Test(view, wanted, form),))


def _against_number(
    reader: Reader, node: Node, dims: Dims, wanted: bool, depth: int
) -> Mask | None:
    for side in (0, 1):
        number = reader.scalar(node.operands[side])
        if number is None:
            continue
        choice = read_choice(reader, reader.operand(node, 1 - side, dims), depth)
        if choice is None:
            return None
        compare = _COMPARE[node.op]
        both = [
            compare(value, number) if side == 1 else compare(number, value)
            for value in (choice.yes, choice.no)
        ]
        return _decided(choice.mask, both[0] == wanted, both[1] == wanted)
    return None


def _decided(mask: Mask, if_held: bool, if_not: bool) -> Mask | None:
    """The mask of a condition that is known where `mask` holds and where it does not."""
    if if_held == if_not:
        return ALWAYS if if_held else NEVER
    return mask if if_held else opposite(mask)


def opposite(mask: Mask) -> Mask | None:
    """Where the mask does not hold, if that is one test again."""
    if mask.never or not mask.tests:
        return ALWAYS if mask.never else NEVER
    if len(mask.tests) > 1:
        return None
    test = mask.tests[0]
    form = None if test.form is None else test.form.times(-1).shifted(1)
    return Mask((Test(test.view, not test.wanted, form),))


def _selection(reader: Reader, node: Node, view: View, wanted: bool, depth: int) -> Mask | None:
    """`where(p, x, y)` of booleans, where x or y is known."""
    which, no, yes = reader.operands(node, view.dims)
    numbers = [reader.scalar(v.value) for v in (no, yes)]
    if numbers[0] is not None and bool(numbers[0]) != wanted:
        held = read_mask(reader, which, True, depth)
        return held.also(read_mask(reader, yes, wanted, depth))
    if numbers[1] is not None and bool(numbers[1]) != wanted:
        held = read_mask(reader, which, False, depth)
        return held.also(read_mask(reader, no, wanted, depth))
    return None


def _part(reader: Reader, node: Node, view: View, wanted: bool, depth: int) -> Mask | None:
    """A slice of a mask that is made of comparisons alone."""
    part = read_part(reader, node, view)
    if part is None:
        return None
    whole, places = part
    mask = read_mask(reader, whole, wanted, depth)
    forms = [
        substituted(resolved(reader, test.form), places) if test.form is not None else None
        for test in mask.tests
    ]
    if not is_whole(reader, whole) or any(form is None for form in forms):
        return None
    return Mask(tuple(Test(view, wanted, form) for form in forms), mask.never)


def _part_of_choice(reader: Reader, node: Node, view: View, depth: int) -> Choice | None:
    """A slice of a number that is chosen by comparisons; its mask has no value of its own."""
    part = read_part(reader, node, view)
    choice = read_choice(reader, part[0], depth) if part is not None else None
    if part is None or choice is None or not is_whole(reader, part[0]):
        return None
    tests = []
    for test in choice.mask.tests:
        form = substituted(resolved(reader, test.form), part[1]) if test.form is not None else None
        if form is None:
            return None
        tests.append(Test(None, test.wanted, form))
    return Choice(Mask(tuple(tests), choice.mask.never), choice.yes, choice.no)


def _to_bool(reader: Reader, node: Node, view: View, wanted: bool, depth: int) -> Mask | None:
    """A number as a boolean: whether it is not zero."""
    inner = View(node.operands[0], view.dims)
    if inner.dtype == "bool":
        return read_mask(reader, inner, wanted, depth)
    choice = read_choice(reader, inner, depth)
    if choice is None:
        return None
    return _decided(choice.mask, (choice.yes != 0) == wanted, (choice.no != 0) == wanted)


def read_choice(reader: Reader, view: View, depth: int = _MAX_DEPTH) -> Choice | None:
    """A number that takes one of two values, by a mask; None for any other value."""
    number = reader.scalar(view.value)
    if number is not None:
        return Choice(ALWAYS, number, number)
    node = reader.node(view)
    step = _CHOICES.get(node.op) if node is not None else None
    if node is not None and step is not None and depth:
        return step(reader, node, reader.resolve(view), depth - 1)
    earlier = reader.back(view)
    return read_choice(reader, earlier, depth - 1) if earlier is not None and depth else None


def _from_bool(reader: Reader, node: Node, view: View, depth: int) -> Choice | None:
    inner = View(node.operands[0], view.dims)
    if inner.dtype == "bool":
        return Choice(read_mask(reader, inner, True, depth), 1.0, 0.0)
    choice = read_choice(reader, inner, depth) if view.value.type.is_float else None
    if choice is None:
        return None
    yes, no = rounded(choice.yes, view.value.type), rounded(choice.no, view.value.type)
    return None if yes is None or no is None else Choice(choice.mask, yes, no)


def _chosen(reader: Reader, node: Node, view: View, depth: int) -> Choice | None:
    """`where(p, x, y)` of two numbers, or of a number and a choice that has it too."""
    which, no, yes = reader.operands(node, view.dims)
    one = read_choice(reader, no, depth)
    two = read_choice(reader, yes, depth) if one is not None else None
    if one is None or two is None:
        return None
    held = read_mask(reader, which, True, depth)
    if not two.mask.tests and not two.mask.never and one.yes == one.no:
        return Choice(held, two.yes, one.no)
    if one.yes == one.no == two.no:
        return Choice(held.also(two.mask), two.yes, two.no)
    return None


def _arithmetic(reader: Reader, node: Node, view: View, depth: int) -> Choice | None:
    """A choice and a number; or 0/1 times 0/1, which is `and`."""
    one, two = reader.operands(node, view.dims)
    left = read_choice(reader, one, depth)
    right = read_choice(reader, two, depth) if left is not None else None
    if left is None or right is None:
        return None
    compute = _COMPUTE[node.op]
    if right.yes == right.no:
        return Choice(left.mask, compute(left.yes, right.yes), compute(left.no, right.yes))
    if left.yes == left.no:
        return Choice(right.mask, compute(left.yes, right.yes), compute(left.yes, right.no))
    bits = (left.yes, left.no) == (right.yes, right.no) == (1.0, 0.0)
    return Choice(left.mask.also(right.mask), 1.0, 0.0) if node.op == "lax.mul" and bits else None


def _negative(reader: Reader, node: Node, view: View, depth: int) -> Choice | None:
    choice = read_choice(reader, View(node.operands[0], view.dims), depth)
    return None if choice is None else Choice(choice.mask, -choice.yes, -choice.no)


_OPPOSITE = {
    "lax.lt": "lax.ge",
    "lax.ge": "lax.lt",
    "lax.gt": "lax.le",
    "lax.le": "lax.gt",
    "lax.eq": "lax.ne",
    "lax.ne": "lax.eq",
}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "lax.lt": lambda a, b: a < b,
    "lax.le": lambda a, b: a <= b,
    "lax.gt": lambda a, b: a > b,
    "lax.ge": lambda a, b: a >= b,
    "lax.eq": lambda a, b: a == b,
    "lax.ne": lambda a, b: a != b,
}
_COMPUTE: dict[str, Callable[[float, float], float]] = {
    "lax.add": lambda a, b: a + b,
    "lax.sub": lambda a, b: a - b,
    "lax.mul": lambda a, b: a * b,
    "lax.div": lambda a, b: a / b if b else float("nan"),
}
_STEPS: dict[str, Callable[[Reader, Node, View, bool, int], Mask | None]] = {
    "lax.and": _and,
    "lax.or": _and,
    "lax.not": _not,
    "lax.select_n": _selection,
    "lax.convert_element_type": _to_bool,
    "lax.slice": _part,
    "lax.dynamic_slice": _part,
    **dict.fromkeys(_COMPARE, _comparison),
}
_CHOICES: dict[str, Callable[[Reader, Node, View, int], Choice | None]] = {
    "lax.convert_element_type": _from_bool,
    "lax.select_n": _chosen,
    "lax.neg": _negative,
    "lax.slice": _part_of_choice,
    "lax.dynamic_slice": _part_of_choice,
    **dict.fromkeys(_COMPUTE, _arithmetic),
}
