"""A jaxpr becomes an IR function; every primitive becomes an op.

Works on JAX 0.10 (ClosedJaxpr and Jaxpr are two classes) and 0.12 (one class), so jaxprs are
told by duck typing. Dead equations are dropped first.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from tkcc.ir.attributes import MAX_DENSE_ELEMENTS, Dense, RegionReference
from tkcc.ir.errors import IRError, LoweringError, ParseError
from tkcc.ir.graph import Function, Node, Source, Value
from tkcc.ir.lax_op import DERIVED_PARAMETERS, op_of_primitive, register_lax
from tkcc.ir.op import build, named_ops
from tkcc.ir.text.lexer import Reader
from tkcc.ir.types import TensorType, is_key_dtype, type_of

# Calls that only wrap a jaxpr, and the parameters that may hold it.
_INLINED = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "call",
    "remat2",
    "remat",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "custom_vmap_call",
    "composite",
}
_BODY_PARAMETERS = ("call_jaxpr", "jaxpr", "fun_jaxpr", "call")
_REFUSED = {
    "pallas_call": "its kernel has no IR form; tag the call with jax.lax.composite as tkcc.<op>",
    "shard_map": "pass the unsharded function; tkcc partitions it",
    "ffi_call": "custom calls have no meaning that tkcc could check",
    "pure_callback": "move the host code out of the function",
    "io_callback": "move the host code out of the function",
    "debug_callback": "remove jax.debug.print and jax.debug.callback",
    "debug_print": "remove jax.debug.print",
    "run_state": "return the new value instead of writing to a Ref",
    "new_ref": "return the new value instead of writing to a Ref",
    "get": "read arrays, not Refs",
    "swap": "return the new value instead of writing to a Ref",
    "addupdate": "return the new value instead of writing to a Ref",
}


def parts(closed: Any) -> tuple[Any, Sequence[Any]]:
    """(jaxpr with eqns, constants) of either JAX's closed or open jaxprs."""
    consts = getattr(closed, "consts", ()) or ()
    return getattr(closed, "jaxpr", closed), consts


class Constants:
    """Closed-over arrays: small ones become constant nodes, large ones parameters."""

    def __init__(self, prefix: str = "const", taken: Collection[str] = ()) -> None:
        self.prefix, self.taken = prefix, taken
        self.values: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # keeps ids valid

    def name(self, array: Any) -> str:
        if id(array) not in self._names:
            names = (f"{self.prefix}{number}" for number in itertools.count(len(self.values)))
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
        source = Source(_join(path, str(equation.source_info.name_stack)), _file(equation))
        _refuse(equation, source)
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
            return self.run(_expanded(equation), operands, source.path, live)
        if name in _INLINED:
            return self.run(_body(equation), operands, source.path, live)
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
            key: self._without_jaxprs(value, regions)
            for key, value in equation.params.items()
            if key not in derived
        }
        return self.add(
            definition.name, *operands, attributes=attributes, regions=regions, source=source
        )

    def _without_jaxprs(self, value: Any, regions: list[Function]) -> Any:
        """The parameter with each jaxpr in it moved to `regions`."""
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            region, extra = self.region(value)
            if extra:
                raise IRError("a nested jaxpr closes over a large constant", remedy="pass it in")
            regions.append(region)
            return RegionReference(len(regions) - 1, closed=_is_closed(value))
        if isinstance(value, tuple) and any(_holds_jaxpr(item) for item in value):
            items = [self._without_jaxprs(item, regions) for item in value]
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
        consts, carry = _scan_counts(parameters)
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
        first, second = parameters["cond_nconsts"], parameters["body_nconsts"]
        condition, extra = self.region(parameters["cond_jaxpr"])
        body, more = self.region(parameters["body_jaxpr"])
        attributes = {
            "condition_consts": first + len(extra),
            "body_consts": second + len(more),
        }
        ordered = (*extra, *operands[:first], *more, *operands[first:])
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


def _scan_counts(parameters: Any) -> tuple[int, int]:
    """(consts, carry): named in JAX 0.10; in 0.12 the shape of the input tree says it."""
    if "num_consts" in parameters:
        return int(parameters["num_consts"]), int(parameters["num_carry"])
    consts, carry, _ = parameters["ft_in"].unpack()
    return len(tuple(consts.vals)), len(tuple(carry.vals))


def _body(equation: Any) -> Any:
    for key in _BODY_PARAMETERS:
        if key in equation.params:
            return equation.params[key]
    raise LoweringError(
        f"{equation.primitive.name} holds no jaxpr that tkcc knows",
        remedy="report the primitive and the JAX version",
    )


def _expanded(equation: Any) -> Any:
    """The body of one of JAX's high-level primitives, traced from its own definition."""
    primitive = equation.params["_prim"]

    def body(*leaves: Any) -> Any:
        inputs = jax.tree.unflatten(primitive.in_tree, leaves)
        return jax.tree.leaves(primitive.expand(*inputs))

    structs = [aval_type(variable).struct() for variable in equation.invars]
    return jax.make_jaxpr(body)(*structs)


def aval_type(variable: Any) -> TensorType:
    """The IR type of a jaxpr variable. Raises LoweringError for Refs and tokens."""
    aval = variable.aval
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        raise LoweringError(f"a value of kind {aval} has no IR type", remedy="pass arrays only")
    return type_of(aval)


def _is_closed(value: Any) -> bool:
    """0.10 tells closed from open jaxprs by class; in 0.12 there is one class."""
    return hasattr(value, "jaxpr")


def _holds_jaxpr(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(_holds_jaxpr(item) for item in value)
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def _refuse(equation: Any, source: Source) -> None:
    name = equation.primitive.name
    if name in _REFUSED:
        raise LoweringError(f"{name} cannot be lowered", where=str(source), remedy=_REFUSED[name])
    effects = [str(effect) for effect in equation.effects]
    if effects and name not in _INLINED and name not in ("scan", "while", "cond"):
        raise LoweringError(
            f"{name} has the effects {effects}",
            where=str(source),
            remedy="tkcc lowers pure functions; move the effect out of the function",
        )


def live_equations(jaxpr: Any, wanted: Sequence[bool]) -> list[tuple[Any, list[bool]]]:
    """The equations that a wanted output needs (or that have effects), with their live results."""
    live = {v for v, keep in zip(jaxpr.outvars, wanted, strict=True) if keep and not _literal(v)}
    kept: list[tuple[Any, list[bool]]] = []
    for equation in reversed(jaxpr.eqns):
        results = [variable in live for variable in equation.outvars]
        if any(results) or equation.effects:
            kept.append((equation, results))
            live.update(v for v in equation.invars if not _literal(v))
    return kept[::-1]


def _literal(variable: Any) -> bool:
    return hasattr(variable, "val")


def _join(path: str, stack: str) -> str:
    return "/".join(part for part in (path, stack) if part)


_FILES: dict[int, tuple[Any, str]] = {}


def _file(equation: Any) -> str:
    """`folder/file.py:line` of the user's code (no absolute paths: they are not portable)."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return ""
    cached = _FILES.get(id(traceback))
    if cached is not None and cached[0] is traceback:
        return cached[1]
    from jax._src import source_info_util

    text = ""
    for frame in source_info_util.user_frames(traceback):
        name = frame.file_name.replace(os.sep, "/")
        text = f"{'/'.join(name.split('/')[-2:])}:{frame.start_line}"
        if not name.endswith("/ir/functional.py"):
            break  # a tag is called by the line that the user wants to see
    if len(_FILES) > 100_000:
        _FILES.clear()
    _FILES[id(traceback)] = (traceback, text)
    return text
