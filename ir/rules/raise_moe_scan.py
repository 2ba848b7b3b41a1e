"""Recognise experts that a loop applies one after the other."""

from __future__ import annotations

import dataclasses

from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.reading.axes import Axis, Dim
from tkcc.ir.reading.experts import Experts, read_experts
from tkcc.ir.reading.shares import read_shares
from tkcc.ir.reading.views import Reader, View
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, node_rule
from tkcc.ir.rules.raise_moe import build_experts, rounded_result


@node_rule("scan", group="raise")
def raise_moe_experts_scan(editor: Editor, node: Node) -> Replacement | None:
    """A scan over stacked experts that adds share * down(act(gate(x)) * up(x)) to zero, with the
    shares [experts, tokens] stacked too -> moe_experts."""
    outer = Reader(editor.node_of)
    loop = _Loop(editor, outer, node)
    if not loop.sums_from_zero() or node.attribute("length") < 2:
        return None
    dims = outer.view(node.results[0]).dims
    for output, share in loop.products(dims):
        found = read_experts(loop.reader, loop.is_parameter, output, ())
        stacked = loop.lifted(loop.reader.base(share, rounding=True)) if found else None
        if found is None or stacked is None:
            continue
        chosen = read_shares(outer, stacked, loop.experts)
        experts = loop.lifted_experts(found)
        target = rounded_result(editor, node.results[0], found.x.dtype)
        if chosen is not None and experts is not None and target is not None:
            value = build_experts(editor, outer, experts, chosen, dims)
            return None if value is None else {target: value}
    return None


class _Loop:
    """A scan's body, read in the axes of its surroundings; each step is one expert."""

    def __init__(self, editor: Editor, outer: Reader, node: Node) -> None:
        self.editor, self.outer, self.node = editor, outer, node
        self.body: Function = node.regions[0]
        definitions = self.body.definitions
        self.reader = Reader(lambda value: definitions[value][0] if value in definitions else None)
        self.reader.axes = outer.axes
        self.experts: Dim = (Axis(node.attribute("length")),)
        self.place = {value: i for i, value in enumerate(self.body.inputs)}

    def sums_from_zero(self) -> bool:
        one = self.node.attribute("carry") == 1 == len(self.node.results)
        start = self.node.operands[self.node.attribute("consts")] if one else None
        return start is not None and self.outer.scalar(start) == 0

    def products(self, dims: tuple[Dim, ...]) -> list[tuple[View, View]]:
        """(output, share) of what a step adds to the carry."""
        carry = self.body.inputs[self.node.attribute("consts")]
        view = self.reader.base(View(self.body.outputs[0], dims), rounding=True)
        total = self.reader.node(view)
        if total is None or total.op != "lax.add":
            return []
        sides = self.reader.operands(total, view.dims)
        added = [b for a, b in (sides, sides[::-1]) if self._is(a, carry)]
        product = self.reader.base(added[0], rounding=True) if added else None
        times = self.reader.node(product) if product is not None else None
        if product is None or times is None or times.op != "lax.mul":
            return []
        left, right = self.reader.operands(times, product.dims)
        return [
            (self.reader.base(one, widening=True), two)
            for one, two in ((left, right), (right, left))
        ]

    def _is(self, view: View, value: Value) -> bool:
        return self.reader.base(view, rounding=True).value is value

    def is_parameter(self, value: Value) -> bool:
        base = self.reader.base(self.reader.view(value)).value
        place = self.place.get(base)
        return place is not None and self.editor.is_parameter(self.node.operands[place])

    def lifted(self, view: View) -> View | None:
        """A stacked input of the body as the whole stack; None for other values."""
        place = self.place.get(view.value)
        first = self.node.attribute("consts") + self.node.attribute("carry")
        if place is None or place < first:
            return None
        return View(self.node.operands[place], (self.experts, *view.dims))

    def lifted_experts(self, found: Experts) -> Experts | None:
        gate, up, down = (self.lifted(view) for view in (found.gate, found.up, found.down))
        place = self.place.get(found.x.value)
        constant = place is not None and place < self.node.attribute("consts")
        if gate is None or up is None or down is None or place is None or not constant:
            return None
        return dataclasses.replace(
            found,
            x=View(self.node.operands[place], found.x.dims),
            gate=gate,
            up=up,
            down=down,
            experts=self.experts,
        )
