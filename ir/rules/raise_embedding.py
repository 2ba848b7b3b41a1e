"""Recognise the look-up of rows of a parameter table.

The named op clamps ids to the table. JAX's indexing counts negative ids from the end, `jnp.take`
gives NaN for ids past the table, and a one-hot row of such an id is zero; for ids in range all are
the same.
"""

from __future__ import annotations

from tkcc.ir.graph import Node
from tkcc.ir.reading.build import arrange
from tkcc.ir.reading.dots import read_dot
from tkcc.ir.reading.rows import read_one_hot, read_rows
from tkcc.ir.reading.views import Reader, View
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule


@node_rule("lax.gather", group="raise")
def raise_embedding(editor: Editor, node: Node) -> Replacement | None:
    """table[ids], jnp.take(table, ids, axis=0) -> embedding(table, ids)."""
    table = node.operands[0]
    if table.type.rank != 2 or not editor.is_parameter(table):
        return None
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    ids = read_rows(reader, node, dims)
    if ids is None:
        return None
    rows = arrange(editor, ids, reader.axes.resolve(dims[:-1]), expand=True)
    return {node.results[0]: editor.add("embedding", table, rows)[0]}


@node_rule("lax.dot_general", group="raise")
def raise_one_hot_embedding(editor: Editor, node: Node) -> Replacement | None:
    """one_hot(ids) @ table -> embedding(table, ids)."""
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    dot = read_dot(reader, node, dims)
    for hot, table in ((dot.left, dot.right), (dot.right, dot.left)):
        type_ = table.value.type
        if not editor.is_parameter(table.value) or type_.rank != 2 or len(dot.summed) != 1:
            continue
        ids = read_one_hot(reader, hot, dot.summed)
        if ids is None or type_.dtype != node.results[0].type.dtype:
            continue
        width = tuple(digit for dim in table.dims for digit in dim if digit not in dot.summed)
        lead = tuple(dim for dim in hot.dims if dim != dot.summed)
        matrix = arrange(editor, table, (dot.summed, width))
        rows = arrange(editor, ids, reader.axes.resolve(lead), expand=True)
        found = View(editor.add("embedding", matrix, rows)[0], (*lead, width))
        return {node.results[0]: arrange(editor, reader.resolve(found), reader.axes.resolve(dims))}
    return None
