"""A program's functions bound to resident parameters: what a step passes in, and what comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tkcc.backends.xla.compile import Executable
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import ARGUMENT, PARAMETER, STATE, Function, Value
from tkcc.ir.types import jax_dtype

Arrays = dict[str, Any]


def output_names(function: Function) -> tuple[str, ...]:
    """A name per output: its own, or its position where outputs have none or share one."""
    names = function.output_names
    if len(set(names)) == len(function.outputs):
        return names
    return tuple(map(str, range(len(function.outputs))))


def call_by_name(executable: Executable, values: Mapping[str, Any]) -> Arrays:
    """Run a function whose inputs and outputs all go by name."""
    results = executable.call(*(values[value.name] for value in executable.function.inputs))
    names = executable.function.output_names
    return {names[i]: result for i, result in zip(executable.order, results, strict=True)}


class BoundFunction:
    """One step function with its parameters in place."""

    def __init__(self, name: str, executable: Executable, parameters: Arrays, device: Any) -> None:
        self.name = name
        self._call = executable.call
        self._sharding = jax.sharding.SingleDeviceSharding(device)
        function = executable.function
        placed = list(enumerate(zip(function.inputs, function.roles, strict=True)))
        self._template = [
            parameters[value.name] if role == PARAMETER else None for _, (value, role) in placed
        ]
        self._state = [(i, value.name) for i, (value, role) in placed if role == STATE]
        self._arguments = [
            (i, _Argument.of(value, number))
            for number, (i, value) in enumerate(
                (i, value) for i, (value, role) in placed if role == ARGUMENT
            )
        ]
        state = {output: function.inputs[position].name for output, position in function.aliases}
        self._state_results = [(k, state[i]) for k, i in enumerate(executable.order) if i in state]
        names = output_names(function)
        plain = sorted((i, k) for k, i in enumerate(executable.order) if i not in state)
        self._results = [(k, names[i]) for i, k in plain]
        sizes = {
            name: function.outputs[executable.order[k]].type.bytes for k, name in self._results
        }
        self.watched = min(sizes, key=lambda name: sizes[name], default=None)
        """The smallest output: the one to hold on to, to know when a step is done."""

    def step(
        self, given: Mapping[str, Any] | Sequence[Any], state: Arrays
    ) -> tuple[Arrays, Arrays]:
        """(outputs by name, new values of the state that changes); donates the old ones.

        Raises BackendError before anything is donated if an argument is wrong.
        """
        inputs = list(self._template)
        for (position, argument), value in zip(self._arguments, self._listed(given), strict=True):
            inputs[position] = argument.checked(value, self.name, self._sharding)
        for position, name in self._state:
            inputs[position] = state[name]
        results = self._call(*inputs)
        outputs = {name: results[k] for k, name in self._results}
        return outputs, {name: results[k] for k, name in self._state_results}

    def _listed(self, given: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        names = [argument.name for _, argument in self._arguments]
        if isinstance(given, Mapping):
            if set(given) == set(names):
                return [given[name] for name in names]
        elif len(given) == len(names):
            return list(given)
        listed = list(given) if isinstance(given, Mapping) else f"{len(given)} of them"
        raise BackendError(
            f"{self.name} takes the arguments {names}, got {listed}",
            remedy="pass each argument once, by name or in this order",
        )


@dataclasses.dataclass(frozen=True)
class _Argument:
    name: str
    shape: tuple[int, ...]
    dtype: Any
    text: str

    @staticmethod
    def of(value: Value, number: int) -> _Argument:
        dtype = jax_dtype(value.type.dtype)
        return _Argument(value.name or str(number), value.type.shape, dtype, str(value.type))

    def checked(self, value: Any, function: str, sharding: Any) -> Any:
        """The value as the executable takes it; a Python number takes the argument's dtype."""
        if isinstance(value, (bool, int, float, complex)) and not self.shape:
            return np.asarray(value, self.dtype)
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or tuple(shape) != self.shape or dtype != self.dtype:
            got = f"{dtype}{list(shape)}" if shape is not None else type(value).__name__
            raise BackendError(
                f"argument {self.name} of {function} is {self.text}, got {got}",
                remedy="pass an array of this shape and dtype",
            )
        if isinstance(value, jax.Array) and value.sharding != sharding:
            return jax.device_put(value, sharding)
        return value
