"""Random cases of a rule: sizes, dtypes, attribute values; its match section as a function."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

from tkcc.ir.attributes import DType, freeze
from tkcc.ir.errors import IRError, RuleError
from tkcc.ir.graph import ARGUMENT, PARAMETER, Function, Node, Value
from tkcc.ir.op import REQUIRED, build, lookup
from tkcc.ir.rewrite.conditions import holds_for_types
from tkcc.ir.rewrite.expression import evaluate_expression, is_symbol
from tkcc.ir.rewrite.records import Pattern, PatternNode, TypePattern
from tkcc.ir.types import TensorType

DTYPES = ("f32", "bf16", "f16")
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
MAX_ELEMENTS = 1 << 20
_TRIES = 4_000


@dataclasses.dataclass(frozen=True)
class Case:
    """What symbols and variables stand for, and the types of the given values that follow."""

    bindings: dict[str, Any]
    types: dict[str, TensorType]


def cases(pattern: Pattern, options: Mapping[str, Any], generator: random.Random) -> Iterator[Case]:
    """Cases that can be built and satisfy the conditions, dtypes in turn."""
    dtypes = itertools.cycle(DTYPES)
    for _ in range(_TRIES):
        case = _draw(pattern, options, generator, next(dtypes))
        if case is not None and _usable(pattern, case):
            yield case


def _draw(
    pattern: Pattern, options: Mapping[str, Any], generator: random.Random, dtype: str
) -> Case | None:
    """Random bindings and the types that follow, or None if those are no types of a fair size."""
    bindings: dict[str, Any] = {f"${key}": value for key, value in options.items()}
    bindings |= {name: generator.choice(values) for name, values in pattern.samples}
    _draw_attributes(pattern, bindings, generator)
    bindings |= _drawn_dtypes(pattern, generator, dtype)
    for _, wanted in pattern.given:
        if wanted.lead and wanted.lead not in bindings:
            rank = generator.randint(0, 2)
            bindings[wanted.lead] = tuple(generator.choice(SIZES[:5]) for _ in range(rank))
    tied = dict(pattern.lets)
    for name in _symbols(pattern):
        if name not in bindings and name not in tied:
            bindings[name] = generator.choice(SIZES)
    try:
        for name, expression in pattern.lets:
            bindings[name] = evaluate_expression(expression, bindings, {})
        return Case(bindings, {name: _type(wanted, bindings) for name, wanted in pattern.given})
    except (IRError, RuleError):
        return None


def _drawn_dtypes(pattern: Pattern, generator: random.Random, dtype: str) -> dict[str, DType]:
    """`dtype` for the first symbol; the others have it too, or one of their own."""
    symbols = dict.fromkeys(wanted.dtype for _, wanted in pattern.given)
    first, *others = [name for name in symbols if is_symbol(name)] or [""]
    drawn = {first: DType(dtype)} if first else {}
    return drawn | {name: DType(generator.choice((dtype, dtype, *DTYPES))) for name in others}


def _draw_attributes(pattern: Pattern, bindings: dict[str, Any], generator: random.Random) -> None:
    """Values for attributes that the pattern leaves open: both truth values, or the default."""
    for line in pattern.match:
        mentioned = dict(line.attributes)
        for key, default in lookup(line.op).attributes.items():
            value = generator.choice((False, True)) if isinstance(default, bool) else default
            wanted = mentioned.get(key)
            if wanted is not None and wanted.kind == "variable" and default is not REQUIRED:
                bindings.setdefault(wanted.parts[0], freeze(value))
            elif wanted is None and line.any_attributes and isinstance(default, bool):
                bindings.setdefault(_open(line, key), value)


def _open(line: PatternNode, key: str) -> str:
    """The binding of an attribute that `...` leaves open."""
    return f"{', '.join(line.results)}: {key}"


def _symbols(pattern: Pattern) -> list[str]:
    """Every symbol for a size: of the given types, of the match's attributes, and of `let`."""
    names: dict[str, None] = {}
    for _, wanted in pattern.given:
        names.update(dict.fromkeys(size for size in wanted.sizes if isinstance(size, str)))
    expressions = [e for line in pattern.match for _, e in line.attributes]
    for expression in (*expressions, *(e for _, e in pattern.lets)):
        names.update(dict.fromkeys(sorted(expression.names())))
    return [name for name in names if not name.startswith("$")]


