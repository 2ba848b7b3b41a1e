"""`XlaBackend`: the contract over jax.jit, Pallas kernels, and libtpu's compiler."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax

from tkcc.backends.base import Backend, Costs, Program, Ran, Schedule, Target
from tkcc.backends.xla import kernel_calls, options, tpu
from tkcc.backends.xla.cache import LeastRecentlyUsed, program_key
from tkcc.backends.xla.compile import Executable, Settings, compile_function
from tkcc.backends.xla.costs import ir_costs
from tkcc.backends.xla.forms import check_special_functions, special_functions
from tkcc.backends.xla.placement import Placement, place_module
from tkcc.backends.xla.platform import local_device, require_device, select_platforms
from tkcc.backends.xla.runtime import XlaRuntime
from tkcc.backends.xla.sources import LazyTexts
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import Function, Module, Node
from tkcc.ir.op import lookup
from tkcc.ir.ops.collectives import Collective
from tkcc.ir.passes.hoist import hoist

CACHED_PROGRAMS = 128
_FORMAT = 1  # of compiled programs; raise it when equal input gives another program


@dataclasses.dataclass(frozen=True)
class Request:
    """One program to compile, for `XlaBackend.compile_many`."""

    module: Module
    target: Target
    schedule: Schedule = Schedule()
    functions: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class _Work:
    """A checked request: everything about its program but what the compiler says."""

    module: Module
    target: Target
    schedule: Schedule
    steps: tuple[str, ...]
    placements: dict[str, Placement]
    options: dict[str, Any]
    key: str

    @property
    def functions(self) -> dict[str, Function]:
        """What is compiled, by name."""
        return {n: self.module.functions[n] for n in self.steps} | special_functions(self.module)

    @property
    def report(self) -> tuple[Ran, ...]:
        return tuple(line for name in self.functions for line in self.placements[name].report)


@dataclasses.dataclass(frozen=True, eq=False)
class _Made:
    """What the compiler gave."""

    sources: Mapping[str, str]
    costs: dict[str, Costs]
    seconds: float
    artifacts: dict[str, Executable]


class XlaBackend(Backend):
    """jax.jit and Pallas: runs on CPU and GPU, compiles for TPU without a TPU."""

    name: ClassVar[str] = "xla"

    def __init__(self) -> None:
        select_platforms()
        self._cache: LeastRecentlyUsed[_Made] = LeastRecentlyUsed(CACHED_PROGRAMS)

    def refuses(self, node: Node, target: Target) -> str | None:
        self._check_target(target)
        if isinstance(lookup(node.op), Collective):
            return f"{node.op} needs a mesh of devices, and this backend compiles for one device"
        inner = (item for region in node.regions for item in region.nodes)
        return next((reason for item in inner if (reason := self.refuses(item, target))), None)

    def choices(self, node: Node, target: Target) -> list[dict[str, Any]]:
        self._check_target(target)
        return kernel_calls.entries(node, target)

    def kernel_refusals(self, node: Node, target: Target) -> dict[str, str | None]:
        """Every kernel's name -> why it cannot take the group with its default config, or None."""
        self._check_target(target)
        return kernel_calls.refusals(node, target)

    def version(self) -> str:
        parts = [f"tkcc-xla {_FORMAT}", f"jax {jax.__version__}"]
        parts += [f"{name} {_installed(name)}" for name in ("jaxlib", "libtpu")]
        return ", ".join([*parts, f"kernels {_kernel_hash()}"])

    def compile(
        self,
        module: Module,
        target: Target,
        schedule: Schedule = Schedule(),  # noqa: B008  (frozen)
        functions: Sequence[str] | None = None,
    ) -> Program:
        wanted = None if functions is None else tuple(functions)
        (program,) = self.compile_many([Request(module, target, schedule, wanted)])
        if isinstance(program, BackendError):
            raise program
        return program

    def compile_many(
        self, requests: Sequence[Request], time_limit: float = tpu.TIME_LIMIT
    ) -> list[Program | BackendError]:
        """Compile several programs; one that fails gives its error in its place.

        All that go to the TPU's compiler share one child process, which costs seconds to start.
        `time_limit` is that child's, in seconds. Raises BackendError if the child fails as a whole.
        """
        works = [self._checked(request) for request in requests]
        wanted = {work.key: work for work in works if isinstance(work, _Work)}
        made: dict[str, _Made | BackendError] = {
            key: kept for key in wanted if (kept := self._cache.get(key)) is not None
        }
        fresh = [work for key, work in wanted.items() if key not in made]
        made.update(self._compile(fresh, time_limit))
        for key, item in made.items():
            if isinstance(item, _Made):
                self._cache.put(key, item)
        return [
            work if isinstance(work, BackendError) else _program(work, made[work.key])
            for work in works
        ]

    def start(
        self,
        target: Target,
        parameters: Mapping[str, Any],
        *,
        prepare_budget_bytes: int | None = None,
    ) -> XlaRuntime:
        self._check_target(target)
        return XlaRuntime(target, require_device(target), parameters, prepare_budget_bytes)

    def _check_target(self, target: Target) -> None:
        if target not in self.targets():
            raise BackendError(
                f"{target} is not a target of the {self.name} backend",
                remedy=f"use one of {', '.join(map(str, self.targets()))}",
            )

    def _checked(self, request: Request) -> _Work | BackendError:
        try:
            return self._work(request)
        except BackendError as error:
            return error

    def _work(self, request: Request) -> _Work:
        target, schedule = request.target, request.schedule
        self._check_target(target)
        check_special_functions(request.module)
        module = hoist(request.module)
        steps = _step_names(module, request.functions)
        placements = place_module(module, schedule, target)
        settings = options.compiler_options(schedule, target)
        self._check_nodes(module, target)
        key = program_key(module, *steps, schedule.text, str(target), self.version())
        return _Work(module, target, schedule, steps, placements, settings, key)

    def _check_nodes(self, module: Module, target: Target) -> None:
        for name, function in module.functions.items():
            for number, node in enumerate(function.nodes):
                reason = self.refuses(node, target)
                if reason is not None:
                    raise BackendError(
                        reason,
                        where=f"node {name}:{number} {node.source}",
                        remedy="compile the module before it is partitioned, or use cuda or neuron",
                    )

    def _compile(
        self, works: Sequence[_Work], time_limit: float
    ) -> dict[str, _Made | BackendError]:
        devices = {work.target: local_device(work.target) for work in works}
        away = [work for work in works if _needs_child(work, devices)]
        here = [work for work in works if not _needs_child(work, devices)]
        made = {work.key: _made_here(work, devices[work.target]) for work in here}
        return {**made, **_made_in_child(away, time_limit)}


