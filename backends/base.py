"""The contract between tkcc and a backend.

A `Backend` compiles a module of the IR for a `Target` into a `Program`, and starts a `Runtime`
there. Compiling needs no device where the compiler allows it. A runtime keeps parameters and state
and has one slot, in which programs are swapped between two steps.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tkcc.backends import catalogue
from tkcc.backends.schedule import Schedule
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import Module, Node

__all__ = [
    "Backend",
    "Costs",
    "Program",
    "Provenance",
    "Ran",
    "Runtime",
    "Schedule",
    "Site",
    "SwapReport",
    "Target",
    "backend_names",
    "get_backend",
]

MEASURED, SIMULATED, ESTIMATED = "measured", "simulated", "estimated"


@dataclasses.dataclass(frozen=True)
class Target:
    """A chip and how it is reached, written `backend:chip`: `xla:cpu`, `xla:tpu-v6e`."""

    backend: str
    chip: str

    @staticmethod
    def parse(text: str) -> Target:
        """Read `backend:chip`. Raises BackendError, naming what there is."""
        backend, colon, chip = text.partition(":")
        if not colon or not chip:
            raise BackendError(f"target {text!r} is not of the form backend:chip", remedy=_known())
        known = catalogue.chips(backend)
        if chip not in known:
            raise BackendError(
                f"backend {backend} has no chip {chip!r}",
                remedy=f"use one of {', '.join(f'{backend}:{name}' for name in known)}",
            )
        return Target(backend, chip)

    def __str__(self) -> str:
        return f"{self.backend}:{self.chip}"

    @property
    def facts(self) -> dict[str, Any]:
        """What the backend's chips.json says about the chip."""
        return catalogue.chips(self.backend)[self.chip]


def _known() -> str:
    texts = [f"{name}:{chip}" for name in catalogue.packages() for chip in catalogue.chips(name)]
    return f"use one of {', '.join(texts)}"


@dataclasses.dataclass(frozen=True)
class Provenance:
    """How a result was got. Results of different kinds never share a column.

    `measured` on a device (`by` names device, driver, versions), `simulated` (by which simulator),
    or `estimated` (by which compiler or model).
    """

    kind: str
    by: str

    def __post_init__(self) -> None:
        assert self.kind in (MEASURED, SIMULATED, ESTIMATED), self.kind

    @staticmethod
    def measured(by: str) -> Provenance:
        return Provenance(MEASURED, by)

    @staticmethod
    def simulated(by: str) -> Provenance:
        return Provenance(SIMULATED, by)

    @staticmethod
    def estimated(by: str) -> Provenance:
        return Provenance(ESTIMATED, by)

    def __str__(self) -> str:
        return f"{self.kind} ({self.by})"


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a compiler says about one function; None where it does not say.

    `flops`: floating-point operations. `bytes`: bytes that the ops move, copies between memories
    included where the compiler counts. `seconds`: the compiler's own guess of a call's time,
    without the `untimed_ops`, for which it has none. `peak_bytes`: device memory that one call
    needs: arguments, outputs that do not overwrite an argument, temporaries.
    `loops_counted_once`: loops whose trip count is unknown, so that the figures hold one run of
    their bodies.
    """

    provenance: Provenance
    flops: float | None = None
    bytes: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temporary_bytes: int | None = None
    loops_counted_once: int = 0
    untimed_ops: int = 0


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a node stands in `Program.module`: function, then node and region numbers in turn.

    `decode:4.0.2` is node 2 of region 0 of node 4 of `decode`. `label` is for people: the group's
    label, or the model path.
    """

    function: str
    path: tuple[int, ...]
    label: str = ""

    @property
    def key(self) -> str:
        """The site as a schedule names it."""
        return f"{self.function}:{'.'.join(map(str, self.path))}"

    def __str__(self) -> str:
        return f"{self.key} {self.label}".rstrip()