def _type(wanted: TypePattern, bindings: Mapping[str, Any]) -> TensorType:
    """Raises RuleError unless its symbols are sizes, and not too large."""
    dtype = bindings[wanted.dtype].name if is_symbol(wanted.dtype) else wanted.dtype
    sizes = [bindings[size] if isinstance(size, str) else size for size in wanted.sizes]
    if not all(type(size) is int for size in sizes):
        raise RuleError(f"{sizes} are no sizes", remedy="tie symbols to whole numbers")
    type_ = TensorType(dtype, (*(bindings[wanted.lead] if wanted.lead else ()), *sizes))
    if type_.size > MAX_ELEMENTS:
        raise RuleError(f"{type_} is too large to try", remedy="tie sizes to small ones")
    return type_


def _usable(pattern: Pattern, case: Case) -> bool:
    """Whether the case can be built, is not too large, and satisfies the conditions."""
    if not _satisfies(pattern, case, case.types):
        return False
    try:
        types = build_pattern(pattern, case)[1]
    except IRError:
        return False
    fair = all(type_.size <= MAX_ELEMENTS for type_ in types.values())
    return fair and _satisfies(pattern, case, types)


def _satisfies(pattern: Pattern, case: Case, types: Mapping[str, TensorType]) -> bool:
    return all(holds_for_types(c, types, case.bindings) for c in pattern.conditions)


def build_pattern(pattern: Pattern, case: Case) -> tuple[Function, dict[str, TensorType]]:
    """The pattern as a function from its given values to its outputs, and all of its types."""
    values = {name: Value(type_, name) for name, type_ in case.types.items()}
    inputs = tuple(values.values())
    parameters = _parameter_names(pattern)
    nodes: list[Node] = []
    for line in pattern.match:
        node = build(
            line.op,
            *(values[name] for name in line.operands),
            optional={key: values[name] for key, name in line.optional},
            attributes=_attributes(line, case.bindings, values),
        )
        nodes.append(node)
        values.update(_named_results(line, node))
    outputs = tuple(values[name] for name in pattern.outputs)
    roles = tuple(PARAMETER if value.name in parameters else ARGUMENT for value in inputs)
    types = {name: value.type for name, value in values.items()}
    return Function(inputs, tuple(nodes), outputs, roles), types


def _named_results(line: PatternNode, node: Node) -> dict[str, Value]:
    if len(node.results) != len(line.results):
        raise RuleError(
            f"rule line {line.op}: {len(node.results)} results, but {len(line.results)} names",
            remedy="name each result",
        )
    return dict(zip(line.results, node.results, strict=True))


def _parameter_names(pattern: Pattern) -> set[str]:
    wanted = {c.arguments[0] for c in pattern.conditions if c.name == "parameter"}
    return {name[1:] for name in wanted if isinstance(name, str)}


def _attributes(
    line: PatternNode, bindings: Mapping[str, Any], values: Mapping[str, Value]
) -> dict[str, Any]:
    types = {name: value.type for name, value in values.items()}
    attributes: dict[str, Any] = {}
    for key, expression in line.attributes:
        unbound = sorted(expression.names() - bindings.keys())
        if unbound:
            raise RuleError(
                f"rule line {line.op}: no value to try for {unbound}",
                remedy=f"add: sample {unbound[0]} in (...)",
            )
        attributes[key] = evaluate_expression(expression, bindings, types)
    for key in lookup(line.op).attributes:
        if _open(line, key) in bindings:
            attributes[key] = bindings[_open(line, key)]
    return _complete_primitive(line, attributes)


def _complete_primitive(line: PatternNode, attributes: dict[str, Any]) -> dict[str, Any]:
    """A primitive's parameters that `...` leaves out are absent values, for which JAX has None."""
    if line.any_attributes and line.op.startswith("lax."):
        for key in ("sharding", "out_sharding", "out_dtype", "accuracy", "precision"):
            if key in _PRIMITIVE_PARAMETERS.get(line.op, ()):
                attributes.setdefault(key, None)
    return attributes


_PRIMITIVE_PARAMETERS = {
    "lax.reshape": ("sharding",),
    "lax.broadcast_in_dim": ("sharding",),
    "lax.mul": ("out_dtype",),
    "lax.dot_general": ("out_sharding", "precision"),
    "lax.reduce_sum": ("out_sharding",),
    "lax.exp": ("accuracy",),
    "lax.tanh": ("accuracy",),
    "lax.logistic": ("accuracy",),
    "lax.rsqrt": ("accuracy",),
}