def _program(work: _Work, made: _Made | BackendError) -> Program | BackendError:
    if isinstance(made, BackendError):
        return made
    return Program(
        module=work.module,
        functions=work.steps,
        target=work.target,
        schedule=work.schedule,
        key=work.key,
        report=work.report,
        sources=made.sources,
        costs=made.costs,
        compile_seconds=made.seconds,
        artifacts=made.artifacts,
    )


def _step_names(module: Module, functions: Sequence[str] | None) -> tuple[str, ...]:
    steps = tuple(module.steps) if functions is None else tuple(functions)
    unknown = [name for name in steps if name not in module.steps]
    if unknown or not steps:
        what = f"no step function {unknown}" if unknown else "no step function to compile"
        raise BackendError(
            f"module {module.name} has {what}", remedy=f"name some of {list(module.steps)}"
        )
    return steps


def _needs_child(work: _Work, devices: Mapping[Target, Any]) -> bool:
    return work.target.facts["platform"] == "tpu" and devices[work.target] is None


def _made_here(work: _Work, device: Any) -> _Made | BackendError:
    """Compile for a device of this machine, in this process; the result can run."""
    began = time.perf_counter()
    sources = LazyTexts({})
    costs, artifacts = {}, {}
    try:
        found = device if device is not None else require_device(work.target)
        settings = Settings(found, work.options)
        for name, function in work.functions.items():
            placement = work.placements[name]
            done = compile_function(name, function, placement, settings)
            sources = sources.joined(done.sources)
            costs[name], artifacts[name] = ir_costs(done), done.executable
    except BackendError as error:
        return error
    return _Made(sources, costs, time.perf_counter() - began, artifacts)


def _sent(work: _Work) -> Module:
    """The module with its conversions trimmed; the child compiles functions as they stand."""
    return work.module.replace(functions={**work.module.functions, **work.functions})


def _made_in_child(works: Sequence[_Work], time_limit: float) -> dict[str, _Made | BackendError]:
    if not works:
        return {}
    jobs = [
        tpu.Job(_sent(work), work.target, work.schedule, tuple(work.functions)) for work in works
    ]
    answers = tpu.compile_jobs(jobs, time_limit)
    return {
        work.key: answer
        if isinstance(answer, BackendError)
        else _Made(answer.sources, answer.costs, answer.seconds, {})
        for work, answer in zip(works, answers, strict=True)
    }


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


@functools.cache
def _kernel_hash() -> str:
    """Of the kernels' source text: a changed kernel is another compiler."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in [*sorted((folder / "kernels").rglob("*.py")), folder / "match.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
