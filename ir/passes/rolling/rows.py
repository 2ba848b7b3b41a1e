"""Rows of stacked values: recognise `W[i]`, stack values, take rows, undo stack after unstack."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tkcc.ir.graph import NO_SOURCE, Function, Node, Source, Value
from tkcc.ir.op import build
from tkcc.ir.passes.clean import with_operands

Define = Callable[[Value], Node | None]
ROLLED = Source(rewrites=("roll",))
NODES_PER_ROW = 2  # what `take_row` makes
# What `undo_restacking` can undo: joining along a new axis, in one op or two.
JOINS = {
    "stack",
    "lax.stack",
    "concat",
    "lax.concatenate",
    "lax.broadcast_in_dim",
    "lax.reshape",
    "reshape",
}


def definer(function: Function) -> Define:
    """Which node defines a value (None for an input)."""
    definitions = function.definitions

    def define(value: Value) -> Node | None:
        found = definitions.get(value)
        return found[0] if found is not None else None

    return define


def row_of(value: Value, define: Define) -> tuple[Value, int] | None:
    """(W, i) if the value is written as W[i]: one slice of axis 0 with that axis removed."""
    node = define(value)
    if node is None or not _drops_axis(node):
        return None
    piece = define(node.operands[0])
    if piece is None or piece.results[0].type.shape[:1] != (1,):
        return None
    index = _static_index(piece) if piece.op == "lax.slice" else _dynamic_index(piece, define)
    return None if index is None else (piece.operands[0], index)


def _drops_axis(node: Node) -> bool:
    """Whether the node only removes a leading axis of size 1."""
    if node.op == "lax.squeeze":
        return node.attribute("dimensions") == (0,)
    if node.op not in ("lax.reshape", "reshape"):
        return False
    return (1, *node.results[0].type.shape) == node.operands[0].type.shape


def _static_index(node: Node) -> int | None:
    start, strides = node.attribute("start_indices"), node.attribute("strides")
    whole = node.operands[0].type.shape[1:] == node.result.type.shape[1:]
    return int(start[0]) if whole and strides in (None, (1,) * len(start)) else None


def _dynamic_index(node: Node, define: Define) -> int | None:
    """The index of a `dynamic_slice` whose indices are constants in range."""
    if node.op != "lax.dynamic_slice":
        return None
    source, *indices = node.operands
    makers = [define(index) for index in indices]
    if source.type.shape[1:] != node.result.type.shape[1:]:
        return None
    if not all(maker is not None and maker.op == "constant" for maker in makers):
        return None
    index = int(makers[0].attribute("value").array())  # type: ignore[union-attr]
    return index if 0 <= index < source.type.shape[0] else None


def rows_of(values: Sequence[Value], define: Define) -> tuple[Value, int] | None:
    """(W, first) if the values are W[first], W[first + 1], ..."""
    found = [row_of(value, define) for value in values]
    first = found[0]
    if first is None:
        return None
    wanted = [(first[0], first[1] + step) for step in range(len(values))]
    return first if found == wanted else None


def stack(values: Sequence[Value], define: Define) -> tuple[list[Node], Value]:
    """Nodes that stack the values along a new axis 0, and the result.

    Consecutive rows of one value W are W itself, or one slice of it.
    """
    rows = rows_of(values, define)
    if rows is None:
        node = build("stack", *values, source=ROLLED)
        return [node], node.result
    whole, first = rows
    if len(values) == whole.type.shape[0]:
        return [], whole
    node = slice_rows(whole, first, len(values), ROLLED)
    return [node], node.result


def slice_rows(whole: Value, first: int, count: int, source: Source = NO_SOURCE) -> Node:
    """W[first : first + count]."""
    shape = whole.type.shape
    attributes = {
        "start_indices": (first, *(0 for _ in shape[1:])),
        "limit_indices": (first + count, *shape[1:]),
        "strides": None,
    }
    return build("lax.slice", whole, attributes=attributes, source=source)


def take_row(whole: Value, index: int) -> list[Node]:
    """Nodes that give W[index], written so that `row_of` finds it again; the last one is it."""
    piece = slice_rows(whole, index, 1, ROLLED)
    return [
        piece,
        build("lax.squeeze", piece.result, attributes={"dimensions": (0,)}, source=ROLLED),
    ]


def undo_restacking(function: Function) -> Function:
    """Where all rows of a value are joined again in order, use the value itself."""
    define = definer(function)
    replaced: dict[Value, Value] = {}
    for node in function.nodes:
        parts = _stacked_parts(node, define)
        rows = rows_of(parts, define) if parts else None
        if rows is not None and rows[1] == 0 and rows[0].type == node.result.type:
            replaced[node.result] = rows[0]
    if not replaced:
        return function
    return function.replace(
        nodes=tuple(with_operands(node, replaced) for node in function.nodes),
        outputs=tuple(replaced.get(value, value) for value in function.outputs),
    )


def _stacked_parts(node: Node, define: Define) -> list[Value] | None:
    """The values that the node joins along a new axis 0, however that is written."""
    if node.op == "stack" or (node.op == "lax.stack" and node.attribute("axis") == 0):
        return list(node.operands)
    joins = {"lax.concatenate": "dimension", "concat": "axis"}
    if node.op not in joins or node.attribute(joins[node.op]) != 0:
        return None
    parts = [_before_new_axis(value, define) for value in node.operands]
    return None if None in parts else [part for part in parts if part is not None]


def _before_new_axis(value: Value, define: Define) -> Value | None:
    """x if the value is x with a new leading axis of size 1."""
    node = define(value)
    if node is None or node.op not in ("lax.broadcast_in_dim", "lax.reshape", "reshape"):
        return None
    (x,) = node.operands[:1]
    if value.type.shape != (1, *x.type.shape):
        return None
    if node.op == "lax.broadcast_in_dim":
        moved = node.attribute("broadcast_dimensions") != tuple(range(1, value.type.rank))
        return None if moved else x
    return x
