"""Check a data rule before it is used: types infer, and both sides agree on random inputs.

Sizes, dtypes and attribute values are drawn; the pattern is built as a function, the rule is
applied to it, and both are evaluated. The error is relative to the largest value of each output.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tkcc.ir.attributes import DType, freeze
from tkcc.ir.errors import IRError, RuleError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import ARGUMENT, PARAMETER, Function, Module, Node, Value
from tkcc.ir.op import REQUIRED, build, lookup
from tkcc.ir.rewrite.conditions import holds_for_types
from tkcc.ir.rewrite.driver import apply_rule
from tkcc.ir.rewrite.expression import Expression, evaluate_expression
from tkcc.ir.rewrite.pattern import Pattern, PatternNode, TypePattern
from tkcc.ir.rewrite.rule import PatternRule
from tkcc.ir.types import TensorType, jax_dtype

# Unit roundoff times a few: what reassociating a sum of tens of terms may change.
EXACT_ERROR = {"f64": 1e-12, "f32": 2e-5, "bf16": 4e-2, "f16": 4e-3}
DTYPES = ("f32", "bf16", "f16")
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
MAX_ELEMENTS = 1 << 20
_TRIES = 4_000


@dataclasses.dataclass(frozen=True)
class Trial:
    """One comparison: the types of the pattern's inputs, and the error found."""

    types: Mapping[str, str]
    bindings: Mapping[str, Any]
    error: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed


@dataclasses.dataclass(frozen=True)
class RuleReport:
    """What checking a rule found."""

    rule: str
    kind: str
    trials: tuple[Trial, ...]

    @property
    def ok(self) -> bool:
        return bool(self.trials) and all(trial.ok for trial in self.trials)

    def worst(self) -> dict[str, float]:
        """The largest relative error by dtype."""
        found: dict[str, float] = {}
        for trial in self.trials:
            for name in _dtypes_of(trial):
                found[name] = max(found.get(name, 0.0), trial.error)
        return found


def _dtypes_of(trial: Trial) -> set[str]:
    names = {text.partition("[")[0] for text in trial.types.values()}
    return {name for name in names if name in EXACT_ERROR} or {"f32"}


def check_rule(pattern: Pattern, *, trials: int = 12, seed: int = 0) -> RuleReport:
    """Compare both sides of the rule on `trials` random cases per option value.

    Raises RuleError if the pattern cannot be built, does not match itself, makes ill-typed nodes,
    or needs too many steps to match. A difference in value is reported, not raised.
    """
    generator = random.Random(seed)
    rule = PatternRule.of(pattern)
    found: list[Trial] = []
    for options in _options(rule):
        cases = itertools.islice(_cases(pattern, options, generator), trials)
        found += [_trial(rule, options, case, generator) for case in cases]
    if not found:
        raise RuleError(
            f"rule {pattern.name}: no sizes and dtypes satisfy its conditions",
            remedy=f"sizes are drawn from {SIZES} and multiples; loosen the conditions",
        )
    return RuleReport(pattern.name, pattern.kind, tuple(found))


def _options(rule: PatternRule) -> Iterator[dict[str, Any]]:
    keys = list(rule.options)
    for values in itertools.product(*(rule.options[key] for key in keys)):
        yield dict(zip(keys, values, strict=True))


@dataclasses.dataclass(frozen=True)
class _Case:
    bindings: dict[str, Any]
    types: dict[str, TensorType]


def _cases(
    pattern: Pattern, options: Mapping[str, Any], generator: random.Random
) -> Iterator[_Case]:
    """Cases that can be built and satisfy the conditions, dtypes in turn."""
    dtypes = itertools.cycle(DTYPES)
    for _ in range(_TRIES):
        bindings = _draw(pattern, options, generator, next(dtypes))
        types = {name: _type(wanted, bindings) for name, wanted in pattern.given}
        if any(type_.size > MAX_ELEMENTS for type_ in types.values()):
            continue
        case = _Case(bindings, types)
        if _buildable(pattern, case):
            yield case


def _draw(
    pattern: Pattern, options: Mapping[str, Any], generator: random.Random, dtype: str
) -> dict[str, Any]:
    bindings: dict[str, Any] = {f"${key}": value for key, value in options.items()}
    bindings |= {name: generator.choice(values) for name, values in pattern.samples}
    tied = dict(pattern.lets)
    for _, wanted in pattern.given:
        if wanted.dtype[0].isupper():
            bindings.setdefault(wanted.dtype, DType(dtype))
        if wanted.lead and wanted.lead not in bindings:
            rank = generator.randint(0, 2)
            bindings[wanted.lead] = tuple(generator.choice(SIZES[:5]) for _ in range(rank))
    for name in _symbols(pattern):
        if name not in bindings and name not in tied:
            bindings[name] = generator.choice(SIZES)
    for name, expression in pattern.lets:
        bindings[name] = evaluate_expression(expression, bindings, {})
    return bindings


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
    dtype = bindings[wanted.dtype].name if wanted.dtype[0].isupper() else wanted.dtype
    lead = bindings[wanted.lead] if wanted.lead else ()
    sizes = (bindings[size] if isinstance(size, str) else size for size in wanted.sizes)
    return TensorType(dtype, (*lead, *sizes))


