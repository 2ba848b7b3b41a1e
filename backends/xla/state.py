"""State as arrays: zeros, copies, and the way from one program's form to another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tkcc.backends.base import Program
from tkcc.backends.xla.binding import Arrays, call_by_name
from tkcc.backends.xla.cache import function_key
from tkcc.backends.xla.forms import Types, baseline_types, packed_names, special_functions
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import PACK, UNPACK
from tkcc.ir.types import TensorType, is_key_dtype, type_of

# JAX's PRNG implementations by IR dtype, and how many 32-bit words a key has.
_KEYS = {"key<fry>": ("threefry2x32", 2), "key<rbg>": ("rbg", 4), "key<urbg>": ("unsafe_rbg", 4)}


def zero_state(program: Program, device: Any) -> Arrays:
    """The program's state for a baseline state of zeros (keys with zero words)."""
    types = baseline_types(program.module)
    state, _ = from_baseline(program, {k: _zeros(type_, device) for k, type_ in types.items()})
    return state


def _zeros(type_: TensorType, device: Any) -> Any:
    if type_.dtype in _KEYS:
        implementation, words = _KEYS[type_.dtype]
        data = jnp.zeros((*type_.shape, words), jnp.uint32, device=device)
        return jax.random.wrap_key_data(data, impl=implementation)
    return jnp.zeros(type_.shape, type_.struct().dtype, device=device)


def carried(old: Program, new: Program, state: Arrays) -> tuple[Arrays, int]:
    """The old program's state in the new one's form, and how many bytes were rewritten for it.

    Raises BackendError if the new program needs state that the old one does not have.
    """
    if _form(old) == _form(new):
        _check_state(new, new.module.state, state)
        return state, 0
    baseline, unpacked = to_baseline(old, state)
    converted, packed = from_baseline(new, baseline)
    jax.block_until_ready(converted)  # type: ignore[no-untyped-call]
    return converted, unpacked + packed


def _form(program: Program) -> list[str]:
    """Equal for programs that keep state in the same form."""
    special = special_functions(program.module)
    return [function_key(special[name]) for name in (PACK, UNPACK) if name in special]


def to_baseline(program: Program, state: Arrays) -> tuple[Arrays, int]:
    """The state in the baseline's form, and the bytes that were rewritten for it."""
    if UNPACK not in special_functions(program.module):
        return dict(state), 0
    made = call_by_name(program.artifacts[UNPACK], state)
    packed = packed_names(program.module)
    return {**{k: v for k, v in state.items() if k not in packed}, **made}, _bytes(made)


def from_baseline(program: Program, baseline: Arrays) -> tuple[Arrays, int]:
    """A state in the baseline's form in the program's; the bytes that were rewritten for it.

    State that the program does not know goes along unchanged. Raises BackendError if some is
    missing.
    """
    wanted = baseline_types(program.module)
    _check_state(program, wanted, baseline)
    if PACK not in special_functions(program.module):
        return dict(baseline), 0
    made = call_by_name(program.artifacts[PACK], baseline)
    replaced = set(wanted) - set(program.module.state)
    return {**{k: v for k, v in baseline.items() if k not in replaced}, **made}, _bytes(made)


def _check_state(program: Program, wanted: Types, given: Arrays) -> None:
    for name, type_ in wanted.items():
        if name not in given:
            raise BackendError(
                f"program {program.key[:12]} needs state {name!r}; the runtime has {sorted(given)}",
                remedy="a module with other state needs _pack_state and _unpack_state, "
                "or a runtime of its own",
            )
        check_type(f"state {name}", type_, given[name])


def overwritten(program: Program, state: Arrays | None, values: Mapping[str, Any]) -> Arrays:
    """The program's state with some of it replaced, by baseline name. Raises BackendError.

    `state` may be None (lost) if all of it is given.
    """
    types = baseline_types(program.module)
    for name, value in values.items():
        if name not in types:
            raise BackendError(
                f"there is no state {name!r}", remedy=f"the state is {sorted(types)}"
            )
        check_type(f"state {name}", types[name], value)
    if state is None and set(values) != set(types):
        missing = sorted(set(types) - set(values))
        raise BackendError(
            f"the state was lost, and {missing} is not given", remedy="give all of it, or reset it"
        )
    baseline = {} if state is None else to_baseline(program, state)[0]
    return from_baseline(program, {**baseline, **values})[0]


def check_type(what: str, type_: TensorType, value: Any) -> None:
    """Raise BackendError unless the array has the type's dtype and shape."""
    got = type_of(value)
    if (got.dtype, got.shape) != (type_.dtype, type_.shape):
        raise BackendError(
            f"{what} is {got}, but the module has {type_}",
            remedy="pass an array of this shape and dtype, or lower the model again",
        )


def host_copy(array: Any) -> Any:
    """A copy that a later donation does not touch: a numpy array, or a JAX array of keys."""
    if is_key_dtype(array.dtype):
        return _copied_key(array)
    return np.array(array, copy=True)


def device_copy(value: Any, device: Any) -> Any:
    """A copy on the device that the runtime may donate without touching the caller's array."""
    if is_key_dtype(value.dtype):
        return jax.device_put(_copied_key(value), device)
    return jnp.array(value, copy=True, device=device)


def _copied_key(key: Any) -> Any:
    data = jnp.array(jax.random.key_data(key), copy=True)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def _bytes(values: Arrays) -> int:
    return sum(type_of(array).bytes for array in values.values())
