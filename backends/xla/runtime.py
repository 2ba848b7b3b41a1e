"""The runtime of the XLA backend: JAX arrays on one device, and the slot."""

from __future__ import annotations

import dataclasses
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from tkcc.backends.base import Program, Provenance, Runtime, SwapReport, Target
from tkcc.backends.xla.binding import Arrays, BoundFunction
from tkcc.backends.xla.compile import first_line
from tkcc.backends.xla.forms import special_functions
from tkcc.backends.xla.prepared import PreparedParameters
from tkcc.backends.xla.state import (
    carried,
    check_type,
    device_copy,
    host_copy,
    overwritten,
    to_baseline,
    zero_state,
)
from tkcc.ir.errors import BackendError


@dataclasses.dataclass(frozen=True, eq=False)
class _Loaded:
    """A program with its functions bound to parameters."""

    program: Program
    functions: dict[str, BoundFunction]


class XlaRuntime(Runtime):
    """Parameters and state as JAX arrays on one device; a step is one call of an executable."""

    def __init__(
        self,
        target: Target,
        device: Any,
        parameters: Mapping[str, Any],
        prepare_budget_bytes: int | None,
    ) -> None:
        self.target = target
        self._device = device
        self._parameters: Arrays = {k: jax.device_put(v, device) for k, v in parameters.items()}
        self._prepared = PreparedParameters(prepare_budget_bytes)
        self._current: _Loaded | None = None
        self._previous: _Loaded | None = None
        self._can_roll_back = False
        self._state: Arrays | None = None
        self._pending: list[Any] = []
        self._closed = False
        self._swapping = threading.RLock()  # held for a whole swap; taken before _stepping
        self._stepping = threading.RLock()  # held while state or the slot is used

    @property
    def provenance(self) -> Provenance:
        return Provenance.measured(device_text(self._device))

    @property
    def program(self) -> Program | None:
        return self._current.program if self._current is not None else None

    def swap(self, program: Program) -> SwapReport:
        with self._swapping:
            self._require_open()
            report = self._exchange(program)
            self._can_roll_back = self._previous is not None
            return report

    def rollback(self) -> SwapReport:
        with self._swapping:
            self._require_open()
            if not self._can_roll_back or self._previous is None:
                raise BackendError(
                    "there is no program to go back to",
                    remedy="swap twice before rolling back; a rollback undoes one swap",
                )
            report = self._exchange(self._previous.program)
            self._can_roll_back = False
            return report

    def _exchange(self, program: Program) -> SwapReport:
        """Put a program in the slot. Everything that can fail comes before the slot changes."""
        began = time.perf_counter()
        self._check_program(program)
        try:
            with _device_errors("swapping the program in"):
                prepared = self._prepared.obtain(program, self._parameters, self.program)
                loaded = self._load(program, {**self._parameters, **prepared.values})
                paused, converted = self._enter(loaded)
        finally:
            near = (self._current, self._previous)
            self._prepared.keep([item.program for item in near if item is not None])
        seconds = time.perf_counter() - began
        return SwapReport(seconds, prepared.seconds, prepared.bytes, converted, paused)

    def _enter(self, loaded: _Loaded) -> tuple[float, int]:
        """Between two steps: state takes the new form, and the slot changes."""
        with self._stepping:
            began = time.perf_counter()
            state, converted = self._state, 0
            if self._current is None:
                state = zero_state(loaded.program, self._device)
            elif state is not None:
                state, converted = carried(self._current.program, loaded.program, state)
            if self._current is not None:
                self._previous = self._current
            self._current, self._state = loaded, state
            return time.perf_counter() - began, converted

    def _check_program(self, program: Program) -> None:
        if program.target != self.target:
            raise BackendError(
                f"the program is for {program.target}, the runtime is on {self.target}",
                remedy="compile it for the runtime's target",
            )
        needed = {*program.functions, *special_functions(program.module)}
        if not needed <= set(program.artifacts):
            raise BackendError(
                f"the program has nothing to run for {sorted(needed - set(program.artifacts))}",
                remedy="compile it in this process, with the device present",
            )
        self._check_parameters(program)

    def _check_parameters(self, program: Program) -> None:
        wanted = program.module.parameters
        missing = [name for name in wanted if name not in self._parameters]
        if missing:
            raise BackendError(
                f"the runtime has no parameter {', '.join(map(repr, missing[:5]))}",
                remedy=f"start it with all {len(wanted)} parameters of the module",
            )
        for name, type_ in wanted.items():
            check_type(f"parameter {name}", type_, self._parameters[name])

    def _load(self, program: Program, parameters: Arrays) -> _Loaded:
        bound = {
            name: BoundFunction(name, program.artifacts[name], parameters, self._device)
            for name in program.functions
        }
        return _Loaded(program, bound)

    def step(
        self, function: str, arguments: Mapping[str, Any] | Sequence[Any] = ()
    ) -> dict[str, Any]:
        with self._stepping:
            loaded = self._require_program()
            bound = loaded.functions.get(function)
            if bound is None:
                raise BackendError(
                    f"the program has no function {function!r}",
                    remedy=f"it has {', '.join(loaded.functions)}",
                )
            state = self._require_state()
            with self._losing_state(f"running {function}"):
                outputs, changed = bound.step(arguments, state)
            state.update(changed)
            if bound.watched is not None:  # a step without outputs is known by its state
                self._remember(outputs[bound.watched])
            return outputs

    def _remember(self, result: Any) -> None:
        """Keep a step's result, to wait for; those of steps that are done are dropped."""
        alive = [item for item in self._pending if not item.is_deleted() and not item.is_ready()]
        self._pending = [*alive, result]

    def wait(self) -> None:
        with self._stepping:
            self._require_open()
            with self._losing_state("waiting for the device"):
                alive = [item for item in self._pending if not item.is_deleted()]
                jax.block_until_ready([alive, self._state or {}])  # type: ignore[no-untyped-call]
            self._pending = []

    @contextmanager
    def _losing_state(self, doing: str) -> Iterator[None]:
        """After a failure of the device, state that was handed to it is gone."""
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            self._state = None
            raise BackendError(
                f"the device failed while {doing}: {first_line(error)}",
                remedy="state is lost; call reset_state, or swap in another program first",
            ) from error

    def get_state(self) -> dict[str, Any]:
        with self._stepping:
            program = self._require_program().program
            with _device_errors("reading the state"):
                baseline, _ = to_baseline(program, self._require_state())
                return {name: host_copy(array) for name, array in baseline.items()}

    def set_state(self, values: Mapping[str, Any]) -> None:
        with self._stepping:
            program = self._require_program().program
            with _device_errors("writing the state"):
                copies = {k: device_copy(value, self._device) for k, value in values.items()}
                self._state = overwritten(program, self._state, copies)

    def reset_state(self) -> None:
        with self._stepping:
            program = self._require_program().program
            with _device_errors("resetting the state"):
                self._state = zero_state(program, self._device)

    def close(self) -> None:
        with self._swapping, self._stepping:
            self._closed = True
            self._current = self._previous = self._state = None
            self._can_roll_back = False
            self._parameters, self._pending = {}, []
            self._prepared.keep([])

    def _require_open(self) -> None:
        if self._closed:
            raise BackendError("the runtime is closed", remedy="start another one")

    def _require_program(self) -> _Loaded:
        self._require_open()
        if self._current is None:
            raise BackendError("there is no program in the slot", remedy="call swap first")
        return self._current

    def _require_state(self) -> Arrays:
        if self._state is None:
            raise BackendError(
                "the state was lost when the device failed", remedy="call reset_state or set_state"
            )
        return self._state


@contextmanager
def _device_errors(doing: str) -> Iterator[None]:
    """The device's errors as BackendError; for work that leaves the state as it was."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise BackendError(
            f"the device failed while {doing}: {first_line(error)}",
            remedy="if memory ran out, free some or choose a smaller batch or context",
        ) from error


def device_text(device: Any) -> str:
    """Device, driver and versions, as a measurement names them."""
    kind = _processor() if device.platform == "cpu" else device.device_kind
    driver = (device.client.platform_version.splitlines() or [""])[-1].strip()
    parts = [kind, f"jax {jax.__version__}", *([driver] if device.platform != "cpu" else [])]
    return ", ".join(parts)


def _processor() -> str:
    """The CPU's name, as Linux gives it; else its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()
