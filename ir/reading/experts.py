"""Gated MLPs of experts: down(act(gate(x)) * up(x)) for every expert."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tkcc.ir.graph import Value
from tkcc.ir.reading.axes import Dim
from tkcc.ir.reading.dots import Dot, plain_precision, read_dot
from tkcc.ir.reading.views import Reader, View

_DTYPES = ("bf16", "f16", "f32")  # the op adds up experts in float32


@dataclasses.dataclass(frozen=True)
class Experts:
    """x over tokens and channels; weights over experts, channels, hidden and output channels."""

    x: View
    gate: View
    up: View
    down: View
    experts: Dim
    channels: Dim
    hidden: Dim
    outputs: Dim
    activation: str


def read_experts(
    reader: Reader, is_parameter: Callable[[Value], bool], view: View, experts: Dim
) -> Experts | None:
    """The value, over tokens, experts and output channels, as what gated MLPs give.

    Every step must be in x's dtype, as in the named op. Without `experts` it is one MLP.
    """
    down = _weighed(reader, is_parameter, view)
    if down is None:
        return None
    (hidden, w_down), summed = down
    hidden = reader.base(hidden)
    unit = reader.node(hidden)
    if unit is None or unit.op != "swiglu" or hidden.dtype not in _DTYPES:
        return None
    sides = [_weighed(reader, is_parameter, v) for v in reader.operands(unit, hidden.dims)]
    (one, two) = sides
    if one is None or two is None:
        return None
    (x, gate), channels = one
    (again, up), others = two
    x, again = reader.base(x), reader.base(again)
    up, again = _renamed(up, others, channels), _renamed(again, others, channels)
    outputs = tuple(d for dim in w_down.dims for d in dim if d not in (*experts, *summed))
    found = Experts(
        x, gate, up, w_down, experts, channels, summed, outputs, unit.attribute("activation")
    )
    same = x == again and x.dtype == hidden.dtype == view.dtype
    return found if same and _fits(found) else None


def _weighed(
    reader: Reader, is_parameter: Callable[[Value], bool], view: View
) -> tuple[tuple[View, View], Dim] | None:
    """((activations, weight), summed axes) of a product with a weight in one dtype."""
    base = reader.base(view)
    node = reader.node(base)
    if node is None or node.op != "lax.dot_general" or not plain_precision(node):
        return None
    dtypes = {value.type.dtype for value in (*node.operands, *node.results)}
    if len(dtypes) != 1:
        return None
    dot: Dot = read_dot(reader, node, base.dims)
    if is_parameter(dot.right.value) and not is_parameter(dot.left.value):
        return (dot.left, reader.base(dot.right)), dot.summed
    if is_parameter(dot.left.value) and not is_parameter(dot.right.value):
        return (dot.right, reader.base(dot.left)), dot.summed
    return None


def _renamed(view: View, old: Dim, new: Dim) -> View:
    if len(old) != 1 or len(new) != 1:
        return view
    return View(
        view.value, tuple(tuple(new[0] if d == old[0] else d for d in dim) for dim in view.dims)
    )


def _fits(found: Experts) -> bool:
    """Whether weights run over experts and their two channels, and x over no expert."""
    if len(found.experts) > 1:
        return False
    experts, channels, hidden = set(found.experts), set(found.channels), set(found.hidden)
    single = all(len(dim) == 1 for dim in (found.channels, found.hidden, found.outputs))
    return (
        single
        and found.gate.axes == found.up.axes == experts | channels | hidden
        and found.down.axes == experts | hidden | set(found.outputs)
        and not found.x.axes & (experts | hidden)
        and channels <= found.x.axes
    )
