"""Look-ups of rows, as gathers and as products with one-hot rows."""

from __future__ import annotations

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.axes import Dim, Dims
from tkcc.ir.reading.forms import index_of, read_form, resolved, unwrapped
from tkcc.ir.reading.views import Reader, View


def read_rows(reader: Reader, node: Node, dims: Dims) -> View | None:
    """The ids of a gather that is `operand[ids]`, its result running over `dims`."""
    numbers, operand = node.attribute("dimension_numbers"), node.operands[0].type
    lead = len(dims) - operand.rank + 1
    rows = (
        tuple(numbers.offset_dims) == tuple(range(lead, len(dims)))
        and tuple(numbers.collapsed_slice_dims) == (0,)
        and tuple(numbers.start_index_map) == (0,)
        and not numbers.operand_batching_dims
        and tuple(node.attribute("slice_sizes")) == (1, *operand.shape[1:])
    )
    if not rows:
        return None
    return read_index(reader, View(node.operands[1], (*dims[:lead], ())))


def read_index(reader: Reader, view: View) -> View:
    """The view of an index without JAX's fix of negative indices."""
    view = reader.base(view)
    node = reader.node(view)
    if node is not None and unwrapped(reader, node):
        view = reader.base(reader.operand(node, 1, view.dims))
    return view


def read_one_hot(reader: Reader, view: View, classes: Dim) -> View | None:
    """The ids whose one-hot rows over the axis `classes` the view holds."""
    view = reader.base(view, rounding=True)
    convert = reader.node(view)
    if convert is None or convert.op != "lax.convert_element_type":
        return None
    test = reader.base(View(convert.operands[0], view.dims))
    node = reader.node(test)
    if node is None or node.op != "lax.eq":
        return None
    return read_equal_index(reader, node, test, classes)


def read_equal_index(reader: Reader, node: Node, test: View, classes: Dim) -> View | None:
    """ids, if the node compares the index along `classes` with integer ids."""
    counted = index_of(reader.axes.parts(classes))
    sides = reader.operands(node, test.dims)
    for index, ids in (sides, sides[::-1]):
        form = read_form(reader, index)
        if form is None or resolved(reader, form) != counted or ids.dtype[0] not in "iu":
            continue
        base = reader.base(ids)
        if not base.axes & set(reader.axes.parts(classes)):
            return base
    return None


def reads_along(reader: Reader, node: Node, ids: Value) -> bool:
    """Whether a gather is `take_along_axis(operand, ids, -1)`."""
    numbers, operand = node.attribute("dimension_numbers"), node.operands[0].type
    last = operand.rank - 1
    lead = tuple(range(last))
    along = (
        tuple(numbers.operand_batching_dims) == lead == tuple(numbers.start_indices_batching_dims)
        and not numbers.offset_dims
        and tuple(numbers.collapsed_slice_dims) == (last,)
        and tuple(numbers.start_index_map) == (last,)
    )
    if not along or ids.type.shape != node.results[0].type.shape:
        return False
    dims = reader.view(node.results[0]).dims
    index = read_index(reader, View(node.operands[1], (*dims, ())))
    return index.value is ids and index.dims == dims
