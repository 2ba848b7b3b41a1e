"""Paged caches: every stacked cache of a module becomes a pool of pages that all rows share.

A model is written over plain caches [layers, batch, positions, heads, channels]. For serving, the
pass gives each function a new argument `tables` i32[batch, columns] and turns

    update_stacked_cache(cache, new, start, index)
    take_row(cache, index)

into

    update_pages(pages, new, start, index, tables)
    gather_pages(pages, index, tables)

so that any model that reaches that form (rule `carry_caches`) is served without other code, and
functions of different batch sizes share one state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tkcc.ir.errors import IRError
from tkcc.ir.graph import ARGUMENT, STATE, Function, Module, Node, Value
from tkcc.ir.op import build
from tkcc.ir.types import TensorType

TABLES = "tables"


@dataclasses.dataclass(frozen=True)
class PageShape:
    """`pages` pages of `size` tokens; page 0 holds nothing of use (see `update_pages`)."""

    pages: int
    size: int

    def __post_init__(self) -> None:
        if self.pages < 2 or self.size < 1:
            raise IRError(
                f"{self.pages} pages of {self.size} tokens",
                remedy="give at least 2 pages (page 0 is not used) of at least 1 token",
            )


def page_caches(module: Module, shape: PageShape) -> Module:
    """The module with all its state kept in pages.

    Raises IRError if a state is no stacked cache, if its positions are no multiple of the page
    size, or if a function uses it in another way than by the two ops above.
    """
    functions = {key: _function(f, shape) for key, f in module.functions.items()}
    return module.replace(functions=functions)


def _function(function: Function, shape: PageShape) -> Function:
    caches = function.inputs_of(STATE)
    if not caches:
        return function
    columns = {_columns(value, shape) for value in caches}
    batches = {value.type.shape[1] for value in caches}
    if len(columns) != 1 or len(batches) != 1:
        raise IRError(
            f"the caches have {sorted(columns)} pages a row and {sorted(batches)} rows",
            remedy="page caches of one shape",
        )
    tables = Value(TensorType("i32", (batches.pop(), columns.pop())), TABLES)
    pager = _Pager(tables, {value: _pool(value, shape) for value in caches})
    body = pager.body(function)
    inputs, roles = (*body.inputs, tables), (*function.roles, ARGUMENT)
    return body.replace(inputs=inputs, roles=roles)


def _columns(value: Value, shape: PageShape) -> int:
    if value.type.rank != 5 or value.type.shape[2] % shape.size:
        raise IRError(
            f"state {value.name} is {value.type}: it does not divide into pages of {shape.size}",
            remedy="page caches [layers, batch, positions, heads, channels], whose positions are a "
            "multiple of the page size",
        )
    return value.type.shape[2] // shape.size


def _pool(value: Value, shape: PageShape) -> Value:
    layers, _, _, *rest = value.type.shape
    return Value(value.type.with_shape((layers, shape.pages, shape.size, *rest)), value.name)


class _Pager:
    """Rebuilds one function or loop body; `pools` maps its caches to pools."""

    def __init__(self, tables: Value, pools: Mapping[Value, Value]) -> None:
        self.tables = tables
        self.new: dict[Value, Value] = dict(pools)
        self.pools: set[Value] = set(pools.values())

    def body(self, function: Function) -> Function:
        nodes = tuple(self._node(node) for node in function.nodes)
        return function.replace(
            inputs=tuple(self._now(v) for v in function.inputs),
            nodes=nodes,
            outputs=tuple(self._now(v) for v in function.outputs),
        )

    def _now(self, value: Value) -> Value:
        return self.new.get(value, value)

    def _node(self, node: Node) -> Node:
        if not any(self._now(value) in self.pools for value in node.operands):
            return node
        if node.op == "update_stacked_cache" and self._is_cache(node):
            return self._keep(node, self._paged("update_pages", node), [True])
        if node.op == "take_row" and self._is_cache(node):
            made = self._paged("gather_pages", node)
            return made.replace(results=node.results)
        if node.op == "scan":
            return self._scan(node)
        raise IRError(
            f"{node.op} uses a cache: it cannot be kept in pages",
            where=str(node.source),
            remedy="apply the rule carry_caches first; update caches by update_cache alone",
        )

    def _is_cache(self, node: Node) -> bool:
        """The cache is the first operand and nothing else, in the plain layout."""
        first, *others = (self._now(value) in self.pools for value in node.operands)
        layout = dict(node.attributes).get("layout", "bshd")
        return first and not any(others) and layout == "bshd"

    def _paged(self, op: str, node: Node) -> Node:
        return build(op, *map(self._now, node.operands), self.tables, source=node.source)

    def _keep(self, node: Node, made: Node, pooled: list[bool]) -> Node:
        """`made` stands for `node`; the results that are `pooled` are values of another type."""
        results = []
        for old, value, is_pool in zip(node.results, made.results, pooled, strict=True):
            results.append(value if is_pool else old)
            if is_pool:
                self.new[old] = value
                self.pools.add(value)
        return made.replace(results=tuple(results))

    def _scan(self, node: Node) -> Node:
        consts, carry = node.attribute("consts"), node.attribute("carry")
        region = node.regions[0]
        pooled = [self._now(value) in self.pools for value in node.operands]
        if any(pooled[consts + carry :]):
            raise IRError(
                "a loop takes a cache apart by layers: it cannot be kept in pages",
                where=str(node.source),
                remedy="apply the rule carry_caches first",
            )
        tables = Value(self.tables.type, TABLES)
        inner = {
            value: Value(self._now(outer).type, value.name)
            for value, outer, is_pool in zip(region.inputs, node.operands, pooled, strict=True)
            if is_pool
        }
        body = _Pager(tables, inner).body(region)
        inputs = (*body.inputs[:consts], tables, *body.inputs[consts:])
        roles = (*body.roles[:consts], ARGUMENT, *body.roles[consts:])
        operands = [self._now(value) for value in node.operands]
        made = build(
            "scan",
            *operands[:consts],
            self.tables,
            *operands[consts:],
            attributes={**dict(node.attributes), "consts": consts + 1},
            regions=[body.replace(inputs=inputs, roles=roles)],
            source=node.source,
        )
        stacked = len(node.results) - carry
        return self._keep(node, made, [*pooled[consts : consts + carry], *[False] * stacked])
