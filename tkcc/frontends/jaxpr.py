"""A jaxpr becomes an IR function: every primitive an op, dead equations left out."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from tkcc.frontends.equations import (
    IDENTITIES,
    INLINED,
    aval_type,
    body_of,
    expanded,
    file_of,
    holds_jaxpr,
    is_closed,
    join_paths,
    live_equations,
    parts,
    refuse,
    scan_counts,
    single_predicate,
)
from tkcc.ir.attributes import MAX_DENSE_ELEMENTS, Dense, RegionReference
from tkcc.ir.errors import IRError, LoweringError, ParseError
from tkcc.ir.graph import Function, Node, Source, Value
from tkcc.ir.lax_op import DERIVED_PARAMETERS, op_of_primitive, register_lax
from tkcc.ir.op import build, named_ops
from tkcc.ir.text.lexer import Reader
from tkcc.ir.types import is_key_dtype, type_of


class Constants:
    """Closed-over arrays: small ones become constant nodes, large ones parameters."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.taken = taken  # names of other inputs
        self.values: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # keeps ids valid

    def name(self, array: Any) -> str:
        if id(array) not in self._names:
            names = (f"const{number}" for number in itertools.count(len(self.values)))
            name = next(n for n in names if n not in self.taken and n not in self.values)
            self._names[id(array)] = name
            self._kept.append(array)
            self.values[name] = array
        return self._names[id(array)]


