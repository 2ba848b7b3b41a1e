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

NARROW = {"bf16": "f32", "f16": "f32"}

# What these give depends on the bits of their operands' dtype.
_BITS = frozenset({"lax.bitcast_convert_type", "lax.nextafter", "lax.reduce_precision"})


def widen(module: Module, dtypes: Mapping[str, str] = NARROW) -> Module:
    """The module with every tensor, constant and conversion of a dtype in `dtypes` in the other.

    Parameters keep their names, and their known values are converted, so the result computes what
    the module would without the rounding of its intermediate values. Raises IRError for an op that
    depends on the bits of a narrow dtype.
    """
    functions = {name: _function(f, dtypes) for name, f in module.functions.items()}
    values = {name: _array(value, dtypes) for name, value in module.values.items()}
    return module.replace(functions=functions, values=values)


def _function(function: Function, dtypes: Mapping[str, str]) -> Function:
    known = {value: Value(_type(value.type, dtypes), value.name) for value in function.inputs}
    inputs = tuple(known.values())
    nodes = []
    for node in function.nodes:
        made = _node(node, known, dtypes)
        nodes.append(made)
        known.update(zip(node.results, made.results, strict=True))
    outputs = tuple(known[value] for value in function.outputs)
    return function.replace(inputs=inputs, nodes=tuple(nodes), outputs=outputs)


def _node(node: Node, known: Mapping[Value, Value], dtypes: Mapping[str, str]) -> Node:
    types = [value.type.dtype for value in (*node.operands, *node.results)]
    if node.op in _BITS and any(dtype in dtypes for dtype in types):
        raise IRError(
            f"{node.op} depends on the bits of its operands",
            where=str(node.source),
            remedy="a program with this op has no wider reference",
        )
    optional = node.operands[len(node.positional) :]
    return build(
        node.op,
        *(known[value] for value in node.positional),
        attributes={key: _attribute(value, dtypes) for key, value in node.attributes},
        optional={key: known[v] for key, v in zip(node.keys, optional, strict=True)},
        regions=[_function(region, dtypes) for region in node.regions],
        source=node.source,
    )


def _type(type_: TensorType, dtypes: Mapping[str, str]) -> TensorType:
    return TensorType(dtypes.get(type_.dtype, type_.dtype), type_.shape, type_.sharding)


def _attribute(value: Any, dtypes: Mapping[str, str]) -> Any:
    if isinstance(value, DType):
        return DType(dtypes.get(value.name, value.name))
    if isinstance(value, Dense) and value.dtype in dtypes:
        return Dense.of(_array(value.array(), dtypes))
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_attribute(item, dtypes) for item in value)
    return value


def _array(value: Any, dtypes: Mapping[str, str]) -> Any:
    wide = {jax_dtype(narrow): jax_dtype(name) for narrow, name in dtypes.items()}
    dtype = getattr(value, "dtype", None)
    return np.asarray(value).astype(wide[dtype]) if dtype in wide else value