@dataclasses.dataclass(frozen=True)
class Ran:
    """One line of a program's report: which op ran how, and why not otherwise.

    `how` is `xla`, `pallas:swiglu_mlp`, `triton:...`. `reason` says why no kernel was used where
    one could have been asked for. Ops inside a group that runs as one kernel have no line.
    """

    site: Site
    op: str
    how: str
    reason: str = ""

    def __str__(self) -> str:
        text = f"{self.site}: {self.op} by {self.how}"
        return f"{text} ({self.reason})" if self.reason else text


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A compiled module.

    `module` is what was compiled: the caller's module, hoisted. `functions` are the step functions
    that can be run. `key` is equal for equal module, schedule, target and compiler version.
    `report` says op by op what runs how. `sources` holds texts by name (`decode.stablehlo`,
    `decode.hlo`, `decode.mlp.pallas`), made when they are read. `costs` are by function.
    `compile_seconds` is what compiling took when it was done. `artifacts` is what the backend's own
    runtime runs, by function; empty if there is nothing to run here.
    """

    module: Module
    functions: tuple[str, ...]
    target: Target
    schedule: Schedule
    key: str
    report: tuple[Ran, ...]
    sources: Mapping[str, str]
    costs: Mapping[str, Costs]
    compile_seconds: float
    artifacts: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def report_text(self) -> str:
        """The report, a line per op."""
        return "\n".join(map(str, self.report))


@dataclasses.dataclass(frozen=True)
class SwapReport:
    """What a swap cost. `seconds` is all of it; steps wait for `pause_seconds` of that only.

    `prepare_bytes` were computed anew (0 if prepared parameters were still there), and
    `converted_state_bytes` rewritten for the new program's state.
    """

    seconds: float
    prepare_seconds: float
    prepare_bytes: int
    converted_state_bytes: int
    pause_seconds: float


class Backend(abc.ABC):
    """One way to reach hardware. Stateless but for caches; usable from any thread."""

    name: ClassVar[str]

    def targets(self) -> tuple[Target, ...]:
        """Every target that `compile` takes."""
        return tuple(Target(self.name, chip) for chip in catalogue.chips(self.name))

    @abc.abstractmethod
    def refuses(self, node: Node, target: Target) -> str | None:
        """Why a node (a group too) cannot be compiled for the target, in one sentence, or None."""

    @abc.abstractmethod
    def choices(self, node: Node, target: Target) -> list[dict[str, Any]]:
        """Schedule entries that `compile` takes for a group (or single op) there, likeliest first.

        The general path is not listed: it is what a group without an entry gets.
        """

    @abc.abstractmethod
    def compile(
        self,
        module: Module,
        target: Target,
        schedule: Schedule = Schedule(),  # noqa: B008  (frozen)
        functions: Sequence[str] | None = None,
    ) -> Program:
        """Compile the step functions named (all, if none are), and what a swap needs.

        Pure: the same module, target, schedule and `version()` give the same program, so results
        are cached. Raises BackendError: for what `refuses` names, for a schedule that names no
        group of the module or a kernel that does not fit it, and for what the compiler refuses.
        """

    @abc.abstractmethod
    def start(
        self,
        target: Target,
        parameters: Mapping[str, Any],
        *,
        prepare_budget_bytes: int | None = None,
    ) -> Runtime:
        """A runtime on the device, with parameters resident. Raises BackendError if there is none.

        `prepare_budget_bytes` bounds the derived parameters of the program in the slot and of the
        one before it; None means no bound.
        """

    @abc.abstractmethod
    def version(self) -> str:
        """What compiled programs depend on beside their input, for cache keys and bug reports."""


class Runtime(abc.ABC):
    """Parameters and state on a device, and a slot for one program.

    Every method may be called from any thread. After `close` each raises BackendError.
    """

    target: Target

    @property
    @abc.abstractmethod
    def provenance(self) -> Provenance:
        """How results of this runtime are got, with device and driver."""

    @property
    @abc.abstractmethod
    def program(self) -> Program | None:
        """The program in the slot; None before the first swap."""

    @abc.abstractmethod
    def swap(self, program: Program) -> SwapReport:
        """Put a program in the slot, between two steps; state goes on where it was.

        The first swap starts state at zero (in the baseline's form). Raises BackendError, and
        leaves the old program, its state and the way back in place, if the program was compiled
        for another target or not for running, lacks a parameter, does not fit the state, exceeds
        the budget, or its `_prepare` fails.
        """

    @abc.abstractmethod
    def rollback(self) -> SwapReport:
        """Put the program before the last swap back; state goes on where it is now.

        Its derived parameters are still there. It can be done once per swap; BackendError then.
        """

    @abc.abstractmethod
    def step(
        self, function: str, arguments: Mapping[str, Any] | Sequence[Any] = ()
    ) -> dict[str, Any]:
        """Run a function of the program: arguments by name or in order, outputs by name.

        Parameters and state are the runtime's own; new state stays here and is not returned.
        Unnamed outputs are called `0`, `1`, ... by position. It may return before the device is
        done (see `wait`). Raises BackendError for unknown functions and wrong arguments; state is
        unchanged then. If the device itself fails, state is lost until `reset_state`.
        """

    @abc.abstractmethod
    def wait(self) -> None:
        """Return when the device has finished every step. Raises BackendError if it failed."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """A copy of the state, by baseline name and in the baseline's form."""

    @abc.abstractmethod
    def set_state(self, values: Mapping[str, Any]) -> None:
        """Overwrite the state named (baseline names and form); the rest stays. BackendError."""

    @abc.abstractmethod
    def reset_state(self) -> None:
        """All state to zero in the baseline's form, as after the first swap."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free everything. Closing twice does nothing."""

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def backend_names() -> list[str]:
    """The backends there are; none is imported."""
    return sorted(catalogue.packages())


def get_backend(name: str) -> Backend:
    """The backend of that name, imported on first use. Raises BackendError.

    A backend's package has a function `create() -> Backend`.
    """
    backend = _BACKENDS.get(name)
    if backend is None:
        backend = _BACKENDS.setdefault(name, catalogue.load(name).create())
    return backend


_BACKENDS: dict[str, Backend] = {}
