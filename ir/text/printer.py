"""IR to text. One op per line, types always printed, order as in the function."""

from __future__ import annotations

import re

from tkcc.ir.attributes import format_attribute, quote
from tkcc.ir.graph import Function, Module, Node, Source, Value

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*\Z")
# One `name` token of the lexer, which reads inf and nan as numbers.
_PLAIN_WORD = re.compile(r"(?!(?:inf|nan)\b)[A-Za-z_][A-Za-z0-9_.]*(?:-[A-Za-z0-9_.]+)*\Z")


def print_module(module: Module, *, sources: bool = True) -> str:
    """The module's text; with `sources` every node's provenance is kept."""
    parts = [f"module {quote(module.name)}"]
    for name, function in module.functions.items():
        parts.append(print_function(function, name, sources=sources))
    return "\n\n".join(parts) + "\n"


def print_function(function: Function, name: str = "main", *, sources: bool = True) -> str:
    """The function's text."""
    return "\n".join(_function_lines(function, f"func {_word(name)}", "", sources))


def name_values(function: Function) -> dict[Value, str]:
    """The printed name of every value, quoted where needed: its own, else a number in order."""
    names: dict[Value, str] = {}
    taken: dict[str, int] = {}
    number = 0
    for value in (*function.inputs, *(v for node in function.nodes for v in node.results)):
        if value.name:
            names[value] = _unique(printed_name(value.name), taken)
        else:
            names[value] = str(number)
            number += 1
    return names


def printed_name(name: str) -> str:
    """The name, quoted if it is not a plain one (a number would stand for a value without name)."""
    return name if _PLAIN_NAME.match(name) else quote(name)


def _unique(name: str, taken: dict[str, int]) -> str:
    """`name`, or `name'2` and so on if it is taken (the suffix is not part of the name)."""
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}'{taken[name]}"


def show(name: str) -> str:
    """`%name` for a printed name."""
    return f"%{name}"


def _word(name: str) -> str:
    return name if _PLAIN_WORD.match(name) else quote(name)


def _function_lines(function: Function, head: str, indent: str, sources: bool) -> list[str]:
    names = name_values(function)
    inner = indent + "  "
    lines = [f"{indent}{head} {{"]
    for role, value in zip(function.roles, function.inputs, strict=True):
        lines.append(f"{inner}{role} {show(names[value])}: {value.type}")
    for node in function.nodes:
        lines += _node_lines(node, names, inner, sources)
    lines.append(inner + _return_line(function, names))
    lines.append(indent + "}")
    return lines


def _return_line(function: Function, names: dict[Value, str]) -> str:
    into = dict(function.aliases)
    parts = []
    for position, value in enumerate(function.outputs):
        text = show(names[value])
        if function.output_names:
            text += f" as {quote(function.output_names[position])}"
        if position in into:
            text += f" -> {show(names[function.inputs[into[position]]])}"
        parts.append(text)
    return "return " + ", ".join(parts) if parts else "return"


def _node_lines(node: Node, names: dict[Value, str], indent: str, sources: bool) -> list[str]:
    line = indent + node_text(node, names)
    if sources and node.source != Source():
        line += " " + _source_text(node.source)
    if not node.regions:
        return [line]
    lines = [line + " {"]
    for number, region in enumerate(node.regions):
        lines += _function_lines(region, f"region {number}", indent + "  ", sources)
    lines.append(indent + "}")
    return lines


def node_text(node: Node, names: dict[Value, str]) -> str:
    """One node on one line, without its regions and source."""
    results = ", ".join(f"{show(names[value])}: {value.type}" for value in node.results)
    operands = [show(names[value]) for value in node.positional]
    split = len(node.operands) - len(node.keys)
    for key, value in zip(node.keys, node.operands[split:], strict=True):
        operands.append(f"{key}={show(names[value])}")
    text = f"{results} = " if results else ""
    text += f"{node.op}({', '.join(operands)})"
    if node.attributes:
        inner = ", ".join(f"{key}={format_attribute(value)}" for key, value in node.attributes)
        text += f" {{{inner}}}"
    return text


def _source_text(source: Source) -> str:
    fields = [quote(source.path), quote(source.file), *(quote(name) for name in source.rewrites)]
    return f"loc({', '.join(fields)})"