class Importer:
    """Converts one jaxpr (and, through `inline`, those it calls) into one function's nodes."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.nodes: list[Node] = []
        self.captured: dict[str, Value] = {}  # large constants, as extra inputs
        self._literals: dict[tuple[str, tuple[int, ...], bytes], Value] = {}

    def run(
        self, closed: Any, inputs: Sequence[Value], path: str, live: Sequence[bool] | None = None
    ) -> list[Value | None]:
        """Append the jaxpr's live equations; returns its outputs (None for dead ones)."""
        jaxpr, consts = parts(closed)
        environment: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, constant in zip(jaxpr.constvars, consts, strict=True):
            environment[variable] = self.constant(constant)
        wanted = live if live is not None else [True] * len(jaxpr.outvars)
        for equation, live_out in live_equations(jaxpr, wanted):
            self._equation(equation, environment, path, live_out)
        return [
            self._read(variable, environment) if keep else None
            for variable, keep in zip(jaxpr.outvars, wanted, strict=True)
        ]

    def constant(self, array: Any) -> Value:
        """A constant node for a small array, a captured parameter for a large one or a PRNG key."""
        is_key = is_key_dtype(getattr(array, "dtype", ""))
        if is_key or np.size(array) > MAX_DENSE_ELEMENTS:
            name = self.constants.name(array)
            return self.captured.setdefault(name, Value(type_of(array), name))
        return self._dense(np.asarray(array))

    def _dense(self, array: np.ndarray[Any, Any]) -> Value:
        dense = Dense.of(array)
        key = (dense.dtype, dense.shape, dense.data)
        if key not in self._literals:
            self._literals[key] = self.add("constant", attributes={"value": dense})[0]
        return self._literals[key]

    def add(self, op: str, *operands: Value, **keywords: Any) -> tuple[Value, ...]:
        node = build(op, *operands, **keywords)
        self.nodes.append(node)
        return node.results

    def _read(self, variable: Any, environment: dict[Any, Value]) -> Value:
        if not hasattr(variable, "val"):
            return environment[variable]
        literal = np.asarray(variable.val, dtype=variable.aval.dtype)
        return self._dense(literal)

    def _equation(
        self, equation: Any, environment: dict[Any, Value], path: str, live: Sequence[bool]
    ) -> None:
        name = equation.primitive.name
        source = Source(join_paths(path, str(equation.source_info.name_stack)), file_of(equation))
        refuse(equation, source)
        operands = [self._read(variable, environment) for variable in equation.invars]
        try:
            results = self._convert(name, equation, operands, source, live)
        except IRError as error:
            raise LoweringError(
                f"{name}: {error.what}", where=error.where or str(source), remedy=error.remedy
            ) from error
        for variable, value in zip(equation.outvars, results, strict=True):
            if value is not None:
                environment[variable] = value

    def _convert(
        self, name: str, equation: Any, operands: list[Value], source: Source, live: Sequence[bool]
    ) -> Sequence[Value | None]:
        if name == "composite" and equation.params["name"].startswith("tkcc."):
            return self._named(equation, operands, source)
        if name == "call_hi_primitive":
            return self.run(expanded(equation), operands, source.path, live)
        if name in IDENTITIES:
            return operands
        if name in INLINED:
            return self.run(body_of(equation), operands, source.path, live)
        special = {"scan": self._scan, "while": self._while, "cond": self._cond}.get(name)
        if special is not None:
            return special(equation, operands, source)
        return self._primitive(equation, operands, source)

    def _named(self, equation: Any, operands: list[Value], source: Source) -> Sequence[Value]:
        op = equation.params["name"].removeprefix("tkcc.")
        if op not in named_ops():
            raise IRError(
                f"composite tkcc.{op} names no op", remedy=f"use one of {list(named_ops())}"
            )
        recorded = {key: leaves[0] for key, leaves, _ in equation.params["attributes"]}
        keys = [key for key in str(recorded.pop("optional", "")).split(",") if key]
        attributes = {key: _recorded(leaf, op) for key, leaf in recorded.items()}
        split = len(operands) - len(keys)
        optional = dict(zip(keys, operands[split:], strict=True))
        return self.add(
            op, *operands[:split], optional=optional, attributes=attributes, source=source
        )

    def _primitive(self, equation: Any, operands: list[Value], source: Source) -> Sequence[Value]:
        definition = op_of_primitive(equation.primitive)
        register_lax(definition)
        derived = DERIVED_PARAMETERS.get(equation.primitive.name, {})
        regions: list[Function] = []
        attributes = {
            key: self._parameter(value, regions)
            for key, value in equation.params.items()
            if key not in derived
        }
        return self.add(
            definition.name, *operands, attributes=attributes, regions=regions, source=source
        )

    def _parameter(self, value: Any, regions: list[Function]) -> Any:
        """The parameter with each jaxpr in it moved to `regions`, and without a sharding."""
        if isinstance(value, jax.sharding.Sharding):
            return None  # tkcc places values itself
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            region, extra = self.region(value)
            if extra:
                raise IRError("a nested jaxpr closes over a large constant", remedy="pass it in")
            regions.append(region)
            return RegionReference(len(regions) - 1, closed=is_closed(value))
        if isinstance(value, tuple) and any(holds_jaxpr(item) for item in value):
            items = [self._parameter(item, regions) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    def region(self, closed: Any) -> tuple[Function, list[Value]]:
        """The jaxpr as a closed region, and this function's values for its extra inputs.

        Large constants of the region become its first inputs.
        """
        jaxpr, _ = parts(closed)
        inner = Importer(self.constants)
        inputs = [Value(aval_type(variable)) for variable in jaxpr.invars]
        outputs = inner.run(closed, inputs, "")
        extra = [
            self.captured.setdefault(name, Value(value.type, name))
            for name, value in inner.captured.items()
        ]
        everything = (*inner.captured.values(), *inputs)
        return Function(everything, tuple(inner.nodes), all_live(outputs)), extra

    def _scan(self, equation: Any, operands: list[Value], source: Source) -> Sequence[Value]:
        parameters = equation.params
        consts, carry = scan_counts(parameters)
        body, extra = self.region(parameters["jaxpr"])
        attributes = {
            "consts": consts + len(extra),
            "carry": carry,
            "length": int(parameters["length"]),
            "reverse": bool(parameters["reverse"]),
            "unroll": int(parameters["unroll"]),
        }
        return self.add(
            "scan", *extra, *operands, attributes=attributes, regions=[body], source=source
        )

    def _while(self, equation: Any, operands: list[Value], source: Source) -> Sequence[Value]:
        parameters = equation.params
        given = parameters["cond_nconsts"]
        condition_jaxpr, body_jaxpr, first, second = single_predicate(parameters)
        shared = operands[:given] if second > parameters["body_nconsts"] else []
        condition, extra = self.region(condition_jaxpr)
        body, more = self.region(body_jaxpr)
        attributes = {
            "condition_consts": first + len(extra),
            "body_consts": second + len(more),
        }
        ordered = (*extra, *operands[:given], *more, *shared, *operands[given:])
        regions = [condition, body]
        return self.add("while", *ordered, attributes=attributes, regions=regions, source=source)

    def _cond(self, equation: Any, operands: list[Value], source: Source) -> Sequence[Value]:
        index, *rest = operands
        pairs = [self.region(branch) for branch in equation.params["branches"]]
        shared = {value.name: value for _, extra in pairs for value in extra}
        regions = [_with_inputs(region, extra, shared) for region, extra in pairs]
        return self.add("cond", index, *shared.values(), *rest, regions=regions, source=source)


def _recorded(leaf: Any, op: str) -> Any:
    """A composite's attribute: the text that `tkcc.ir.functional` writes, or a plain number."""
    if not isinstance(leaf, str):
        return leaf
    try:
        return Reader(leaf, f"tkcc.{op}").attribute()
    except ParseError as error:
        raise IRError(
            f"attribute {leaf!r} of composite tkcc.{op}: {error.what}",
            remedy=f"tag the code with tkcc.ir.functional.call({op!r}, ...)",
        ) from error


def all_live(values: Sequence[Value | None]) -> tuple[Value, ...]:
    """The values, every one of which must be there."""
    assert None not in values, "every output was asked for"
    return tuple(value for value in values if value is not None)


def _with_inputs(region: Function, extra: list[Value], shared: dict[str, Value]) -> Function:
    """The branch with one first input per shared constant, used or not."""
    own = dict(zip([value.name for value in extra], region.inputs, strict=False))
    lead = tuple(own.get(name, Value(value.type, name)) for name, value in shared.items())
    return Function((*lead, *region.inputs[len(extra) :]), region.nodes, region.outputs)
