"""Shared by the tests of `raise` rules: lower plain code, count ops, compare before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tkcc.frontends.lowering import lower
from tkcc.ir.attributes import thaw
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Module, Node
from tkcc.ir.op import as_tuple, lookup
from tkcc.ir.passes.recognise import recognise
from tkcc.ir.types import TensorType, jax_dtype

# What may stand around named ops: layouts, conversions, constants, counts.
PLUMBING = frozenset(
    [
        "constant",
        "lax.reshape",
        "lax.transpose",
        "lax.broadcast_in_dim",
        "lax.convert_element_type",
        "lax.iota",
    ]
)
# Largest relative difference of float32 results before and after.
F32_TOLERANCE = 2e-5
# The raised module's error against float64 may be this much of the plain one's ...
ERROR_RATIO = 1.5
# ... plus, at its largest, one unit in the last place of the largest result; in the mean, a fourth.
LAST_PLACE = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-20, "f64": 2.0**-48}


def plain(f: Callable[..., Any], *args: Any, **options: Any) -> Module:
    """The module of `f` as it was written."""
    return lower(f, *args, recognise=False, **options)


def struct(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
    return TensorType(dtype, shape).struct()


def ops(module: Module) -> Counter[str]:
    """How often each op stands in the module, without plumbing; regions included."""
    counts = Counter(node.op for f in module.functions.values() for node in f.walk())
    return Counter({op: n for op, n in counts.items() if op not in PLUMBING})


def named(module: Module) -> dict[str, int]:
    """The ops that are not `lax.*`, with their numbers."""
    return {op: n for op, n in sorted(ops(module).items()) if not op.startswith("lax.")}


def node(module: Module, op: str) -> Node:
    """The only node with that op."""
    found = [n for f in module.functions.values() for n in f.walk() if n.op == op]
    assert len(found) == 1, f"{len(found)} nodes {op}: {dict(ops(module))}"
    return found[0]


def attributes(module: Module, op: str) -> dict[str, Any]:
    return dict(node(module, op).attributes)


def inputs_for(
    function: Function, given: Mapping[str, Any], seed: int = 0, scale: float = 1.0
) -> list[np.ndarray[Any, Any]]:
    """Random inputs (integers are 0 or 1), but for those that are given by name."""
    generator = np.random.default_rng(seed)
    made = []
    for value in function.inputs:
        kind = jax_dtype(value.type.dtype)
        if value.name in given:
            array = np.asarray(given[value.name], kind)
            assert array.shape == value.type.shape, (value.name, array.shape, value.type)
        elif value.type.is_float:
            array = (scale * generator.normal(size=value.type.shape)).astype(kind)
        else:
            array = generator.integers(0, 2, value.type.shape).astype(kind)
        made.append(array)
    return made


def run(function: Function, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    outputs = jax.jit(lambda *xs: evaluate(function, xs))(*inputs)
    return [np.asarray(out) for out in outputs]


def run_exactly(function: Function, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The function in float64 throughout: no conversion of floats rounds."""
    with jax.enable_x64(True):
        wide = [_wide(x) for x in inputs]
        outputs = jax.jit(
            lambda *xs: _exact(function, dict(zip(function.inputs, xs, strict=True)))
        )(*wide)
        return [np.asarray(out) for out in outputs]


def _exact(function: Function, environment: dict[Any, Any]) -> list[Any]:
    for item in function.nodes:
        operands = [environment[v] for v in item.operands]
        environment.update(zip(item.results, _exact_node(item, operands), strict=True))
    return [environment[v] for v in function.outputs]


def _exact_node(item: Node, operands: Sequence[Any]) -> list[Any]:
    attributes = {key: thaw(value) for key, value in item.attributes}
    if item.op == "lax.convert_element_type" and item.results[0].type.is_float:
        return [operands[0].astype(jnp.float64)]
    if item.op == "lax.scatter-add":  # its region works in the node's dtype
        numbers, mode = attributes["dimension_numbers"], attributes["mode"]
        return [jax.lax.scatter_add(*operands, numbers, mode=mode)]
    if item.op == "lax.dot_general":
        attributes.update(preferred_element_type=None, precision=None)
    if item.op == "lax.ragged_dot_general":
        attributes.update(preferred_element_type=None, precision=None)
    regions: Any = [
        lambda *xs, r=r: tuple(_exact(r, dict(zip(r.inputs, map(_wide, xs), strict=True))))
        for r in item.regions
    ]
    if item.op.startswith("lax."):
        regions = item.regions
    results = lookup(item.op).call(operands, item.keys, attributes, regions)
    return [_wide(result) for result in as_tuple(results)]


def _wide(x: Any) -> Any:
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return x.astype(jnp.complex128)
    return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def check(
    before: Module, given: Mapping[str, Any] | None = None, *, seed: int = 0, scale: float = 1.0
) -> Module:
    """Raise the module and compare all outputs with the plain ones; returns the raised module.

    Each output's error against float64 must be at most ERROR_RATIO times that of the plain code
    (in the mean and at its largest), and in float32 both must be close.
    """
    after = recognise(before)
    for name, function in before.functions.items():
        inputs = inputs_for(function, given or {}, seed, scale)
        exact = run_exactly(function, inputs)
        old, new = run(function, inputs), run(after.functions[name], inputs)
        for value, e, o, n in zip(function.outputs, exact, old, new, strict=True):
            assert (n.dtype, n.shape) == (o.dtype, o.shape)
            if value.type.is_float:
                _compare(_coarsest(function, value.type.dtype), e, o, n)
            else:
                np.testing.assert_array_equal(n, o)
    return after


def _coarsest(function: Function, dtype: str) -> str:
    """The shortest float dtype that the function works in."""
    found = {value.type.dtype for item in function.walk() for value in item.results}
    return next((short for short in ("bf16", "f16", "f32") if short in found), dtype)


def _compare(dtype: str, exact: Any, old: Any, new: Any) -> None:
    old, new = old.astype(np.float64), new.astype(np.float64)
    size = max(float(np.max(np.abs(exact), initial=0.0)), 1e-6)
    if dtype == "f32":
        np.testing.assert_allclose(new, old, rtol=F32_TOLERANCE, atol=F32_TOLERANCE * size)
    for measure, places in ((np.mean, 0.25), (np.max, 1.0)):
        floor = places * LAST_PLACE[dtype] * size
        was, is_now = measure(np.abs(old - exact)), measure(np.abs(new - exact))
        assert is_now <= ERROR_RATIO * was + floor, (dtype, measure.__name__, was, is_now)
