"""Evaluate a function on arrays, or on tracers inside `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from tkcc.ir.attributes import thaw
from tkcc.ir.errors import IRError
from tkcc.ir.graph import Function, Node, Value
from tkcc.ir.lax_op import LaxOp
from tkcc.ir.op import as_tuple, lookup
from tkcc.ir.types import type_of

# Called for each node with its operands; returns the results, or None to let the op do it itself.
Override = Callable[[Node, Sequence[Any]], Sequence[Any] | None]


def evaluate(
    function: Function, inputs: Sequence[Any], override: Override | None = None
) -> tuple[Any, ...]:
    """The function's outputs for `inputs` (one array per input, in order).

    `override` lets a backend put its own kernel in the place of a node, inside regions too.
    Raises IRError if an input's shape or dtype differs from the function's.
    """
    check_inputs(function, inputs)
    environment: dict[Value, Any] = dict(zip(function.inputs, inputs, strict=True))
    for node in function.nodes:
        operands = [environment[value] for value in node.operands]
        results = evaluate_node(node, operands, override)
        environment.update(zip(node.results, results, strict=True))
    return tuple(environment[value] for value in function.outputs)


def evaluate_node(
    node: Node, operands: Sequence[Any], override: Override | None = None
) -> tuple[Any, ...]:
    """One node's results for its operands."""
    if override is not None:
        replaced = override(node, operands)
        if replaced is not None:
            return tuple(replaced)
    definition = lookup(node.op)
    attributes = {key: thaw(value) for key, value in node.attributes}
    regions: Sequence[Any] = node.regions
    if not isinstance(definition, LaxOp):
        regions = [_callable(region, override) for region in node.regions]
    if not node.source.path:
        return as_tuple(definition.call(operands, node.keys, attributes, regions))
    with jax.named_scope(node.source.path):
        return as_tuple(definition.call(operands, node.keys, attributes, regions))


def _callable(region: Function, override: Override | None) -> Callable[..., tuple[Any, ...]]:
    return lambda *inputs: evaluate(region, inputs, override)


def check_inputs(function: Function, inputs: Sequence[Any]) -> None:
    """Raise IRError unless there is one input of the right shape and dtype per function input.

    A numpy array counts as the JAX array it becomes (float64 as float32 without 64-bit types).
    """
    if len(inputs) != len(function.inputs):
        raise IRError(
            f"the function takes {len(function.inputs)} inputs, got {len(inputs)}",
            remedy=f"pass {[value.name for value in function.inputs]}",
        )
    for value, given in zip(function.inputs, inputs, strict=True):
        got = type_of(jax.typeof(given))
        if (got.dtype, got.shape) != (value.type.dtype, value.type.shape):
            raise IRError(
                f"input {value.name or '?'} is {value.type}, got {got}",
                remedy="pass an array of the lowered type, or lower the model again"
                + _64_bit_advice(value),
            )


def _64_bit_advice(value: Value) -> str:
    wide = value.type.dtype in ("i64", "u64", "f64", "c128")
    return "; 64-bit types need jax.enable_x64(True)" if wide else ""
