"""Structural hashes: equal for equal programs, in every process and on every machine.

Names, provenance, dead nodes and the order of independent nodes do not count; types, attributes,
roles, aliases and regions do. Parameters and state count by position.
"""

from __future__ import annotations

import hashlib

from tkcc.ir.attributes import format_attribute
from tkcc.ir.graph import Function, Module, Node, Value


def function_hash(function: Function) -> str:
    """SHA-256 (hex) of the function's structure."""
    return hashlib.sha256("\n".join(_canonical(function)).encode()).hexdigest()


def module_hash(module: Module) -> str:
    """SHA-256 (hex) over the module's functions, by name."""
    parts = [f"{name} {function_hash(module.functions[name])}" for name in sorted(module.functions)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def node_key(node: Node) -> tuple[object, ...]:
    """What makes two nodes compute the same: op, operands (as objects), attributes, regions."""
    regions = tuple(function_hash(region) for region in node.regions)
    attributes = tuple((key, format_attribute(value)) for key, value in node.attributes)
    return (node.op, node.operands, node.keys, attributes, regions)


def _canonical(function: Function) -> list[str]:
    number: dict[Value, int] = {value: i for i, value in enumerate(function.inputs)}
    lines = [
        f"{role} {value.type}" for role, value in zip(function.roles, function.inputs, strict=True)
    ]
    for node in _reachable(function):
        for value in node.results:
            number[value] = len(number)
        lines.append(_line(node, number))
    lines.append("return " + " ".join(str(number[value]) for value in function.outputs))
    lines.append(f"aliases {sorted(function.aliases)}")
    return lines


def _line(node: Node, number: dict[Value, int]) -> str:
    operands = " ".join(str(number[value]) for value in node.operands)
    attributes = " ".join(f"{key}={format_attribute(value)}" for key, value in node.attributes)
    types = " ".join(str(value.type) for value in node.results)
    regions = " ".join(function_hash(region) for region in node.regions)
    return f"{node.op} ({operands}) [{' '.join(node.keys)}] {{{attributes}}} {types} <{regions}>"


def _reachable(function: Function) -> list[Node]:
    """Nodes the outputs need, in depth-first order from the outputs (independent of list order)."""
    definitions = function.definitions
    order: list[Node] = []
    done: set[Node] = set()
    for output in function.outputs:
        stack: list[tuple[Value, bool]] = [(output, False)]
        while stack:
            value, ready = stack.pop()
            found = definitions.get(value)
            if found is None or found[0] in done:
                continue
            node = found[0]
            if ready:
                done.add(node)
                order.append(node)
                continue
            stack.append((value, True))
            stack.extend((operand, False) for operand in reversed(node.operands))
    return order
