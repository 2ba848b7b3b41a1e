"""The conversion of state between the baseline's form and a module's own (PACK and UNPACK)."""

from __future__ import annotations

from tkcc.ir.graph import STATE, Function, Module, Value


def known_conversion(module: Module, key: str) -> Function:
    """The module's PACK or UNPACK function, or one that changes nothing."""
    if key in module.functions:
        return module.functions[key]
    inputs = tuple(Value(type_, name) for name, type_ in module.state.items())
    roles, names = (STATE,) * len(inputs), tuple(module.state)
    return Function(inputs, (), inputs, roles, output_names=names)
