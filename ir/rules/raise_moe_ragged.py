"""Recognise experts over tokens that were sorted by expert (`jax.lax.ragged_dot`)."""

from __future__ import annotations

from tkcc.ir.graph import Node
from tkcc.ir.reading.axes import Dim, Dims, size_of
from tkcc.ir.reading.dots import read_sum
from tkcc.ir.reading.experts import Experts
from tkcc.ir.reading.ragged import RaggedReader, Sorted
from tkcc.ir.reading.rows import read_rows
from tkcc.ir.reading.scatters import written_places
from tkcc.ir.reading.shares import Chosen
from tkcc.ir.reading.views import Reader, View
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule
from tkcc.ir.rules.raise_moe import build_experts, rounded_result


@node_rule("lax.reduce_sum", group="raise")
def raise_moe_experts_ragged(editor: Editor, node: Node) -> Replacement | None:
    """Rows sorted by expert, put through ragged_dots, put back in order, weighted and added up over
    each token's choices -> moe_experts."""
    reader = Reader(editor.node_of)
    dims = reader.view(node.results[0]).dims
    found = read_sum(reader, View(node.results[0], dims))
    if found is None or len(found[1]) != 1:
        return None
    inner, (choices,) = found
    product = reader.base(inner, rounding=True)
    times = reader.node(product)
    if times is None or times.op != "lax.mul" or not choices:
        return None
    sides = reader.operands(times, product.dims)
    for output, weight in (sides, sides[::-1]):
        read = _put_back(editor, reader, output, choices)
        if read is not None:
            experts, rows = read
            weights = reader.base(weight)
            return _replacement(editor, reader, node, experts, rows, weights, choices, dims)
    return None


def _put_back(
    editor: Editor, reader: Reader, output: View, choices: Dim
) -> tuple[Sorted, Dim] | None:
    """Experts whose rows are put back in order by the inverse permutation, and the rows' axes."""
    base = reader.base(output, widening=True)
    gather = reader.node(base)
    if gather is None or gather.op != "lax.gather" or base.value.type.rank != 2:
        return None
    index = read_rows(reader, gather, base.dims)
    ragged = RaggedReader(reader, editor.is_parameter)
    found = ragged.read(gather.operands[0], size_of(choices)) if index is not None else None
    if index is None or found is None or ragged.inverse_of(index.value) is not found.order:
        return None
    rows = reader.axes.parts(base.dims[0])
    return (found, rows) if index.dims == (rows,) else None


def _replacement(
    editor: Editor,
    reader: Reader,
    node: Node,
    found: Sorted,
    rows: Dim,
    weights: View,
    choices: Dim,
    dims: Dims,
) -> Replacement | None:
    choices = reader.axes.parts(choices)
    tokens = rows[: len(rows) - len(choices)]
    target = rounded_result(editor, node.results[0], found.x.type.dtype)
    if rows != (*tokens, *choices) or target is None:
        return None
    outputs = next((dim for dim in reader.axes.resolve(dims) if dim and dim[0] not in tokens), ())
    experts = _experts(reader, found, tokens, outputs)
    chosen = Chosen(weights, reader.base(View(found.keys, (rows,))), choices)
    value = build_experts(editor, reader, experts, chosen, dims) if outputs else None
    return None if value is None else {target: value}


def _experts(reader: Reader, found: Sorted, tokens: Dim, outputs: Dim) -> Experts:
    (experts, channels, hidden) = reader.axes.fresh(found.gate.type.shape)
    return Experts(
        View(found.x, (tokens, channels)),
        View(found.gate, (experts, channels, hidden)),
        View(found.up, (experts, channels, hidden)),
        View(found.down, (experts, hidden, outputs)),
        experts,
        channels,
        hidden,
        outputs,
        found.activation,
    )


@node_rule("lax.scatter-add", group="raise")
def raise_moe_experts_segments(editor: Editor, node: Node) -> Replacement | None:
    """As raise_moe_experts_ragged, with the sorted rows times their sorted weights added to zeros
    at their tokens."""
    reader = Reader(editor.node_of)
    result, updates = node.results[0], reader.view(node.operands[2])
    if result.type.rank != 2 or updates.value.type.rank != 2 or not all(updates.dims):
        return None
    if reader.scalar(node.operands[0]) != 0 or updates.value.type.shape[0] % result.type.shape[0]:
        return None
    choices = updates.value.type.shape[0] // result.type.shape[0]
    product = reader.base(updates, rounding=True)
    times = reader.node(product)
    if times is None or times.op != "lax.mul":
        return None
    sides = reader.operands(times, product.dims)
    for output, weight in (sides, sides[::-1]):
        base = reader.base(output, widening=True)
        ragged = RaggedReader(reader, editor.is_parameter)
        found = ragged.read(base.value, choices) if base.dims == updates.dims else None
        if found is not None and _lands_on_tokens(
            reader, node, updates.dims, ragged, found, choices
        ):
            return _from_sorted(editor, reader, node, found, weight, choices)
    return None


def _lands_on_tokens(
    reader: Reader, node: Node, dims: Dims, ragged: RaggedReader, found: Sorted, choices: int
) -> bool:
    """Whether row i of the updates is added to row order[i] // choices."""
    places = written_places(reader, node, dims)
    if places is None or len(places[0].bases) != 1 or places[0].terms or places[0].number:
        return False
    row = places[0].bases[0]
    plain = row.factor == 1 and row.view.dims == dims[:1]
    return plain and ragged.divided(row.view.value, choices) is found.order


def _from_sorted(
    editor: Editor, reader: Reader, node: Node, found: Sorted, weight: View, choices: int
) -> Replacement | None:
    """The weights are those of the tokens in sorted order: weights.reshape(-1)[order]."""
    base = reader.base(weight, widening=True)
    gather = reader.node(base)
    if gather is None or gather.op != "lax.gather" or base.value.type.rank != 1:
        return None
    index = read_rows(reader, gather, base.dims)
    if index is None or index.value is not found.order or index.dims != base.dims:
        return None
    dims = reader.view(node.results[0]).dims
    tokens = dims[0]
    chosen = reader.axes.fresh((choices,))[0]
    rows = (*tokens, *chosen)
    weights = reader.base(View(gather.operands[0], (rows,)))
    return _replacement(editor, reader, node, found, rows, weights, chosen, dims)
