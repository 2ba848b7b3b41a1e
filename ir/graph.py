"""Immutable SSA graphs: values, nodes, functions, modules.

A `Value` is an identity: two values are the same only if they are one object. Nodes are records
that can be replaced while their result values live on, which is what makes editing cheap.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tkcc.ir.errors import IRError
from tkcc.ir.types import TensorType

ARGUMENT, PARAMETER, STATE = "arg", "param", "state"
ROLES = (ARGUMENT, PARAMETER, STATE)


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a node came from: model path, file and line, and the rewrites that touched it."""

    path: str = ""
    file: str = ""
    rewrites: tuple[str, ...] = ()

    def touched(self, rewrite: str) -> Source:
        return dataclasses.replace(self, rewrites=(*self.rewrites, rewrite))

    def __str__(self) -> str:
        parts = [f"from {self.path or '?'}"]
        if self.file:
            parts.append(f"({self.file})")
        if self.rewrites:
            parts.append(f"; last changed by {self.rewrites[-1]}")
        return " ".join(parts)


NO_SOURCE = Source()


class Value:
    """One SSA value. `name` is only for people; the identity is the object."""

    __slots__ = ("name", "type")

    def __init__(self, type: TensorType, name: str = "") -> None:
        self.type = type
        self.name = name

    def __repr__(self) -> str:
        return f"<%{self.name or '?'}: {self.type}>"


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One op application. Build nodes with `tkcc.ir.build`, which infers the result types.

    `keys` names the optional operands, which stand at the end of `operands`. `attributes` are
    sorted by name and hold frozen values (`tkcc.ir.attributes`).
    """

    op: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    regions: tuple[Function, ...] = ()
    keys: tuple[str, ...] = ()
    source: Source = NO_SOURCE

    def attribute(self, name: str) -> Any:
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(f"{self.op} has no attribute {name!r}")

    @property
    def result(self) -> Value:
        """The only result of a one-result node."""
        assert len(self.results) == 1, f"{self.op} has {len(self.results)} results"
        return self.results[0]

    def optional(self, key: str) -> Value | None:
        """The optional operand of that name, or None if the node does not have it."""
        if key not in self.keys:
            return None
        return self.operands[len(self.operands) - len(self.keys) + self.keys.index(key)]

    @property
    def positional(self) -> tuple[Value, ...]:
        """The operands that are not optional ones."""
        return self.operands[: len(self.operands) - len(self.keys)]

    def replace(self, **changes: Any) -> Node:
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A closed SSA function. Nodes are in topological order.

    `roles` says for each input whether it is an argument, a parameter or state; parameters and
    state are matched across functions by name. `aliases` are (output, input) positions: that
    output is the new value of that state input, which may be overwritten (donated).
    `output_names` is empty or has one name per output.
    """

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    roles: tuple[str, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    output_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.roles:
            object.__setattr__(self, "roles", (ARGUMENT,) * len(self.inputs))

    def replace(self, **changes: Any) -> Function:
        return dataclasses.replace(self, **changes)

    @functools.cached_property
    def definitions(self) -> dict[Value, tuple[Node, int]]:
        """Which node, and which of its results, defines a value."""
        return {value: (node, i) for node in self.nodes for i, value in enumerate(node.results)}

    @functools.cached_property
    def uses(self) -> dict[Value, list[Node]]:
        """The nodes that read a value, in order, once per reading node."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.operands):
                users.setdefault(value, []).append(node)
        return users

    def inputs_of(self, role: str) -> tuple[Value, ...]:
        return tuple(v for v, r in zip(self.inputs, self.roles, strict=True) if r == role)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.outputs)

    def walk(self) -> Iterator[Node]:
        """Every node, those inside regions too, in program order."""
        for node in self.nodes:
            yield node
            for region in node.regions:
                yield from region.walk()

    def size(self) -> int:
        """Number of nodes, regions included."""
        return sum(1 for _ in self.walk())


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """The IR of one model: named functions that share parameters and state by name.

    `values` holds the parameters' arrays where they are known (never part of text or hash).
    """

    functions: Mapping[str, Function]
    name: str = "module"
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def replace(self, **changes: Any) -> Module:
        return dataclasses.replace(self, **changes)

    def with_function(self, name: str, function: Function) -> Module:
        return self.replace(functions={**self.functions, name: function})

    def function(self, name: str | None = None) -> Function:
        """The function of that name; without one, the only function. Raises IRError."""
        if name is None and len(self.steps) == 1:
            return next(iter(self.steps.values()))
        if name is None or name not in self.functions:
            raise IRError(
                f"module {self.name} has no function {name!r}"
                if name
                else f"module {self.name} has several functions",
                remedy=f"name one of {list(self.functions)}",
            )
        return self.functions[name]

    @functools.cached_property
    def steps(self) -> dict[str, Function]:
        """The functions a user runs: all but those that start with an underscore."""
        return {n: f for n, f in self.functions.items() if not n.startswith("_")}

    @functools.cached_property
    def parameters(self) -> dict[str, TensorType]:
        """The module's own parameters by name, in order of first use, over all functions.

        Those that `_prepare` reads count; those that it computes do not: they are its outputs.
        """
        computed = set(self.functions[PREPARE].output_names) if PREPARE in self.functions else set()
        found = _typed_inputs(self.functions.values(), PARAMETER)
        return {name: type_ for name, type_ in found.items() if name not in computed}

    @functools.cached_property
    def state(self) -> dict[str, TensorType]:
        """State by name (caches), over all step functions."""
        return _typed_inputs(self.steps.values(), STATE)


PREPARE = "_prepare"  # parameters in, derived parameters out; run once when a program is swapped in
PACK = "_pack_state"  # the baseline's state in, this module's state out
UNPACK = "_unpack_state"  # the other way round


def _typed_inputs(functions: Any, role: str) -> dict[str, TensorType]:
    found: dict[str, TensorType] = {}
    for function in functions:
        for value in function.inputs_of(role):
            known = found.setdefault(value.name, value.type)
            if known != value.type:
                raise IRError(
                    f"{role} {value.name!r} is {known} in one function and {value.type} in another",
                    remedy="give both functions the same type",
                )
    return found


def fresh_like(values: Sequence[Value]) -> tuple[Value, ...]:
    """New values with the same types and names."""
    return tuple(Value(value.type, value.name) for value in values)
