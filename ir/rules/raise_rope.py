"""Recognise rotary position embeddings.

Positions must be whole numbers and angles float32 products of a position and a vector of
frequencies; tables of cos and sin that are made in the program and indexed by position are read
back to that. Tables that are parameters or inputs stay as they are. The named op turns in float32
and rounds once: roundings of cos and sin to a short float disappear.
"""

from __future__ import annotations

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.axes import Axis, Dim, Dims, axes_in, flat
from tkcc.ir.reading.build import arrange, binary, convert, full, integers
from tkcc.ir.reading.cuts import read_cut
from tkcc.ir.reading.rotary import Rotation, read_rotation
from tkcc.ir.reading.scalars import short
from tkcc.ir.reading.views import Reader, View, holds_all, widens
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule

_SCHEMES = {
    "lax.add": (False, True),
    "lax.concatenate": (False,),
    "lax.reshape": (True,),
}


@node_rule("lax.add", "lax.concatenate", "lax.reshape", group="raise")
def raise_rope(editor: Editor, node: Node) -> Replacement | None:
    """Pairs of channels turned by position * frequency -> rope(x, positions, frequencies)."""
    type_ = node.results[0].type
    if type_.rank < 2 or type_.shape[-1] % 2 or type_.dtype not in ("bf16", "f16", "f32"):
        return None
    if node.op == "lax.concatenate" and node.attribute("dimension") != type_.rank - 1:
        return None
    for interleaved in _SCHEMES[node.op]:
        reader = Reader(editor.node_of)
        rotation = read_rotation(reader, reader.view(node.results[0]), interleaved=interleaved)
        if rotation is not None and holds_all(type_.dtype, rotation.x.dtype):
            out = _rope(editor, reader, rotation, type_.dtype, interleaved)
            return None if out is None else {node.results[0]: out}
    return None


def _rope(
    editor: Editor, reader: Reader, rotation: Rotation, dtype: str, interleaved: bool
) -> Value | None:
    rows = _rows(rotation)
    if rows is None:
        return None
    batch, time, heads = rows
    x = convert(editor, arrange(editor, rotation.x, (batch, time, heads, rotation.pairs)), dtype)
    positions = integers(editor, rotation.angle.position, (batch, time))
    scale = short(rotation.scale, "f32")
    (out,) = editor.add(
        "rope",
        x,
        positions,
        _frequencies(editor, rotation),
        attributes={"interleaved": interleaved, "scale": scale},
    )
    return arrange(editor, View(out, (batch, time, heads, rotation.pairs)), rotation.dims)


def _rows(rotation: Rotation) -> tuple[Dim, Dim, Dim] | None:
    """Batch, positions and heads among the axes of x: positions vary along batch and time alone."""
    lead = rotation.dims[:-1]
    if axes_in(lead) != rotation.x.axes - set(rotation.pairs):
        return None
    moving = rotation.angle.position.axes
    if not moving <= axes_in(lead):
        return None
    first = lead[0]
    counted = {axis for axis, _ in rotation.angle.position.terms}
    leads = len(lead) >= 3 or not set(first) & counted
    own_row = leads and set(first) <= moving and (len(moving) > len(first) or not counted)
    batch = first if own_row or (len(lead) >= 3 and not set(first) & moving) else ()
    time = tuple(d for d in flat(lead) if d in moving and d not in batch)
    heads = tuple(d for d in flat(lead) if d not in batch and d not in time)
    return batch, time, heads


def _frequencies(editor: Editor, rotation: Rotation) -> Value:
    """The vector that positions are multiplied with, in float32."""
    (frequency,) = (axis for axis in rotation.pairs if axis in _axes_of(rotation))
    total: Value | None = None
    for part in rotation.angle.frequencies:
        value = convert(editor, arrange(editor, part.view, ((frequency,),)), "f32")
        if part.inverse:
            one = full(editor, 1.0, "f32", value.type.shape)
            value = binary(editor, "lax.div", one, value)
        total = value if total is None else binary(editor, "lax.mul", total, value)
    assert total is not None
    if rotation.angle.factor != 1:
        factor = full(editor, rotation.angle.factor, "f32", total.type.shape)
        total = binary(editor, "lax.mul", total, factor)
    return total


def _axes_of(rotation: Rotation) -> set[Axis]:
    return {axis for part in rotation.angle.frequencies for axis in part.view.axes}


@node_rule("lax.convert_element_type", group="raise")
def raise_rope_narrow(editor: Editor, node: Node) -> Replacement | None:
    """rope of x widened to float32, rounded to x's dtype: rope of x (it works in float32)."""
    reader = Reader(editor.node_of)
    view = reader.view(node.results[0])
    rope = _rope_behind(editor, reader, View(node.operands[0], view.dims))
    if rope is None:
        return None
    found, result = rope
    before = editor.node_of(found.operands[0])
    if before is None or not widens(before) or before.operands[0].type.dtype != view.dtype:
        return None
    (out,) = editor.add(
        "rope", before.operands[0], *found.operands[1:], attributes=dict(found.attributes)
    )
    return {node.results[0]: arrange(editor, View(out, result.dims), reader.resolve(view).dims)}


def _rope_behind(editor: Editor, reader: Reader, view: View) -> tuple[Node, View] | None:
    """The rope that a value is a layout of, if nobody else reads either."""
    current: View | None = view
    while current is not None and editor.use_count(current.value) == 1:
        node = reader.node(current)
        if node is not None and node.op == "rope":
            return node, reader.resolve(current)
        current = reader.back(current)
    return None


@node_rule("lax.concatenate", group="raise")
def raise_rope_partial(editor: Editor, node: Node) -> Replacement | None:
    """rope of the first channels, joined with the other channels as they are: rope of all."""
    last = node.results[0].type.rank - 1
    if len(node.operands) != 2 or node.attribute("dimension") != last:
        return None
    reader = Reader(editor.node_of)
    lead = reader.view(node.results[0]).dims[:-1]
    rope = _rope_behind(editor, reader, _piece(reader, node, 0, lead))
    if rope is None:
        return None
    turned, result = rope
    x = _whole(reader, View(turned.operands[0], result.dims), 0)
    rest = _whole(reader, _piece(reader, node, 1, lead), turned.operands[0].type.shape[-1])
    if x is None or rest is None or x.value is not rest.value or x.dims[:-1] != rest.dims[:-1]:
        return None
    channels = reader.axes.fresh(node.results[0].type.shape[-1:])[0]
    rows: Dims = (*result.dims[:-1], channels)
    whole = arrange(editor, View(x.value, (*x.dims[:-1], channels)), rows)
    (out,) = editor.add("rope", whole, *turned.operands[1:], attributes=dict(turned.attributes))
    return {
        node.results[0]: arrange(editor, View(out, rows), (*reader.axes.resolve(lead), channels))
    }


def _piece(reader: Reader, node: Node, number: int, lead: Dims) -> View:
    value = node.operands[number]
    return View(value, (*lead, *reader.axes.fresh(value.type.shape[-1:])))


def _whole(reader: Reader, view: View, start: int) -> View | None:
    """What a value is the channels from `start` on of."""
    base = reader.base(view)
    cut = read_cut(reader, base)
    place = base.value.type.rank - 1
    if cut is None or (cut.place, cut.start, cut.stride) != (place, start, 1):
        return None
    return cut.source
