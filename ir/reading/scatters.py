"""Scatters as writes: where each element of the updates goes."""

from __future__ import annotations

from tkcc.ir.graph import Node
from tkcc.ir.reading.axes import Dim, Dims, Fixed, axes_in
from tkcc.ir.reading.cuts import piece
from tkcc.ir.reading.forms import Form, index_of, read_form, resolved
from tkcc.ir.reading.views import Reader, View


def written_places(reader: Reader, node: Node, updates: Dims) -> list[Form] | None:
    """For each dimension of a scatter's operand, the index that an element of the updates goes to,
    as a form over the axes of the updates; None if an index cannot be read."""
    numbers = node.attribute("dimension_numbers")
    operand, indices = node.operands[0].type, node.operands[1]
    inside = set(numbers.update_window_dims)
    scattered = tuple(dim for i, dim in enumerate(updates) if i not in inside)
    forms = [Form() for _ in range(operand.rank)]
    outside = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [i for i in range(operand.rank) if i not in outside]
    for place, dim in zip(windows, sorted(inside), strict=True):
        forms[place] = index_of(updates[dim])
    batches = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    for place, dim in batches:
        forms[place] = index_of(scattered[dim])
    count = len(numbers.scatter_dims_to_operand_dims)
    for number, place in enumerate(numbers.scatter_dims_to_operand_dims):
        start = _component(reader, View(indices, (*scattered, _number(count, number))))
        if start is None:
            return None
        forms[place] = forms[place].plus(resolved(reader, start))
    return forms


def _number(count: int, number: int) -> Dim:
    return (Fixed(count, number),) if count > 1 else ()


def _component(reader: Reader, view: View) -> Form | None:
    """The index that stands at one place of the index vectors."""
    base = reader.base(view)
    part = piece(reader, base)
    view = reader.base(part) if part is not None else base
    if any(isinstance(digit, Fixed) for dim in view.dims for digit in dim):
        return None
    return read_form(reader, view)


def plain_axis(form: Form, dims: Dims) -> Dim | None:
    """The dimension along which a form counts 0, 1, ..., or () for 0."""
    if form == Form():
        return ()
    for dim in dims:
        if dim and form == index_of(dim):
            return dim
    return None


def remaining(dims: Dims, used: list[Dim]) -> Dims:
    """The dimensions of the updates that have axes and are not used."""
    taken = axes_in(used)
    return tuple(dim for dim in dims if dim and not axes_in((dim,)) & taken)
