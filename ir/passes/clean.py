"""Dead code, common subexpressions, constant folding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tkcc.ir.attributes import MAX_DENSE_ELEMENTS, Dense
from tkcc.ir.evaluate import evaluate_node
from tkcc.ir.graph import Function, Module, Node, Value
from tkcc.ir.hashing import node_key
from tkcc.ir.op import allow_64_bits, build, lookup

FunctionPass = Callable[[Function], Function]


def each_function(module: Module, change: FunctionPass) -> Module:
    """Apply a function pass to every function of the module."""
    return module.replace(functions={name: change(f) for name, f in module.functions.items()})


def in_regions(function: Function, change: FunctionPass) -> Function:
    """Apply a function pass to every region, innermost first; the function itself is not changed.

    The pass must keep a region's inputs and output types.
    """
    nodes = []
    for node in function.nodes:
        if node.regions:
            regions = tuple(change(in_regions(region, change)) for region in node.regions)
            changed = any(a is not b for a, b in zip(regions, node.regions, strict=True))
            node = node.replace(regions=regions) if changed else node
        nodes.append(node)
    if all(a is b for a, b in zip(nodes, function.nodes, strict=True)):
        return function
    return function.replace(nodes=tuple(nodes))


def remove_dead(function: Function) -> Function:
    """Drop nodes that no output needs, and results of loops that nobody reads."""
    live = set(function.outputs)
    kept: list[Node] = []
    for node in reversed(function.nodes):
        if not any(value in live for value in node.results):
            continue
        if node.op == "scan":
            node = _trim_scan(node, live)
        node = node.replace(regions=tuple(map(remove_dead, node.regions))) if node.regions else node
        kept.append(node)
        live.update(node.operands)
    return function.replace(nodes=tuple(reversed(kept)))


def _trim_scan(node: Node, live: set[Value]) -> Node:
    """Drop a scan's unread stacked results, and the operands that its body does not read."""
    consts, carry = node.attribute("consts"), node.attribute("carry")
    body = node.regions[0]
    results = [i for i, v in enumerate(node.results) if i < carry or v in live]
    outputs = tuple(body.outputs[i] for i in results)
    body = remove_dead(body.replace(outputs=outputs, output_names=()))
    used = {value for inner in body.nodes for value in inner.operands} | set(outputs)
    last = consts + carry
    keep = [i for i, v in enumerate(body.inputs) if consts <= i < last or v in used]
    if len(results) == len(node.results) and len(keep) == len(node.operands):
        return node
    body = body.replace(
        inputs=tuple(body.inputs[i] for i in keep), roles=tuple(body.roles[i] for i in keep)
    )
    made = build(
        "scan",
        *(node.operands[i] for i in keep),
        attributes={**dict(node.attributes), "consts": sum(i < consts for i in keep)},
        regions=[body],
        source=node.source,
    )
    return made.replace(results=tuple(node.results[i] for i in results))


def share_common(function: Function) -> Function:
    """Merge nodes that compute the same from the same operands (all ops are pure)."""
    function = in_regions(function, share_common)
    replaced: dict[Value, Value] = {}
    seen: dict[Any, Node] = {}
    nodes = []
    for node in function.nodes:
        node = with_operands(node, replaced)
        key = node_key(node)
        known = seen.get(key)
        if known is not None:
            replaced.update(zip(node.results, known.results, strict=True))
            continue
        seen[key] = node
        nodes.append(node)
    outputs = tuple(replaced.get(value, value) for value in function.outputs)
    return function.replace(nodes=tuple(nodes), outputs=outputs)


def with_operands(node: Node, replaced: dict[Value, Value]) -> Node:
    """The node reading replaced values instead (types are equal, so no check is needed)."""
    if not any(value in replaced for value in node.operands):
        return node
    return node.replace(operands=tuple(replaced.get(value, value) for value in node.operands))


def fold_constants(function: Function) -> Function:
    """Evaluate nodes whose operands are constants, where every result stays a small constant.

    Runs on the CPU in JAX, so the result is what the program would have computed there.
    """
    function = in_regions(function, fold_constants)
    known: dict[Value, np.ndarray[Any, Any]] = {}
    nodes = []
    for node in function.nodes:
        if node.op == "constant":
            known[node.result] = node.attribute("value").array()
        elif _foldable(node, known):
            for value, array in zip(node.results, _evaluated(node, known), strict=True):
                known[value] = array
                made = build("constant", attributes={"value": Dense.of(array)}, source=node.source)
                nodes.append(made.replace(results=(value,)))
            continue
        nodes.append(node)
    return remove_dead(function.replace(nodes=tuple(nodes)))


def _foldable(node: Node, known: dict[Value, Any]) -> bool:
    small = all(
        value.type.size <= MAX_DENSE_ELEMENTS and not value.type.dtype.startswith("key<")
        for value in node.results
    )
    pure = not node.regions and not node.op.startswith("lax.random") and _evaluates(node)
    return small and pure and all(value in known for value in node.operands)


def _evaluates(node: Node) -> bool:
    """Collectives need a mesh; platform questions and hardware random numbers need the target."""
    from tkcc.ir.ops.collectives import Collective

    return not isinstance(lookup(node.op), Collective) and node.op not in _NEEDS_TARGET


_NEEDS_TARGET = {
    "lax.axis_index",
    "lax.platform_index",
    "lax.rng_bit_generator",
    "lax.rng_uniform",
}


def _evaluated(node: Node, known: dict[Value, Any]) -> list[np.ndarray[Any, Any]]:
    types = [value.type for value in (*node.operands, *node.results)]
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu), allow_64_bits(types, node.attributes):
        operands = [jax.numpy.asarray(known[value]) for value in node.operands]
        return [np.asarray(result) for result in evaluate_node(node, operands)]


def clean(function: Function) -> Function:
    """Fold, share, drop: the usual order."""
    return remove_dead(share_common(fold_constants(function)))


def clean_module(module: Module) -> Module:
    return each_function(module, clean)


__all__ = [
    "clean",
    "clean_module",
    "each_function",
    "fold_constants",
    "in_regions",
    "remove_dead",
    "share_common",
    "with_operands",
]
