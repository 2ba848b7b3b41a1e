"""Each expert's share of a token, read back to the weights and ids of the chosen experts."""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Node
from tkcc.ir.reading.axes import Dim, Dims
from tkcc.ir.reading.dots import read_dot, read_sum
from tkcc.ir.reading.forms import Base, Form
from tkcc.ir.reading.rows import read_equal_index, read_one_hot
from tkcc.ir.reading.scatters import plain_axis, written_places
from tkcc.ir.reading.views import Reader, View


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Weights and ids of the chosen experts, both over tokens and `choices`."""

    weights: View
    ids: View
    choices: Dim


def read_shares(reader: Reader, view: View, experts: Dim) -> Chosen | None:
    """The value, over tokens and `experts`, as the sum over choices of weight * (id == expert)."""
    base = reader.base(view, rounding=True)
    node = reader.node(base)
    if node is None:
        return None
    if node.op == "lax.reduce_sum":
        return _summed(reader, base, experts)
    if node.op == "lax.dot_general":
        return _product(reader, node, base, experts)
    if node.op in ("lax.scatter", "lax.scatter-add"):
        return _scattered(reader, node, base, experts)
    return None


def _summed(reader: Reader, view: View, experts: Dim) -> Chosen | None:
    """sum over choices of one_hot * weight, or of where(id == expert, weight, 0)."""
    found = read_sum(reader, view)
    if found is None or len(found[1]) != 1:
        return None
    inner, (choices,) = found
    product = reader.base(inner, rounding=True)
    node = reader.node(product)
    if node is None:
        return None
    if node.op == "lax.mul":
        sides = reader.operands(node, product.dims)
        for hot, weight in (sides, sides[::-1]):
            ids = read_one_hot(reader, hot, experts)
            if ids is not None:
                return _chosen(reader, weight, ids, choices, experts)
    if node.op == "lax.select_n" and len(node.operands) == 3:
        return _where(reader, node, product, choices, experts)
    return None


def _where(reader: Reader, node: Node, view: View, choices: Dim, experts: Dim) -> Chosen | None:
    test, otherwise, weight = reader.operands(node, view.dims)
    test = reader.base(test)
    equal = reader.node(test)
    if equal is None or equal.op != "lax.eq" or reader.scalar(otherwise.value) != 0:
        return None
    ids = read_equal_index(reader, equal, test, experts)
    return None if ids is None else _chosen(reader, weight, ids, choices, experts)


def _product(reader: Reader, node: Node, view: View, experts: Dim) -> Chosen | None:
    """weights . one_hot, summed over choices."""
    dot = read_dot(reader, node, view.dims)
    for weight, hot in ((dot.left, dot.right), (dot.right, dot.left)):
        ids = read_one_hot(reader, hot, experts)
        if ids is not None:
            return _chosen(reader, weight, ids, dot.summed, experts)
    return None


def _chosen(reader: Reader, weight: View, ids: View, choices: Dim, experts: Dim) -> Chosen | None:
    weights = reader.base(weight, rounding=False)
    if weights.axes & set(experts) or not choices:
        return None
    if not set(choices) <= weights.axes & ids.axes:
        return None
    return Chosen(weights, ids, choices)


def _scattered(reader: Reader, node: Node, view: View, experts: Dim) -> Chosen | None:
    """zeros.at[token, ids].set(weights), where the ids of a token differ, or .add(weights)."""
    if reader.scalar(node.operands[0]) != 0:
        return None
    updates = reader.view(node.operands[2])
    forms = written_places(reader, node, updates.dims)
    place = next((i for i, dim in enumerate(view.dims) if dim == experts), None)
    if forms is None or place is None or reader.axes.resolve(updates.dims) != updates.dims:
        return None
    own: dict[Dim, Dim] = {}  # dimensions of the updates -> dimensions of the shares
    for i, (form, dim) in enumerate(zip(forms, view.dims, strict=True)):
        along = plain_axis(form, updates.dims)
        if i != place and (along is None or [d.size for d in along] != [d.size for d in dim]):
            return None
        if i != place and along:
            own[along] = dim
    ids = _only_base(forms[place])
    left = [dim for dim in updates.dims if dim and dim not in own]
    if ids is None or len(left) != 1 or not (node.op != "lax.scatter" or _differ(reader, ids)):
        return None
    weights = View(node.operands[2], _renamed(updates.dims, own))
    return Chosen(weights, View(ids.value, _renamed(ids.dims, own)), left[0])


def _only_base(form: Form) -> View | None:
    alone = len(form.bases) == 1 and form == Form(0, (), (Base(1, form.bases[0].view),))
    return form.bases[0].view if alone else None


def _renamed(dims: Dims, own: dict[Dim, Dim]) -> Dims:
    return tuple(own.get(dim, dim) for dim in dims)


def _differ(reader: Reader, ids: View) -> bool:
    """Whether ids of one token are certainly different: they come from a top_k."""
    node = reader.node(ids)
    return node is not None and node.op == "lax.top_k" and ids.value is node.results[1]
