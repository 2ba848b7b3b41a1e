"""Experts over sorted tokens: permutations, counts and ragged products."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tkcc.ir.graph import Node, Value
from tkcc.ir.reading.dots import plain_precision, read_sum
from tkcc.ir.reading.forms import index_of, read_form
from tkcc.ir.reading.rows import read_one_hot, read_rows
from tkcc.ir.reading.scatters import written_places
from tkcc.ir.reading.views import Reader, View

_DTYPES = ("bf16", "f16", "f32")


@dataclasses.dataclass(frozen=True)
class Sorted:
    """down(act(gate(rows)) * up(rows)) over rows that were sorted by `keys` (the flat expert ids);
    `order[i]` is the place before sorting of row i, and rows are x[order // choices]."""

    x: Value
    gate: Value
    up: Value
    down: Value
    activation: str
    keys: Value
    order: Value


class RaggedReader:
    """Reads what a ragged product gives."""

    def __init__(self, reader: Reader, is_parameter: Callable[[Value], bool]) -> None:
        self.reader, self.is_parameter = reader, is_parameter
        self.define = reader.define

    def read(self, value: Value, choices: int) -> Sorted | None:
        """The value [rows, channels] as experts over sorted rows, `choices` rows per token."""
        down = self._product(value)
        unit = self.define(down[0]) if down is not None else None
        if down is None or unit is None or unit.op != "swiglu":
            return None
        one, two = self._product(unit.operands[0]), self._product(unit.operands[1])
        if one is None or two is None or one[0] is not two[0]:
            return None
        if not one[2] is two[2] is down[2] or value.type.dtype not in _DTYPES:
            return None
        rows = self._rows(one[0], choices)
        keys = self._keys(rows[1]) if rows is not None else None
        if rows is None or keys is None or not self._counts(down[2], keys):
            return None
        kind = unit.attribute("activation")
        return Sorted(rows[0], one[1], two[1], down[1], kind, keys, rows[1])

    def _product(self, value: Value) -> tuple[Value, Value, Value] | None:
        """(rows, weights [e, k, n], sizes) of a ragged_dot in one dtype."""
        node = self.define(value)
        if node is None or node.op != "lax.ragged_dot_general" or not plain_precision(node):
            return None
        numbers = node.attribute("ragged_dot_dimension_numbers")
        (left, right), (batch, _) = numbers.dot_dimension_numbers
        plain = (
            (tuple(left), tuple(right), tuple(batch)) == ((1,), (1,), ())
            and tuple(numbers.lhs_ragged_dimensions) == (0,)
            and tuple(numbers.rhs_group_dimensions) == (0,)
            and node.attribute("group_offset") is None
        )
        rows, weights, sizes = node.operands
        same = rows.type.dtype == weights.type.dtype == value.type.dtype
        return (rows, weights, sizes) if plain and same and self.is_parameter(weights) else None

    def _rows(self, value: Value, choices: int) -> tuple[Value, Value] | None:
        """(x, order) of x[order // choices], or of each row of x repeated and then [order]."""
        node = self.define(value)
        if node is None or node.op != "lax.gather" or value.type.rank != 2:
            return None
        dims = self.reader.view(value).dims
        index = read_rows(self.reader, node, dims)
        if index is None or index.dims != dims[:1]:
            return None
        order = self.divided(index.value, choices)
        if order is not None:
            return node.operands[0], order
        x = self._repeated(node.operands[0], choices)
        return None if x is None else (x, index.value)

    def divided(self, index: Value, by: int) -> Value | None:
        """a of a // by, as JAX writes it for integers that may be negative (a is not); or of
        repeat(arange(n), by)[a]."""
        node = self.define(index)
        if node is not None and node.op == "lax.select_n":
            quotient, less = self.define(node.operands[1]), self.define(node.operands[2])
            rounded = less is not None and less.op == "lax.sub"
            if less is None or not rounded or less.operands[0] is not node.operands[1]:
                return None
            node = quotient
        if node is not None and node.op == "lax.div" and self.reader.scalar(node.operands[1]) == by:
            return node.operands[0]
        if node is None or node.op != "lax.gather" or index.type.rank != 1:
            return None
        (dim,) = self.reader.view(index).dims
        place = read_rows(self.reader, node, (dim,))
        tokens = self._token_of_row(node.operands[0], by)
        return place.value if place is not None and tokens and place.dims == (dim,) else None

    def _token_of_row(self, value: Value, choices: int) -> bool:
        """Whether element i of the vector is i // choices."""
        if value.type.size % choices:
            return False
        axes = self.reader.axes
        dims = axes.regroup(axes.fresh(value.type.shape), (value.type.size // choices, choices))
        if dims is None:
            return False
        form = read_form(self.reader, View(value, ((*dims[0], *dims[1]),)))
        return form == index_of(dims[0])

    def _repeated(self, value: Value, choices: int) -> Value | None:
        """x, if each of its rows stands `choices` times in a row."""
        if value.type.rank != 2 or value.type.shape[0] % choices:
            return None
        axes, (rows, channels) = self.reader.axes, self.reader.view(value).dims
        dims = axes.regroup((rows,), (value.type.shape[0] // choices, choices))
        if dims is None:
            return None
        base = self.reader.base(View(value, ((*dims[0], *dims[1]), channels)))
        return base.value if base.dims == (dims[0], channels) else None

    def _keys(self, order: Value) -> Value | None:
        """The keys whose sorting gives `order`."""
        node = self.define(order)
        if node is None or node.op != "lax.sort" or len(node.operands) != 2:
            return None
        place = node.results.index(order)
        counted = place == 1 and node.attribute("num_keys") == 1 and self._counts_up(node, 1)
        return node.operands[0] if counted and order.type.rank == 1 else None

    def _counts_up(self, node: Node, place: int) -> bool:
        view = self.reader.view(node.operands[place])
        return read_form(self.reader, view) == index_of(view.dims[0])

    def inverse_of(self, index: Value) -> Value | None:
        """The permutation whose argsort a value is."""
        return self._keys(index)

    def _counts(self, sizes: Value, keys: Value) -> bool:
        """Whether `sizes` are the numbers of keys 0, 1, 2, ..."""
        node = self.define(sizes)
        if node is not None and node.op == "lax.scatter-add":
            return self._bin_count(node, keys)
        view = self.reader.view(sizes)
        found = read_sum(self.reader, view)
        if found is None or len(found[1]) != 1:
            return False
        hot, (rows,) = found
        convert = self.define(hot.value)
        if convert is None or convert.op != "lax.convert_element_type":
            return False
        ids = read_one_hot(self.reader, hot, view.dims[0])
        return ids is not None and self._same(ids, View(keys, (rows,)))

    def _bin_count(self, node: Node, keys: Value) -> bool:
        """zeros.at[keys].add(1)."""
        zero, one = self.reader.scalar(node.operands[0]), self.reader.scalar(node.operands[2])
        updates = self.reader.view(node.operands[2])
        places = written_places(self.reader, node, updates.dims)
        if (zero, one) != (0, 1) or places is None or len(places) != 1:
            return False
        form = places[0]
        if form.number or form.terms or len(form.bases) != 1 or form.bases[0].factor != 1:
            return False
        return self._same(self._clipped(form.bases[0].view), View(keys, updates.dims))

    def _clipped(self, view: View) -> View:
        """ids of max(ids, 0)."""
        node = self.reader.node(view)
        if node is not None and node.op == "lax.max":
            for side in (0, 1):
                if self.reader.scalar(node.operands[side]) == 0:
                    return self.reader.base(self.reader.operand(node, 1 - side, view.dims))
        return view

    def _same(self, one: View, two: View) -> bool:
        """Whether two views are layouts of one value in one way."""
        one, two = self.reader.base(one), self.reader.base(two)
        return self.reader.resolve(one) == self.reader.resolve(two)
