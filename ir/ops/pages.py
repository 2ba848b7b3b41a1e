"""Paged caches: rows of many requests in one pool of pages, found through a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from tkcc.ir.factors import WHOLE, Factors
from tkcc.ir.graph import Node
from tkcc.ir.op import Attributes, Op, register, require
from tkcc.ir.types import TensorType

SCALAR = TensorType("i32", ())


def _check_pool(pages: TensorType, index: TensorType, table: TensorType) -> None:
    require(
        pages.rank == 5 and pages.size > 0,
        f"pages are {pages}, not [l, p, s, h, d]",
        "stack the layers' pages",
    )
    require(index == SCALAR, f"index is {index}, not i32[]", "convert it")
    fits = table.rank == 2 and table.dtype == "i32" and table.shape[1] > 0
    require(fits, f"table is {table}, not i32[b, m]", "one row of page numbers per request")


def _layer(pages: Any, index: Any) -> Any:
    return jnp.clip(index, 0, pages.shape[0] - 1)


@register
class UpdatePages(Op):
    """Write `new` [b, t, h, d] into layer `index` of `pages` [l, p, s, h, d], from position
    `start` [b] of each row on.

    Position i of row b is slot i % s of page `table[b, i // s]`. Page 0 takes what has no page of
    its own: positions outside the table and table entries outside 0 .. p - 1 are written there, and
    nothing reads it. Rows must not share a page that they write, page 0 apart: which of two
    writes to one slot stays is not defined. `new` is converted to the pages' dtype.
    """

    name = "update_pages"
    operands = ("pages", "new", "start", "index", "table")

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        pages, new, start, index, table = types
        _check_pool(pages, index, table)
        fits = new.rank == 4 and (new.shape[0], *new.shape[2:]) == (
            table.shape[0],
            *pages.shape[3:],
        )
        require(fits, f"new is {new}, but the pages are {pages}", "new is [b, t, h, d]")
        fits = start == TensorType("i32", (table.shape[0],))
        require(fits, f"start is {start}, not i32[{table.shape[0]}]", "one position per row")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        pages, new, start, index, table = operands
        (_, count, size), wide = pages.shape[:3], table.shape[1]
        positions = start[:, None] + jnp.arange(new.shape[1], dtype=start.dtype)
        inside = (positions >= 0) & (positions < wide * size)
        column = jnp.clip(positions // size, 0, wide - 1)
        page = jnp.take_along_axis(table, column, axis=1)
        page = jnp.where(inside & (page >= 0) & (page < count), page, 0)
        layer = jnp.broadcast_to(_layer(pages, index), page.shape)
        where = jnp.stack([layer, page, positions % size], axis=-1)
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=(2, 3),
            inserted_window_dims=(0, 1, 2),
            scatter_dims_to_operand_dims=(0, 1, 2),
        )
        mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
        return lax.scatter(pages, where, new.astype(pages.dtype), numbers, mode=mode)

    def factors(self, node: Node) -> Factors:
        pool = (f"l{WHOLE}", f"p{WHOLE}", f"s{WHOLE}", "h", "d")
        row, t = f"b{WHOLE}", f"t{WHOLE}"
        return Factors((pool, (row, t, "h", "d"), (row,), (), (row, f"m{WHOLE}")), (pool,))

    def flops(self, node: Node) -> int:
        return 0


@register
class GatherPages(Op):
    """The rows that `table` i32[b, m] names, of layer `index` of pages [l, p, s, h, d]: a cache
    [b, m * s, h, d]. A table entry outside 0 .. p - 1 reads page 0."""

    name = "gather_pages"
    operands = ("pages", "index", "table")

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        _check_pool(*types)

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        pages, index, table = operands
        page = jnp.where((table >= 0) & (table < pages.shape[1]), table, 0)
        layer = jnp.broadcast_to(_layer(pages, index), page.shape)
        numbers = lax.GatherDimensionNumbers(
            offset_dims=(2, 3, 4), collapsed_slice_dims=(0, 1), start_index_map=(0, 1)
        )
        rows = lax.gather(
            pages,
            jnp.stack([layer, page], axis=-1),
            numbers,
            slice_sizes=(1, 1, *pages.shape[2:]),
            mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
        )
        return rows.reshape(table.shape[0], -1, *pages.shape[3:])

    def factors(self, node: Node) -> Factors:
        pool = (f"l{WHOLE}", f"p{WHOLE}", f"s{WHOLE}", "h", "d")
        return Factors((pool, (), ("b", f"m{WHOLE}")), (("b", f"n{WHOLE}", "h", "d"),))

    def flops(self, node: Node) -> int:
        return 0
