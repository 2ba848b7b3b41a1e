"""Rules over key and value caches: their memory layout, and how a layer scan passes them on."""

from __future__ import annotations

import numpy as np

from tkcc.ir.attributes import Dense
from tkcc.ir.graph import PACK, STATE, UNPACK, Function, Module, Node, Value
from tkcc.ir.op import build, rebuild
from tkcc.ir.passes.state import known_conversion
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, module_rule, node_rule
from tkcc.ir.types import TensorType

_SWAP = (1, 0, 2)  # of the last three dimensions: [s, h, d] <-> [h, s, d]
_OTHER = {"bshd": "bhsd", "bhsd": "bshd"}
_KEYED = ("attention", "attention_partial")


@module_rule()
def cache_layout(module: Module) -> Module | None:
    """Keep caches [b, h, s, d] instead of [b, s, h, d] (or back), in every function.

    Adds the conversion of the state to the module. Applies if caches are only read and written by
    cache updates and attention.
    """
    names = _cache_names(module)
    if not names:
        return None
    functions = dict(module.functions)
    for key, function in module.steps.items():
        turned = _turned(function, {v for v in function.inputs_of(STATE) if v.name in names})
        if turned is None:
            return None
        functions[key] = turned
    functions[PACK] = _then_swapped(known_conversion(module, PACK), names)
    functions[UNPACK] = _after_swapping(known_conversion(module, UNPACK), names)
    return module.replace(functions=functions)


def _cache_names(module: Module) -> set[str]:
    """States that some function writes by update_cache, in loops too."""
    found = set()
    for function in module.steps.values():
        for value in function.inputs_of(STATE):
            if value.type.rank >= 4 and _is_cache(function, value):
                found.add(value.name)
    return found


def _is_cache(function: Function, value: Value) -> bool:
    for node in function.uses.get(value, ()):
        if node.op in ("update_cache", "update_stacked_cache") and node.operands[0] is value:
            return True
        if node.op == "scan":
            inner = node.regions[0].inputs[node.operands.index(value)]
            if _is_cache(node.regions[0], inner):
                return True
    return False


def _swapped_type(value: Value) -> Value:
    *lead, a, b, d = value.type.shape
    return Value(value.type.with_shape((*lead, b, a, d)), value.name)


class _Turner:
    """Rebuilds a function with some inputs in the other layout."""

    def __init__(self, function: Function, turned_inputs: set[Value]) -> None:
        self.function = function
        self.new: dict[Value, Value] = {}
        self.turned: set[Value] = set()
        self.nodes: list[Node] = []
        for value in function.inputs:
            self.new[value] = _swapped_type(value) if value in turned_inputs else value
        self.turned |= turned_inputs

    def run(self) -> bool:
        """False if a turned value reaches an op that minds the layout."""
        return all(self._node(node) for node in self.function.nodes)

    def finished(self) -> Function:
        inputs = tuple(self.new[value] for value in self.function.inputs)
        outputs = tuple(self.new[value] for value in self.function.outputs)
        return self.function.replace(inputs=inputs, nodes=tuple(self.nodes), outputs=outputs)

    def _node(self, node: Node) -> bool:
        at = [i for i, value in enumerate(node.operands) if value in self.turned]
        operands = [self.new[value] for value in node.operands]
        if not at:
            # Results live on; only operands may have new values.
            self._keep(node, node.replace(operands=tuple(operands)), ())
            return True
        if node.op == "scan":
            return self._scan(node, operands, at)
        if node.op == "take_row" and at == [0]:
            self._keep(node, rebuild(node, operands), (0,))
            return True
        if not self._fits(node, at):
            return False
        layout = _OTHER[node.attribute("layout")]
        changed = rebuild(node, operands, attributes={"layout": layout})
        self._keep(node, changed, () if node.op in _KEYED else (0,))
        return True

    @staticmethod
    def _fits(node: Node, at: list[int]) -> bool:
        if node.op in _KEYED:
            return at == [1, 2]
        return node.op in ("update_cache", "update_stacked_cache") and at == [0]

    def _keep(self, old: Node, new: Node, turned: tuple[int, ...]) -> None:
        self.nodes.append(new)
        self.new.update(zip(old.results, new.results, strict=True))
        self.turned |= {old.results[i] for i in turned}

    def _scan(self, node: Node, operands: list[Value], at: list[int]) -> bool:
        body = node.regions[0]
        inner = _Turner(body, {body.inputs[i] for i in at})
        if not inner.run():
            return False
        consts, carry = node.attribute("consts"), node.attribute("carry")
        out = [i for i, value in enumerate(body.outputs) if value in inner.turned]
        carried = [i - consts for i in at if consts <= i < consts + carry]
        if [i for i in out if i < carry] != carried:
            return False
        self._keep(node, rebuild(node, operands, regions=[inner.finished()]), tuple(out))
        return True


def _turned(function: Function, inputs: set[Value]) -> Function | None:
    turner = _Turner(function, inputs)
    if not turner.run():
        return None
    into = dict(function.aliases)
    for position, value in enumerate(function.outputs):
        is_cache = position in into and function.inputs[into[position]] in inputs
        if is_cache != (value in turner.turned):
            return None
    return turner.finished()


