"""The same program in wider floating point: a reference to measure rounding against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tkcc.ir.attributes import Dense, DType
from tkcc.ir.errors import IRError
from tkcc.ir.graph import Function, Module, Node, Value
from tkcc.ir.op import build
from tkcc.ir.types import TensorType, jax_dtype

_WIDER = {"bf16": "f32", "f16": "f32"}

# What these give depends on the bits of their operands' dtype.
_BITS = frozenset({"lax.bitcast_convert_type", "lax.nextafter", "lax.reduce_precision"})


def widen(module: Module) -> Module:
    """The module with every bf16 and f16 tensor, constant and conversion in f32.

    Parameters keep their names, and their known values are converted, so the result computes what
    the module would without the rounding of its intermediate values. Raises IRError for an op that
    depends on the bits of a narrow dtype.
    """
    functions = {name: _function(f) for name, f in module.functions.items()}
    values = {name: _array(value) for name, value in module.values.items()}
    return module.replace(functions=functions, values=values)


def _function(function: Function) -> Function:
    known = {value: Value(_type(value.type), value.name) for value in function.inputs}
    inputs = tuple(known.values())
    nodes = []
    for node in function.nodes:
        made = _node(node, known)
        nodes.append(made)
        known.update(zip(node.results, made.results, strict=True))
    outputs = tuple(known[value] for value in function.outputs)
    return function.replace(inputs=inputs, nodes=tuple(nodes), outputs=outputs)


def _node(node: Node, known: Mapping[Value, Value]) -> Node:
    types = [value.type.dtype for value in (*node.operands, *node.results)]
    if node.op in _BITS and any(dtype in _WIDER for dtype in types):
        raise IRError(
            f"{node.op} depends on the bits of its operands",
            where=str(node.source),
            remedy="a program with this op has no wider reference",
        )
    optional = node.operands[len(node.positional) :]
    return build(
        node.op,
        *(known[value] for value in node.positional),
        attributes={key: _attribute(value) for key, value in node.attributes},
        optional={key: known[v] for key, v in zip(node.keys, optional, strict=True)},
        regions=[_function(region) for region in node.regions],
        source=node.source,
    )


def _type(type_: TensorType) -> TensorType:
    return TensorType(_WIDER.get(type_.dtype, type_.dtype), type_.shape, type_.sharding)


def _attribute(value: Any) -> Any:
    if isinstance(value, DType):
        return DType(_WIDER.get(value.name, value.name))
    if isinstance(value, Dense) and value.dtype in _WIDER:
        return Dense.of(_array(value.array()))
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_attribute(item) for item in value)
    return value


def _array(value: Any) -> Any:
    wide = {jax_dtype(narrow): jax_dtype(name) for narrow, name in _WIDER.items()}
    dtype = getattr(value, "dtype", None)
    return np.asarray(value).astype(wide[dtype]) if dtype in wide else value
