"""One number per node, equal for nodes that could be the same node of two layers.

Equal symbols mean: same op, attributes, regions, operand types, result types, and equal constants
as operands. What the operands are is left to `tkcc.ir.passes.rolling.chunks`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Hashable, Sequence

from tkcc.ir.attributes import format_attribute
from tkcc.ir.graph import PARAMETER, Function, Node, Value
from tkcc.ir.hashing import function_hash
from tkcc.ir.passes.clean import with_operands

# Ops that only pick or arrange data: where they read inputs alone, they run before the layers.
_PICKS = {
    "lax.slice",
    "lax.dynamic_slice",
    "lax.squeeze",
    "lax.reshape",
    "lax.expand_dims",
    "lax.broadcast_in_dim",
    "lax.split",
    "reshape",
    "split",
}
_REAL = ("f", "bf", "c")  # dtypes of activations
_NEAR = 32  # nodes
# Attributes that say which row is read, where one whole row of axis 0 is.
ROW_ATTRIBUTES = {"start_indices", "limit_indices"}
# Ops whose operands from this position on say where to read or write, so layers may differ.
INDEXED = {
    "lax.dynamic_slice": 1,
    "lax.gather": 1,
    "lax.scatter": 1,
    "lax.dynamic_update_slice": 2,
}


def literals(function: Function) -> dict[Value, str]:
    """A content hash of every value that is computed from constants alone."""
    known: dict[Value, str] = {}
    for node in function.nodes:
        if all(value in known for value in node.operands):
            text = f"{_head(node)} {[known[value] for value in node.operands]}"
            for position, value in enumerate(node.results):
                known[value] = hashlib.sha256(f"{position} {text}".encode()).hexdigest()
    return known


def early_nodes(function: Function) -> set[Node]:
    """Nodes that can run before all layers, and are no step of any.

    They depend on parameters and constants only; or on integers and constants only (positions,
    masks, indices); or they pick a part of an input (one layer's weights out of stacked ones).
    """
    by_role = list(zip(function.inputs, function.roles, strict=True))
    kinds = [
        {value for value, role in by_role if role == PARAMETER},
        {value for value in function.inputs if not value.type.dtype.startswith(_REAL)},
    ]
    picked = set(function.inputs)
    early = set()
    for node in function.nodes:
        fits = [all(value in kind for value in node.operands) for kind in kinds]
        is_pick = node.op in _PICKS and all(value in picked for value in node.operands)
        for kind in itertools.compress(kinds, fits):
            kind.update(node.results)
        if any(fits) or is_pick:
            picked.update(node.results)
            early.add(node)
    return early


def share_early(function: Function) -> Function:
    """Merge equal early nodes, so that layers which compute the same constant read one value."""
    early = early_nodes(function)
    replaced: dict[Value, Value] = {}
    seen: dict[Hashable, Node] = {}
    nodes = []
    for original in function.nodes:
        node = with_operands(original, replaced)
        if original in early:
            known = seen.setdefault((_head(node), node.operands), node)
            if known is not node:
                replaced.update(zip(node.results, known.results, strict=True))
                continue
        nodes.append(node)
    if not replaced:
        return function
    outputs = tuple(replaced.get(value, value) for value in function.outputs)
    return function.replace(nodes=tuple(nodes), outputs=outputs)


def picks_row(node: Node) -> bool:
    """Whether the node is W[i : i + 1] for a fixed i."""
    if node.op != "lax.slice" or node.results[0].type.shape[:1] != (1,):
        return False
    whole = node.operands[0].type.shape
    return whole[0] > 1 and node.results[0].type.shape[1:] == whole[1:]


def same_rows(nodes: Sequence[Node]) -> bool:
    """Whether nodes of one symbol also read the same row."""
    return not picks_row(nodes[0]) or len({node.attributes for node in nodes}) == 1


def _head(node: Node, without: Collection[str] = ()) -> str:
    """Op, optional operands, attributes and regions as text."""
    attributes = ",".join(
        f"{key}={format_attribute(value)}" for key, value in node.attributes if key not in without
    )
    regions = ",".join(function_hash(region) for region in node.regions)
    return f"{node.op} {','.join(node.keys)} {{{attributes}}} <{regions}>"


def with_distances(sequence: Sequence[Node], symbols: Sequence[int]) -> list[int]:
    """The symbols, told apart further by how far back in the sequence each operand was made.

    So a row of equal ops has the period of its wiring. Operands from further back than `_NEAR` may
    be shared by all layers; their distance says nothing.
    """
    made: dict[Value, int] = {}
    numbers: dict[Hashable, int] = {}
    found = []
    for i, (node, symbol) in enumerate(zip(sequence, symbols, strict=True)):
        back = [i - made.get(value, -_NEAR) for value in node.operands]
        key = (symbol, *(distance if distance < _NEAR else 0 for distance in back))
        found.append(numbers.setdefault(key, len(numbers)))
        made.update(dict.fromkeys(node.results, i))
    return found


class SymbolTable:
    """Numbers nodes; remembers them, so that asking again after a change costs little."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Node, int] = {}

    def number(self, node: Node, literal: dict[Value, str]) -> int:
        """The node's symbol. `literal` is what `literals` gave for its function."""
        if node not in self._known:
            key = self._key(node, literal)
            self._known[node] = self._numbers.setdefault(key, len(self._numbers))
        return self._known[node]

    def _key(self, node: Node, literal: dict[Value, str]) -> Hashable:
        free_from = INDEXED.get(node.op, len(node.operands))
        operands = tuple(
            value.type if position >= free_from else (value.type, literal.get(value))
            for position, value in enumerate(node.operands)
        )
        head = _head(node, ROW_ATTRIBUTES if picks_row(node) else ())
        return (head, operands, tuple(value.type for value in node.results))