def _then_swapped(pack: Function, names: set[str]) -> Function:
    nodes, outputs = list(pack.nodes), list(pack.outputs)
    for i, name in enumerate(pack.output_names):
        if name in names:
            nodes.append(build("transpose", outputs[i], attributes={"permutation": _SWAP}))
            outputs[i] = nodes[-1].result
    return pack.replace(nodes=tuple(nodes), outputs=tuple(outputs))


def _after_swapping(unpack: Function, names: set[str]) -> Function:
    inputs, nodes = list(unpack.inputs), []
    for i, value in enumerate(unpack.inputs):
        if value.name in names:
            inputs[i] = _swapped_type(value)
            node = build("transpose", inputs[i], attributes={"permutation": _SWAP})
            nodes.append(node.replace(results=(value,)))
    return unpack.replace(inputs=tuple(inputs), nodes=(*nodes, *unpack.nodes))


@node_rule("scan")
def carry_caches(editor: Editor, node: Node) -> Replacement | None:
    """Carry stacked caches through a layer scan whole, and write only the new positions.

    A cache that goes in as slices and comes out as stacked results is copied slice by slice in
    every step; carried, it changes in place.
    """
    pairs = _cache_pairs(node)
    if not pairs or node.attribute("reverse") or not node.attribute("length"):
        return None
    zero = editor.add("constant", attributes={"value": Dense.of(np.int32(0))})[0]
    consts, carry = node.attribute("consts"), node.attribute("carry")
    moved = {i for i, _ in pairs}
    caches = [node.operands[i] for i, _ in pairs]
    rest = [v for i, v in enumerate(node.operands) if i >= consts + carry and i not in moved]
    operands = [*node.operands[: consts + carry], zero, *caches, *rest]
    length = node.attribute("length")
    body = _carrying(node.regions[0], consts + carry, carry, length, pairs)
    attributes = {**dict(node.attributes), "carry": carry + 1 + len(pairs)}
    results = editor.add("scan", *operands, attributes=attributes, regions=[body])
    return _carried_results(node, carry, pairs, results)


def _cache_pairs(node: Node) -> list[tuple[int, int]]:
    """(operand, result) positions of caches that are sliced in, updated, and stacked out."""
    body = node.regions[0]
    consts, carry = node.attribute("consts"), node.attribute("carry")
    pairs = []
    for position, value in enumerate(body.outputs[carry:], carry):
        found = body.definitions.get(value)
        if found is None or found[0].op != "update_cache":
            continue
        cache, *rest = found[0].operands
        if cache not in body.inputs or body.uses[cache] != [found[0]] or cache in rest:
            continue
        place = body.inputs.index(cache)
        once = body.outputs.count(value) == 1 and cache not in body.outputs
        if place >= consts + carry and once:
            pairs.append((place, position))
    return pairs


def _carrying(
    body: Function, first: int, carry: int, length: int, pairs: list[tuple[int, int]]
) -> Function:
    """The body with an index and the whole caches among its carry (after the first `carry`)."""
    index = Value(TensorType("i32", ()), "layer")
    one = build("constant", attributes={"value": Dense.of(np.int32(1))})
    following = build("lax.add", index, one.result)
    stacks = {place: _stacked(body.inputs[place], length) for place, _ in pairs}
    updates = {body.definitions[body.outputs[out]][0]: place for place, out in pairs}
    nodes: list[Node] = []
    changed: dict[int, Value] = {}
    for node in body.nodes:
        if node not in updates:
            nodes.append(node)
            continue
        stack = stacks[updates[node]]
        update, row = _update_whole(node, stack, index)
        nodes += [update, row]
        changed[updates[node]] = update.result
    gone = {out for _, out in pairs}
    keep = [v for i, v in enumerate(body.inputs) if i >= first and i not in stacks]
    left = [v for i, v in enumerate(body.outputs) if i >= carry and i not in gone]
    return Function(
        (*body.inputs[:first], index, *stacks.values(), *keep),
        (*nodes, one, following),
        (*body.outputs[:carry], following.result, *(changed[p] for p in stacks), *left),
    )


def _stacked(value: Value, length: int) -> Value:
    return Value(value.type.with_shape((length, *value.type.shape)), value.name)


def _update_whole(node: Node, stack: Value, index: Value) -> tuple[Node, Node]:
    """An update of the whole stack, and the updated slice under the old update's name."""
    update = build(
        "update_stacked_cache",
        stack,
        *node.operands[1:],
        index,
        attributes=dict(node.attributes),
        source=node.source,
    )
    row = build("take_row", update.result, index, source=node.source)
    return update, row.replace(results=node.results)


def _carried_results(
    node: Node, carry: int, pairs: list[tuple[int, int]], results: tuple[Value, ...]
) -> Replacement:
    gone = {out: i for i, (_, out) in enumerate(pairs)}
    replaced = dict(zip(node.results[:carry], results[:carry], strict=True))
    left = iter(results[carry + 1 + len(pairs) :])
    for position, value in enumerate(node.results[carry:], carry):
        if position in gone:
            replaced[value] = results[carry + 1 + gone[position]]
        else:
            replaced[value] = next(left)
    return replaced
