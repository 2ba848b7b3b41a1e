"""The `_prepare` function: built once for all step functions, run once before the first step."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from tkcc.ir.attributes import format_attribute
from tkcc.ir.cost import function_cost
from tkcc.ir.errors import IRError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import PARAMETER, PREPARE, Function, Module, Node, Value
from tkcc.ir.hashing import function_hash
from tkcc.ir.passes.clean import remove_dead, share_common
from tkcc.ir.passes.hoisting.copying import ancestors, copy_nodes
from tkcc.ir.passes.naming import starred

_DIGITS = 8  # of the hash in a name


class Preparation:
    """Collects what all step functions want computed, starting from the module's `_prepare`."""

    def __init__(self, module: Module) -> None:
        old = module.functions.get(PREPARE)
        self.inputs: dict[str, Value] = {v.name: v for v in old.inputs} if old else {}
        self.nodes: list[Node] = list(old.nodes) if old else []
        self.outputs: dict[str, Value] = (
            dict(zip(old.output_names, old.outputs, strict=True)) if old else {}
        )
        self._digests: dict[Value, tuple[str, frozenset[str]]] = {}
        self._digest(self.nodes)

    def add(self, function: Function, values: Sequence[Value]) -> list[str]:
        """Have the values of the step function computed; returns their parameter names.

        The values must depend on parameters and constants alone.
        """
        known = {value: self._parameter(value) for value in function.inputs_of(PARAMETER)}
        copies = copy_nodes(ancestors(function, values), known)
        self.nodes += copies
        self._digest(copies)
        return [self._output(known[value]) for value in values]

    def _parameter(self, value: Value) -> Value:
        """The parameter inside `_prepare`: computed there before, or an input."""
        if value.name in self.outputs:
            return self.outputs[value.name]
        return self.inputs.setdefault(value.name, Value(value.type, value.name))

    def _output(self, value: Value) -> str:
        digest, sources = self._sources(value)
        for length in range(_DIGITS, len(digest) + 1):
            name = f"{_label(sorted(sources))}~{digest[:length]}"
            other = self.outputs.setdefault(name, value)
            if self._sources(other)[0] == digest:
                return name
        raise AssertionError("two expressions have one SHA-256")

    def _sources(self, value: Value) -> tuple[str, frozenset[str]]:
        """Hash of the expression that computes the value, and the parameters in it."""
        if value not in self._digests:
            text = f"param {value.name} {value.type}"
            self._digests[value] = _sha(text), frozenset((value.name,))
        return self._digests[value]

    def _digest(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            found = [self._sources(value) for value in node.operands]
            attributes = [f"{key}={format_attribute(value)}" for key, value in node.attributes]
            regions = [function_hash(region) for region in node.regions]
            digests = [digest for digest, _ in found]
            text = f"{node.op} {digests} {node.keys} {attributes} {regions}"
            names = frozenset[str]().union(*(names for _, names in found))
            for position, value in enumerate(node.results):
                self._digests[value] = _sha(f"{position} {text}"), names

    def function(self, wanted: Sequence[str]) -> Function | None:
        """`_prepare` with only the wanted outputs; None if nothing is wanted."""
        if not wanted:
            return None
        inputs = tuple(self.inputs.values())
        outputs = tuple(self.outputs[name] for name in wanted)
        roles = (PARAMETER,) * len(inputs)
        whole = Function(inputs, tuple(self.nodes), outputs, roles, output_names=tuple(wanted))
        return _without_unread_inputs(remove_dead(share_common(remove_dead(whole))))


def _without_unread_inputs(function: Function) -> Function:
    used = {v for node in function.nodes for v in node.operands} | set(function.outputs)
    inputs = tuple(value for value in function.inputs if value in used)
    return function.replace(inputs=inputs, roles=(PARAMETER,) * len(inputs))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _label(sources: Sequence[str]) -> str:
    """One name for all sources; `w+2` where the names have nothing in common."""
    label = starred(sources)
    return label if label.strip("*") else f"{sources[0]}+{len(sources) - 1}"


def needed_parameters(module: Module) -> list[str]:
    """Names of the parameters that the step functions read, computed ones included."""
    found = dict.fromkeys(v.name for f in module.steps.values() for v in f.inputs_of(PARAMETER))
    return list(found)


def run_prepare(module: Module, values: Mapping[str, Any]) -> dict[str, jax.Array]:
    """The parameters that the step functions read: those of `values` as they are, and those that
    `_prepare` computes from `values` (under `jax.jit`).

    `values` maps the module's parameters (`module.parameters`) to arrays of the right shapes.
    Raises IRError if one is missing or has another shape.
    """
    known = dict(values)
    prepare = module.functions.get(PREPARE)
    if prepare is not None:
        inputs = [_given(values, value.name) for value in prepare.inputs]
        outputs = jax.jit(lambda *arrays: evaluate(prepare, arrays))(*inputs)
        known.update(zip(prepare.output_names, outputs, strict=True))
    return {name: _given(known, name) for name in needed_parameters(module)}


def _given(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise IRError(
            f"no value for parameter {name!r}",
            remedy="give an array for every name in module.parameters",
        )
    return values[name]


@dataclasses.dataclass(frozen=True)
class PrepareCost:
    """What `_prepare` costs: bytes of the parameters it adds, bytes of original parameters that no
    step function reads any more, and its floating-point operations (once)."""

    new_bytes: int = 0
    released_bytes: int = 0
    flops: int = 0


def prepare_cost(module: Module) -> PrepareCost:
    """The cost of the module's `_prepare`; all zero if it has none."""
    prepare = module.functions.get(PREPARE)
    if prepare is None:
        return PrepareCost()
    needed = set(needed_parameters(module))
    released = [t.bytes for name, t in module.parameters.items() if name not in needed]
    new = sum(value.type.bytes for value in prepare.outputs)
    return PrepareCost(new, sum(released), function_cost(prepare).flops)
