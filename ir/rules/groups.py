"""Group formation: a group is what a backend emits as one kernel.

Groups are formed last: rules do not look inside them. A group's label is its kind and a hash of
its body, so equal layers share a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from tkcc.ir.graph import Function, Module, Node, Value, fresh_like
from tkcc.ir.hashing import function_hash
from tkcc.ir.op import build
from tkcc.ir.rewrite.editor import Editor
from tkcc.ir.rewrite.rule import Replacement, module_rule, node_rule

_ELEMENTWISE_LAX = (
    "add sub mul div max min neg exp exp2 log log1p tanh logistic rsqrt sqrt square integer_pow "
    "pow select_n convert_element_type abs sign floor ceil round erf sin cos and or not eq ne lt "
    "le gt ge clamp"
)
ELEMENTWISE = (
    *(f"lax.{name}" for name in _ELEMENTWISE_LAX.split()),
    "activation",
    "swiglu",
    "cast",
)
MAX_CHAIN = 64


def region_of(nodes: Sequence[Node], outputs: Sequence[Value]) -> tuple[Function, list[Value]]:
    """The nodes as a closed function, and the outer values for its inputs, in order of use."""
    made = {value for node in nodes for value in node.results}
    outer = list(dict.fromkeys(v for node in nodes for v in node.operands if v not in made))
    inner = dict(zip(outer, fresh_like(outer), strict=True))
    body = []
    for node in nodes:
        results = fresh_like(node.results)
        body.append(node.replace(operands=tuple(inner[v] for v in node.operands), results=results))
        inner.update(zip(node.results, results, strict=True))
    region = Function(tuple(inner[v] for v in outer), tuple(body), tuple(inner[v] for v in outputs))
    return region, outer


def group_node(nodes: Sequence[Node], outputs: Sequence[Value], kind: str) -> Node:
    """A group of the nodes (in program order) with these results."""
    region, outer = region_of(nodes, outputs)
    label = f"{kind}.{function_hash(region)[:8]}"
    source = nodes[-1].source
    attributes = {"label": label, "kind": kind}
    return build("group", *outer, attributes=attributes, regions=[region], source=source)


def form_group(editor: Editor, nodes: Sequence[Node], kind: str) -> Replacement | None:
    """Put a group in the place of the nodes; None if something between them would make a cycle."""
    nodes = _in_order(editor, {node.results[0]: node for node in nodes})
    inside = {node.results[0] for node in nodes}
    made = [value for node in nodes for value in node.results]
    outputs = [v for v in made if _read_outside(editor, v, inside)]
    region, outer = region_of(nodes, outputs)
    if not outputs or editor.depends_on(outer, made):
        return None
    label = f"{kind}.{function_hash(region)[:8]}"
    results = editor.add(
        "group", *outer, attributes={"label": label, "kind": kind}, regions=[region]
    )
    return dict(zip(outputs, results, strict=True))


def _in_order(editor: Editor, members: dict[Value, Node]) -> list[Node]:
    """Members so that each stands after the members it reads, and else as they are."""
    order: dict[Value, Node] = {}
    stack = [(node, False) for node in reversed(members.values())]
    while stack:
        node, ready = stack.pop()
        if node.results[0] in order:
            continue
        if ready:
            order[node.results[0]] = node
            continue
        stack.append((node, True))
        for value in reversed(node.operands):
            inner = editor.node_of(value)
            if inner is not None and inner.results[0] in members:
                stack.append((inner, False))
    return list(order.values())


def _read_outside(editor: Editor, value: Value, inside: set[Value]) -> bool:
    readers = editor.users(value)
    return editor.use_count(value) > len(readers) or any(
        node.results[0] not in inside for node in readers
    )


@node_rule(*ELEMENTWISE)
def group_elementwise(editor: Editor, node: Node) -> Replacement | None:
    """A chain of elementwise ops over one shape becomes a group, from its last op up."""
    if _feeds_chain(editor, node) or editor.is_parameter(node.results[0]):
        return None
    shape = node.results[0].type.shape
    members: dict[Value, Node] = {}
    stack = [node]
    while stack and len(members) < MAX_CHAIN:
        member = stack.pop()
        if member.results[0] in members:
            continue
        members[member.results[0]] = member
        stack += [n for v in member.operands if (n := _link(editor, v, shape, members))]
    if len(members) < 2:
        return None
    return form_group(editor, list(members.values()), "elementwise")


def _feeds_chain(editor: Editor, node: Node) -> bool:
    """Whether the node's only reader is elementwise over the same shape: then it is not last."""
    readers = editor.users(node.results[0])
    if editor.use_count(node.results[0]) != 1 or len(readers) != 1:
        return False
    reader = readers[0]
    return reader.op in ELEMENTWISE and reader.results[0].type.shape == node.results[0].type.shape


