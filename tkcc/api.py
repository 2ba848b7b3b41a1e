"""The Python API: lower, compile, compare, optimize, replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tkcc.backends.base import Program, Schedule, Target, get_backend
from tkcc.backends.xla.platform import select_platforms
from tkcc.candidate import Candidate
from tkcc.comparison import Table, compare_targets
from tkcc.frontends.lowering import Call, lower_functions
from tkcc.frontends.lowering import lower as lower_program
from tkcc.ir.errors import LoweringError
from tkcc.ir.graph import Module
from tkcc.ir.passes.hoist import hoist
from tkcc.language import StepShape
from tkcc.optimize.records import Observer, Plan, Result
from tkcc.optimize.run import Optimizer
from tkcc.optimize.session import Session
from tkcc.workloads import load_language, lower_path

select_platforms()  # before a user's arrays start JAX: no noise from a libtpu without a TPU

__all__ = [
    "Call",
    "Module",
    "compare",
    "compile",
    "lower",
    "lower_functions",
    "optimize",
    "replay",
]


def lower(
    target: Any,
    *args: Any,
    shape: StepShape | None = None,
    dtype: str | None = None,
    recognise: bool = True,
    **options: Any,
) -> Module:
    """The IR of a JAX function, a Flax module, or a model on disk.

    With `args`: see `tkcc.frontends.lowering.lower`, which takes the same `options`. A `target`
    that is a string or Path is a model's folder, as transformers' `save_pretrained` writes it, or
    a `config.json`: one module with functions `prefill` and `decode` for a step `shape` (1 row of
    256 tokens by default), whose parameters are of `dtype` ("float32" by default) and have values
    where the folder holds safetensors files. Raises LoweringError, ModelError.

    Example:
        module = tkcc.lower("models/qwen3-0.6b", shape=StepShape(batch=4), dtype="bfloat16")
    """
    if isinstance(target, str | Path):
        if args or options:
            raise LoweringError(
                f"{target}: a model on disk takes no example arguments and no {[*options]}",
                remedy="give `shape`, `dtype` and `recognise` only",
            )
        return lower_path(target, shape or StepShape(), dtype or "float32", recognise)
    if shape is not None or dtype is not None:
        raise LoweringError(
            "`shape` and `dtype` are for a model on disk",
            remedy="give example arguments of the shapes and dtypes you want",
        )
    return lower_program(target, *args, recognise=recognise, **options)


def compile(  # noqa: A001  (the name users expect)
    module: Module,
    target: str = "xla:cpu",
    schedule: Schedule = Schedule(),  # noqa: B008  (frozen)
    functions: Sequence[str] | None = None,
) -> Program:
    """Compile a module for a target such as `xla:cpu` or `xla:tpu-v6e` (no TPU needed).

    Parameter arithmetic is hoisted first. Raises BackendError for an unknown target, a schedule
    that does not fit, or a program that does not fit the chip's memory.
    """
    chosen = Target.parse(target)
    return get_backend(chosen.backend).compile(hoist(module), chosen, schedule, functions)


def compare(module: Module, targets: Sequence[str], *, measure: bool = True) -> Table:
    """One row per target and function: costs, memory, and time, each with its provenance.

    With `measure`, targets whose device is here are timed on random inputs (and on the module's
    own parameters where it has them).
    """
    return compare_targets(module, [Target.parse(text) for text in targets], measure=measure)


def optimize(
    model: str,
    target: str = "xla:cpu",
    *,
    budget: float = 180.0,
    shape: StepShape = StepShape(batch=8),  # noqa: B008  (frozen)
    dtype: str = "float32",
    max_kl: float | None = None,
    observer: Observer | None = None,
) -> Result:
    """Search for a faster program of a built-in model, for about `budget` seconds.

    `max_kl` (nats) admits approximate rules up to that mean divergence; None admits exact ones
    only. Raises TkccError.
    """
    language = load_language(model, shape, dtype)
    with Session(language.module, Target.parse(target), shape) as session:
        plan = Plan(budget=budget, max_kl=max_kl)
        prompts = language.prompt_sets(plan.check_prompts, plan.confirm_prompts)
        return Optimizer(session, language.workload, prompts, plan, observer or Observer()).run()


def replay(candidate: Candidate | str | Path, module: Module) -> Module:
    """The module that a candidate (or the file of one) makes of its baseline. Raises TkccError."""
    from tkcc.candidate import load_candidate
    from tkcc.candidate import replay as replay_candidate

    if not isinstance(candidate, Candidate):
        candidate = load_candidate(Path(candidate))
    return replay_candidate(candidate, module)
