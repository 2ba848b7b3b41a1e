"""Recognise writes of keys or values into a cache.

The named op moves a write that does not fit back to the end, as `dynamic_update_slice` does;
`cache.at[...].set` drops it instead, and JAX counts negative positions from the end. For positions
inside the cache all are the same.
"""

from __future__ import annotations

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.axes import Axis, Dims, axes_in, size_of
from tkcc.ir.reading.build import arrange, integers, transpose
from tkcc.ir.reading.forms import Base, Form, index_of, read_form
from tkcc.ir.reading.rows import read_equal_index
from tkcc.ir.reading.scatters import plain_axis, remaining, written_places
from tkcc.ir.reading.views import Reader, View
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule

_LAYOUTS = {1: "bshd", 2: "bhsd"}
_PIECES = ("update_cache", "lax.slice", "lax.dynamic_slice", "lax.reshape", "lax.squeeze")


@node_rule("lax.dynamic_update_slice", group="raise")
def raise_update_cache(editor: Editor, node: Node) -> Replacement | None:
    """dynamic_update_slice(cache, new, (0, start, 0, 0)) -> update_cache; also (0, 0, start, 0)."""
    cache, new, *starts = node.operands
    reader = Reader(editor.node_of)
    place = _written_dimension(reader, cache, new, starts)
    start = read_form(reader, View(starts[place], ())) if place is not None else None
    if place is None or start is None or start.axes:
        return None
    pieces = new if place == 1 else transpose(editor, new, (0, 2, 1, 3))
    return _update(editor, node, cache, pieces, start, place)


def _written_dimension(reader: Reader, cache: Value, new: Value, starts: list[Value]) -> int | None:
    """The dimension that is written in part: 1 or 2 of 4, all others whole."""
    if cache.type.rank != 4:
        return None
    moved = [i for i, start in enumerate(starts) if reader.scalar(start) != 0]
    parts = [i for i in range(4) if cache.type.shape[i] != new.type.shape[i]]
    places = {*moved, *parts}
    if not places:
        return None
    return places.pop() if len(places) == 1 and places <= set(_LAYOUTS) else None


def _update(
    editor: Editor, node: Node, cache: Value, new: Value, start: Form, place: int
) -> Replacement:
    rows: Dims = ((Axis(cache.type.shape[0]),),) if cache.type.shape[0] != 1 else ((),)
    at = integers(editor, start, rows)
    (out,) = editor.add("update_cache", cache, new, at, attributes={"layout": _LAYOUTS[place]})
    return {node.results[0]: out}


@node_rule("lax.scatter", group="raise", name="raise_update_cache_scatter")
def raise_update_cache_scatter(editor: Editor, node: Node) -> Replacement | None:
    """Writes at one position (or at consecutive ones) of each row -> update_cache:
    `cache.at[rows, start].set(new)`, `cache.at[:, start].set(new)`, and batched
    dynamic_update_slice."""
    cache, _, updates = node.operands
    if cache.type.rank != 4 or not _is_kept(editor, cache):
        return None
    reader = Reader(editor.node_of)
    dims = reader.view(updates).dims
    forms = written_places(reader, node, dims)
    if forms is None or reader.axes.resolve(dims) != dims:
        return None
    for place in _LAYOUTS:
        found = _write(forms, dims, cache, place)
        if found is not None:
            rows, start = found
            new = arrange(editor, View(updates, dims), rows)
            at = integers(editor, start, (rows[0],))
            attributes = {"layout": _LAYOUTS[place]}
            (out,) = editor.add("update_cache", cache, new, at, attributes=attributes)
            return {node.results[0]: out}
    return None


def _is_kept(editor: Editor, value: Value) -> bool:
    """Whether a value is (a piece of) an input, or an updated cache: something that is kept."""
    node = editor.node_of(value)
    while node is not None and node.op in _PIECES:
        node = editor.node_of(node.operands[0])
    return node is None


def _write(forms: list[Form], dims: Dims, cache: Value, place: int) -> tuple[Dims, Form] | None:
    """(axes of the updates as [b, t, h, d], start) of a write along dimension `place`."""
    others = {i: plain_axis(forms[i], dims) for i in range(4) if i != place}
    whole = all(
        dim is not None and size_of(dim) == cache.type.shape[i] for i, dim in others.items()
    )
    if not whole:
        return None
    used = [dim for dim in others.values() if dim is not None]
    times = remaining(dims, used)
    if len(times) > 1:
        return None
    time = times[0] if times else ()
    start = forms[place].plus(index_of(time), -1)
    batch, heads, channels = used[0], used[1], used[2]
    if not start.axes <= axes_in((batch,)):
        return None
    return (batch, time, heads, channels), start


@node_rule("lax.select_n", group="raise", name="raise_update_cache_select")
def raise_update_cache_select(editor: Editor, node: Node) -> Replacement | None:
    """where(arange(s) == start, new, cache), new being one position -> update_cache."""
    if node.results[0].type.rank != 4 or len(node.operands) != 3:
        return None
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    which, old, new = reader.operands(node, dims)
    test = reader.base(which)
    equal = reader.node(test)
    if equal is None or equal.op != "lax.eq" or old.value.type != node.results[0].type:
        return None
    if not _is_kept(editor, old.value):
        return None
    for place in _LAYOUTS:
        start = read_equal_index(reader, equal, test, dims[place]) if dims[place] else None
        piece = reader.base(new)
        rows = (dims[0], (), dims[3 - place], dims[3])
        if start is None or not start.axes <= axes_in((dims[0],)):
            continue
        if reader.axes.resolve(dims) == dims and piece.axes <= axes_in(rows):
            at = integers(editor, Form(0, (), (Base(1, start),)), (dims[0],))
            attributes = {"layout": _LAYOUTS[place]}
            row = arrange(editor, piece, rows, expand=True)
            (out,) = editor.add("update_cache", old.value, row, at, attributes=attributes)
            return {node.results[0]: out}
    return None