def _link(
    editor: Editor, value: Value, shape: tuple[int, ...], members: dict[Value, Node]
) -> Node | None:
    """The elementwise node behind a value that only the chain reads."""
    node = editor.node_of(value)
    if node is None or node.op not in ELEMENTWISE or value.type.shape != shape:
        return None
    if editor.use_count(value) != 1 or editor.is_parameter(value):
        return None
    return None if node.results[0] in members else node


@node_rule("linear")
def group_norm_linear(editor: Editor, node: Node) -> Replacement | None:
    """rms_norm and the one linear that reads it become a group."""
    norm = editor.node_of(node.operands[0])
    if norm is None or norm.op not in ("rms_norm", "rms_normalize", "layer_norm"):
        return None
    if editor.use_count(norm.results[0]) != 1:
        return None
    return form_group(editor, [norm, node], "norm_linear")


@node_rule("linear")
def group_mlp(editor: Editor, node: Node) -> Replacement | None:
    """linear(gate), linear(up), swiglu, linear(down) become a group; gate and up may be merged."""
    unit = _only_read_by(editor, node.operands[0], "swiglu")
    if unit is None:
        return None
    sources = [editor.node_of(value) for value in unit.operands]
    first, second = sources
    if first is None or second is None:
        return None
    if first is second and first.op == "split":
        merged = _only_read_by(editor, first.operands[0], "linear")
        return form_group(editor, [merged, first, unit, node], "mlp") if merged else None
    alone = all(editor.use_count(v) == 1 for v in unit.operands)
    if first.op == second.op == "linear" and alone:
        return form_group(editor, [first, second, unit, node], "mlp")
    return None


@node_rule("swiglu", "activation")
def group_linear_activation(editor: Editor, node: Node) -> Replacement | None:
    """A linear (or gate and up) and the activation that alone reads it become a group."""
    found: dict[Value, Node] = {}
    for value in node.operands:
        maker = editor.node_of(value)
        if maker is None or maker.op not in ("linear", "split") or editor.use_count(value) != 1:
            return None
        if maker.op == "split":
            linear = _only_read_by(editor, maker.operands[0], "linear")
            if linear is None or len(maker.results) != len(node.operands):
                return None
            found[linear.results[0]] = linear
        found[maker.results[0]] = maker
    return form_group(editor, [*found.values(), node], "linear_activation")


@node_rule("attention")
def group_attention(editor: Editor, node: Node) -> Replacement | None:
    """One attention becomes a group of its own, so that a schedule can name its kernel."""
    return form_group(editor, [node], "attention")


def _only_read_by(editor: Editor, value: Value, op: str) -> Node | None:
    """The node with that op behind the value, if the value has one reader."""
    node = editor.node_of(value)
    if node is None or node.op != op or editor.use_count(value) != 1:
        return None
    return node


def _one_group(function: Function, kind: str) -> Function:
    """The function with all of its nodes in one group; outputs that are inputs stay as they are.

    A function whose outputs are all inputs stays as it is.
    """
    made = [v for v in dict.fromkeys(function.outputs) if v in function.definitions]
    if not made:
        return function
    group = group_node(function.nodes, made, kind)
    place = dict(zip(made, group.results, strict=True))
    outputs = tuple(place.get(value, value) for value in function.outputs)
    return function.replace(nodes=(group,), outputs=outputs)


@node_rule("scan")
def group_layer(editor: Editor, node: Node) -> Replacement | None:
    """The whole body of a layer scan becomes one group."""
    body = node.regions[0]
    computing = [inner for inner in body.nodes if inner.op != "constant"]
    if len(computing) < 2 or any(inner.op == "group" for inner in body.nodes):
        return None
    region = _one_group(body, "layer")
    if region is body:
        return None
    results = editor.add("scan", *node.operands, attributes=dict(node.attributes), regions=[region])
    return dict(zip(node.results, results, strict=True))


@module_rule()
def group_step(module: Module) -> Module | None:
    """Every step function becomes one group: a resident kernel for the whole step."""
    functions = dict(module.functions)
    for name, function in module.steps.items():
        if len(function.nodes) > 1:
            functions[name] = _one_group(function, "step")
    if all(functions[name] is module.functions[name] for name in functions):
        return None
    return module.replace(functions=functions)
