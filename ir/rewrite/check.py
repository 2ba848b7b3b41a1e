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

from tkcc.ir.errors import RuleError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Module
from tkcc.ir.op import allow_64_bits
from tkcc.ir.rewrite.cases import MAX_ELEMENTS, SIZES, Case, build_pattern, cases
from tkcc.ir.rewrite.driver import apply_rule
from tkcc.ir.rewrite.records import Pattern
from tkcc.ir.rewrite.rule import PatternRule
from tkcc.ir.types import TensorType, jax_dtype

# Unit roundoff times a few: what reassociating a sum of tens of terms may change.
EXACT_ERROR = {"f64": 1e-12, "f32": 2e-5, "bf16": 4e-2, "f16": 4e-3}


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
        drawn = itertools.islice(cases(pattern, options, generator), trials)
        found += [_trial(rule, options, case, generator) for case in drawn]
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


def _trial(
    rule: PatternRule, options: Mapping[str, Any], case: Case, generator: random.Random
) -> Trial:
    assert rule.pattern is not None
    function = build_pattern(rule.pattern, case)[0]
    module, fired = apply_rule(Module({"main": function}, rule.name), rule, None, options)
    shown = {name: str(type_) for name, type_ in case.types.items()}
    if not fired:
        raise RuleError(
            f"rule {rule.name} does not match its own pattern",
            where=f"with {shown}",
            remedy="its conditions contradict its match section",
        )
    drawn = np.random.default_rng(generator.getrandbits(32))
    changed = module.function()
    _require_fair(changed)
    with allow_64_bits([value.type for value in function.inputs], ()):
        inputs = [_random(value.type, drawn) for value in function.inputs]
        error = _error(_run(function, inputs), _run(changed, inputs))
    return Trial(shown, case.bindings, error, _allowed(rule.pattern, case))


def _require_fair(function: Function) -> None:
    for node in function.nodes:
        for value in node.results:
            if value.type.size > MAX_ELEMENTS:
                raise RuleError(
                    f"the rule makes a value of {value.type}, which is too large to try",
                    remedy=f"values of a checked rule have at most {MAX_ELEMENTS} elements",
                )


# What JAX raises for a program that can be traced, but not compiled or run by itself.
_CANNOT_RUN = (TypeError, ValueError, NameError, RuntimeError, ArithmeticError)


def _run(function: Function, inputs: list[Any]) -> tuple[Any, ...]:
    """Compiled as a whole: one compilation instead of one per node."""
    try:
        out: tuple[Any, ...] = jax.jit(lambda *xs: evaluate(function, xs))(*inputs)
        return out
    except _CANNOT_RUN as error:
        raise RuleError(
            f"the rule cannot be tried: {str(error).splitlines()[0]}",
            remedy="use ops that run on one device",
        ) from error


def _allowed(pattern: Pattern, case: Case) -> float:
    dtypes = [t.dtype for t in case.types.values() if t.dtype in EXACT_ERROR]
    rounding = max((EXACT_ERROR[name] for name in dtypes), default=EXACT_ERROR["f32"])
    return rounding if pattern.kind == "exact" else pattern.error + rounding


def _random(type_: TensorType, generator: np.random.Generator) -> Any:
    """Normal floats, fair booleans, integers from 0 to 7 (ids and positions of small sizes)."""
    dtype = jax_dtype(type_.dtype)
    if type_.is_float:
        return jnp.asarray(generator.standard_normal(type_.shape).astype(dtype))
    if type_.dtype == "bool":
        return jnp.asarray(generator.random(type_.shape) < 0.5)
    return jnp.asarray(generator.integers(0, 8, type_.shape).astype(dtype))


def _error(left: Any, right: Any) -> float:
    """The largest difference over all outputs, relative to the output's largest magnitude."""
    return max((_difference(a, b) for a, b in zip(left, right, strict=True)), default=0.0)


def _difference(left: Any, right: Any) -> float:
    wide = np.complex128 if np.iscomplexobj(left) else np.float64
    a, b = np.asarray(left).astype(wide), np.asarray(right).astype(wide)
    finite = np.isfinite(a)
    if not np.array_equal(np.where(finite, 0, a), np.where(np.isfinite(b), 0, b), equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(float(np.max(np.abs(a[finite]))), 1e-30)
    return float(np.max(np.abs(a[finite] - b[finite]))) / scale
