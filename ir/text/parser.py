"""Text to IR. Every node is built through `tkcc.ir.op.build`, so parsed text is well typed."""

from __future__ import annotations

from typing import Any

from tkcc.ir.errors import IRError, ParseError
from tkcc.ir.graph import ROLES, Function, Module, Node, Source, Value
from tkcc.ir.op import build
from tkcc.ir.text.lexer import Reader, unquote


def parse_module(text: str, name: str = "<text>") -> Module:
    """Read a module. `name` (a file name) is used in errors. Raises ParseError or IRError."""
    reader = Reader(text, name)
    reader.expect("module")
    title = reader.string()
    functions: dict[str, Function] = {}
    while reader.token.kind != "end":
        at = reader.token.at
        reader.expect("func")
        key = reader.word()
        if key in functions:
            raise reader.error(f"function {key!r} is defined twice", at)
        functions[key] = _function(reader)
    if not functions:
        raise reader.error("the module has no function", remedy="write func main { ... }")
    module = Module(functions, title)
    _ = module.parameters, module.state  # raises if functions disagree on a type
    return module


def parse_function(text: str, name: str = "<text>") -> Function:
    """Read one `func name { ... }`. Raises ParseError or IRError."""
    reader = Reader(text, name)
    reader.expect("func")
    reader.word()
    function = _function(reader)
    if reader.token.kind != "end":
        raise reader.error(f"unexpected {reader.token.text!r} after the function")
    return function


class _Scope:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.values: dict[str, Value] = {}

    def define(self, name: str, value: Value, at: int) -> None:
        if name in self.values:
            raise self.reader.error(f"%{name} is defined twice", at)
        self.values[name] = value

    def use(self) -> Value:
        at = self.reader.token.at
        name = self.reader.value_name()
        if name not in self.values:
            raise self.reader.error(f"%{name} is not defined here", at, "define it on a line above")
        return self.values[name]


def _own_name(name: str) -> str:
    """A value's own name from its printed one: numbers are no names, tick suffixes are dropped."""
    if name.startswith('"'):
        return unquote(name.rpartition('"')[0] + '"')
    base = name.partition("'")[0]
    return "" if base.isdigit() else base


def _function(reader: Reader) -> Function:
    reader.enter()
    reader.expect("{")
    scope = _Scope(reader)
    inputs, roles = _inputs(reader, scope)
    nodes = []
    while not reader.peek("return"):
        nodes.append(_node(reader, scope))
    outputs, names, aliases = _return(reader, scope, inputs)
    reader.expect("}")
    reader.leave()
    return Function(tuple(inputs), tuple(nodes), outputs, tuple(roles), aliases, names)


def _inputs(reader: Reader, scope: _Scope) -> tuple[list[Value], list[str]]:
    inputs, roles = [], []
    while reader.token.kind == "name" and reader.token.text in ROLES:
        roles.append(reader.next().text)
        at = reader.token.at
        name = reader.value_name()
        reader.expect(":")
        value = Value(reader.type(), _own_name(name))
        scope.define(name, value, at)
        inputs.append(value)
    return inputs, roles


def _return(
    reader: Reader, scope: _Scope, inputs: list[Value]
) -> tuple[tuple[Value, ...], tuple[str, ...], tuple[tuple[int, int], ...]]:
    at = reader.expect("return").at
    outputs, names, aliases = [], [], []
    while reader.token.kind == "value":
        outputs.append(scope.use())
        if reader.accept("as"):
            names.append(reader.string())
        if reader.accept("->"):
            target = scope.use()
            _check_alias(reader, outputs[-1], target, inputs, at)
            aliases.append((len(outputs) - 1, inputs.index(target)))
        if not reader.accept(","):
            break
    if names and len(names) != len(outputs):
        raise reader.error("name all outputs or none", at)
    return tuple(outputs), tuple(names), tuple(aliases)


def _check_alias(
    reader: Reader, output: Value, target: Value, inputs: list[Value], at: int
) -> None:
    if target not in inputs:
        raise reader.error("an output may only alias an input", at)
    if output.type != target.type:
        raise reader.error(
            f"an output of {output.type} cannot alias an input of {target.type}",
            at,
            "the new value of a state has the type of the old one",
        )


def _node(reader: Reader, scope: _Scope) -> Node:
    start = reader.token.at
    results = _results(reader)
    operator = reader.kind("name").text
    operands, optional = _operands(reader, scope)
    attributes = _attributes(reader)
    source = _source(reader)
    regions = _regions(reader)
    try:
        node = build(
            operator,
            *operands,
            attributes=attributes,
            optional=optional,
            regions=regions,
            source=source,
            results=[value for _, value, _ in results],
        )
    except IRError as error:
        located = reader.error(error.what, start, error.remedy)
        raise ParseError(
            located.what, where=f"{located.where}\n{error.where}", remedy=error.remedy
        ) from None
    for name, value, at in results:
        scope.define(name, value, at)
    return node


def _results(reader: Reader) -> list[tuple[str, Value, int]]:
    results: list[tuple[str, Value, int]] = []
    while reader.token.kind == "value":
        at = reader.token.at
        name = reader.value_name()
        reader.expect(":")
        results.append((name, Value(reader.type(), _own_name(name)), at))
        if not reader.accept(","):
            break
    if results:
        reader.expect("=")
    return results


def _operands(reader: Reader, scope: _Scope) -> tuple[list[Value], dict[str, Value]]:
    reader.expect("(")
    operands: list[Value] = []
    optional: dict[str, Value] = {}
    while not reader.accept(")"):
        if reader.token.kind == "name":
            key = reader.next().text
            reader.expect("=")
            optional[key] = scope.use()
        else:
            operands.append(scope.use())
        if not reader.peek(")"):
            reader.expect(",")
    return operands, optional


def _attributes(reader: Reader) -> dict[str, Any]:
    # A brace also opens regions; attributes start with `name =`.
    if not (reader.peek("{") and reader.peek("=", 2)):
        return {}
    reader.expect("{")
    attributes: dict[str, Any] = {}
    while not reader.accept("}"):
        at = reader.token.at
        key = reader.kind("name").text
        if key in attributes:
            raise reader.error(f"attribute {key!r} is given twice", at)
        reader.expect("=")
        attributes[key] = reader.attribute()
        if not reader.peek("}"):
            reader.expect(",")
    return attributes


def _source(reader: Reader) -> Source:
    at = reader.token.at
    if not reader.accept("loc"):
        return Source()
    reader.expect("(")
    fields = reader.items(")")
    if len(fields) < 2 or not all(isinstance(field, str) for field in fields):
        raise reader.error("loc takes a path, a file and rewrite names, all strings", at)
    return Source(fields[0], fields[1], tuple(fields[2:]))


def _regions(reader: Reader) -> list[Function]:
    if not (reader.peek("{") and reader.peek("region", 1)):
        return []
    reader.expect("{")
    regions: list[Function] = []
    while not reader.accept("}"):
        at = reader.expect("region").at
        if reader.integer() != len(regions):
            raise reader.error(f"regions are numbered in order; expected {len(regions)}", at)
        regions.append(_function(reader))
    return regions