def _buildable(pattern: Pattern, case: _Case) -> bool:
    if not all(holds_for_types(c, case.types, case.bindings) for c in pattern.conditions):
        return False
    try:
        _build(pattern, case)
    except IRError:
        return False
    return True


def _build(pattern: Pattern, case: _Case) -> Function:
    """The pattern as a function of its given values; every match result is looked at."""
    values = {name: Value(type_, name) for name, type_ in case.types.items()}
    inputs = tuple(values.values())
    parameters = _parameter_names(pattern)
    nodes: list[Node] = []
    for line in pattern.match:
        node = build(
            line.op,
            *(values[name] for name in line.operands),
            optional={key: values[name] for key, name in line.optional},
            attributes=_attributes(line, case.bindings),
        )
        nodes.append(node)
        values.update(zip(line.results, node.results, strict=True))
    outputs = tuple(values[name] for name in pattern.outputs)
    roles = tuple(PARAMETER if value.name in parameters else ARGUMENT for value in inputs)
    return Function(inputs, tuple(nodes), outputs, roles)


def _parameter_names(pattern: Pattern) -> set[str]:
    wanted = {c.arguments[0] for c in pattern.conditions if c.name == "parameter"}
    return {name[1:] for name in wanted if isinstance(name, str)}


def _attributes(line: PatternNode, bindings: Mapping[str, Any]) -> dict[str, Any]:
    definition = lookup(line.op)
    attributes: dict[str, Any] = {}
    for key, expression in line.attributes:
        attributes[key] = _attribute(line, key, expression, bindings, definition.attributes)
    return _complete_primitive(line, attributes)


def _attribute(
    line: PatternNode, key: str, expression: Expression, bindings: Any, defaults: Mapping[str, Any]
) -> Any:
    unbound = [name for name in expression.names() if name not in bindings]
    if not unbound:
        return evaluate_expression(expression, bindings, {})
    default = defaults.get(key, REQUIRED)
    if expression.kind == "variable" and default is not REQUIRED:
        return freeze(default)
    raise RuleError(
        f"rule line {line.op}: no value to try for {unbound}",
        remedy=f"add: sample {unbound[0]} in (...)",
    )


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


def _trial(
    rule: PatternRule, options: Mapping[str, Any], case: _Case, generator: random.Random
) -> Trial:
    assert rule.pattern is not None
    function = _build(rule.pattern, case)
    module, fired = apply_rule(Module({"main": function}, rule.name), rule, None, options)
    shown = {name: str(type_) for name, type_ in case.types.items()}
    if not fired:
        raise RuleError(
            f"rule {rule.name} does not match its own pattern",
            where=f"with {shown}",
            remedy="its conditions contradict its match section",
        )
    changed = module.function()
    drawn = np.random.default_rng(generator.getrandbits(32))
    inputs = [_random(value.type, drawn) for value in function.inputs]
    error = _error(_run(function, inputs), _run(changed, inputs))
    return Trial(shown, case.bindings, error, _allowed(rule.pattern, case))


def _run(function: Function, inputs: list[Any]) -> tuple[Any, ...]:
    """Compiled as a whole: one compilation instead of one per node."""
    return jax.jit(lambda *xs: evaluate(function, xs))(*inputs)


def _allowed(pattern: Pattern, case: _Case) -> float:
    dtypes = [t.dtype for t in case.types.values() if t.dtype in EXACT_ERROR]
    rounding = max((EXACT_ERROR[name] for name in dtypes), default=EXACT_ERROR["f32"])
    return rounding if pattern.kind == "exact" else pattern.error + rounding


def _random(type_: TensorType, generator: np.random.Generator) -> Any:
    """Normal floats, fair booleans, integers from 0 to 7 (ids and positions of small sizes)."""
    dtype = jax_dtype(type_.dtype)
    if type_.is_float:
        return jnp.asarray(generator.standard_normal(type_.shape, np.float32).astype(dtype))
    if type_.dtype == "bool":
        return jnp.asarray(generator.random(type_.shape) < 0.5)
    return jnp.asarray(generator.integers(0, 8, type_.shape).astype(dtype))


def _error(left: Any, right: Any) -> float:
    """The largest difference over all outputs, relative to the output's largest magnitude."""
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        finite = np.isfinite(a)
        if finite.any():
            scale = max(float(np.max(np.abs(a[finite]))), 1e-30)
            worst = max(worst, float(np.max(np.abs(a[finite] - b[finite]))) / scale)
    return worst
