"""`tkcc optimize` and `tkcc replay`."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table as RichTable

from tkcc.cli.common import add_model, console, seconds, shape_of, shown
from tkcc.files import write_text
from tkcc.ir.errors import TkccError
from tkcc.optimize.records import Observer, Plan

# A few sequences side by side, as a small server runs them.
DEFAULT_BATCH = 8


def add_commands(commands: Any) -> None:
    _add_optimize(commands)
    _add_replay(commands)


def _add_optimize(commands: Any) -> None:
    parser = commands.add_parser(
        "optimize",
        help="search for a faster program of a model, and prove it",
        description="Boot a model once, then try rewrites: compile, swap into the running decode "
        "loop, check logits and greedy tokens against the un-rewritten program, time the two in "
        "turn, keep winners. The winner is confirmed on prompts that the search did not see.",
        epilog="example: tkcc optimize smollm2-135m --backend xla --budget 3m",
    )
    add_model(parser, batch=DEFAULT_BATCH)
    parser.add_argument("--backend", default="xla", help="xla (the default), with its local device")
    parser.add_argument("--target", help="backend:chip instead of --backend")
    parser.add_argument("--budget", default="3m", help="time to spend: 90s, 3m, 1h (3m)")
    parser.add_argument(
        "--max-kl",
        type=float,
        help="admit approximate rules up to this mean KL divergence of the logits, in nats",
    )
    parser.add_argument("--out", type=Path, help="folder for the run (tkcc-runs/MODEL-TIME)")
    parser.add_argument(
        "--require",
        type=float,
        metavar="X",
        help="exit with 1 unless the speed-up's lower bound is at least X",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON to stdout")
    parser.set_defaults(run=_optimize)


def _optimize(options: argparse.Namespace) -> int:
    from tkcc.backends.base import Target
    from tkcc.optimize.run import Optimizer
    from tkcc.optimize.session import Session

    budget = seconds(options.budget)
    if options.max_kl is not None and options.max_kl <= 0:
        raise TkccError(f"--max-kl is {options.max_kl}", remedy="give a positive number, say 0.01")
    target = Target.parse(options.target or f"{options.backend}:{_local_chip(options.backend)}")
    screen = console()
    language = _load(options.model, options, screen)
    screen.print(
        f"[bold]booting[/bold] {options.model} on {target}: weights, caches, prefill, decode"
    )
    with Session(language.module, target, language.shape) as session:
        plan = Plan(budget=budget, max_kl=options.max_kl)
        prompts = language.prompt_sets(plan.check_prompts, plan.confirm_prompts)
        observer = _Screen(screen, budget)
        optimizer = Optimizer(session, language.workload, prompts, plan, observer)
        result = optimizer.run()
    folder = options.out or Path("tkcc-runs") / time.strftime(f"{options.model}-%Y%m%d-%H%M%S")
    result.candidate.save(folder / "candidate.json")
    record = result.record()
    write_text(folder / "result.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
    if options.json:
        print(json.dumps(record, allow_nan=False))
    else:
        _print_result(result, folder)
    return _exit_code(result, options.require)


def _exit_code(result: Any, required: float | None) -> int:
    """0 for a finished run; 1 if --require was given and the lower bound does not reach it."""
    if required is None:
        return 0
    return 0 if result.confirmed and result.interval[0] >= required else 1


def _local_chip(backend: str) -> str:
    """The chip of the device that is here: the CPU, unless JAX was given a GPU."""
    if backend != "xla":
        raise TkccError(
            f"backend {backend!r} cannot optimize", remedy="use --backend xla, or --target"
        )
    from tkcc.backends.base import get_backend

    get_backend(backend)
    import jax

    return "gpu" if jax.default_backend() == "gpu" else "cpu"


def _load(name: str, options: argparse.Namespace, screen: Console) -> Any:
    from tkcc.models.loading import is_model_path
    from tkcc.workloads import load_language, model_names

    if name not in model_names() and not is_model_path(name):
        raise TkccError(
            f"{name!r} is no built-in language model and no model's folder",
            remedy=f"use {', '.join(model_names())}, or a model's folder with weights",
        )
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=screen, transient=True) as bars:
        task = bars.add_task("loading weights", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bars.update(task, description=stage, completed=done, total=total or None)

        return load_language(name, shape_of(options), options.dtype, show)


class _Screen(Observer):
    """Prints phases, and one line per experiment."""

    def __init__(self, screen: Console, budget: float) -> None:
        self.screen, self.budget = screen, budget
        self.began = time.monotonic()
        self.count = 0

    def phase(self, text: str) -> None:
        self.screen.print(f"[bold]{self._clock()}[/bold] {text}")

    def experiment(self, experiment: Any, best: float) -> None:
        self.count += 1
        colour = {"faster": "green", "wrong": "red", "failed": "red"}.get(experiment.outcome, "dim")
        cost = sum(experiment.seconds.values())
        self.screen.print(
            f"{self._clock()} {self.count:3d}  {shown(experiment.title):32s} "
            f"[{colour}]{experiment.outcome:10s}[/{colour}] {_gain_text(experiment):24s} "
            f"[dim]{cost:4.1f} s[/dim] {shown(experiment.reason)}"
        )

    def _clock(self) -> str:
        spent = time.monotonic() - self.began
        return f"{spent:5.0f}/{self.budget:.0f} s"


def _gain_text(experiment: Any) -> str:
    if experiment.speedup is None:
        return ""
    low, high = experiment.interval
    if math.isinf(high):  # given up after a few pairs, which bound nothing
        return f"{experiment.speedup:.2f}x (few pairs)"
    return f"{experiment.speedup:.3f}x ({low:.2f} to {high:.2f})"


def _print_result(result: Any, folder: Path) -> None:
    screen = console(stderr=False)
    table = RichTable(title="experiments", title_justify="left")
    for name in ("rewrite", "on top of", "outcome", "speed-up", "ms a step", "logit error"):
        table.add_column(name, justify="right" if name in ("speed-up", "ms a step") else "left")
    for item in result.experiments:
        before_after = (
            "" if item.milliseconds is None else "{:.1f} > {:.1f}".format(*item.milliseconds)
        )
        error = "" if item.verdict is None else f"{item.verdict.error:.1e}"
        outcome = f"{item.outcome} {item.reason}".strip()
        table.add_row(
            shown(item.title),
            shown(item.against),
            shown(outcome),
            _gain_text(item),
            before_after,
            error,
        )
    screen.print(table)
    _print_verdict(result, folder, screen)


def _print_verdict(result: Any, folder: Path, screen: Console) -> None:
    before, after = result.milliseconds
    low, high = result.interval
    noise_low, noise_high = result.noise
    seconds_spent = sum(sum(item.seconds.values()) for item in result.experiments)
    count = len(result.experiments)
    if result.confirmed:
        screen.print(
            f"[green]verified speed-up {result.speedup:.2f}x[/green] "
            f"(99 % interval {low:.2f} to {high:.2f}): {before:.1f} ms > {after:.1f} ms a step, "
            f"{1e3 / before * result.candidate.workload.batch:.1f} > "
            f"{1e3 / after * result.candidate.workload.batch:.1f} tokens/s"
        )
    else:
        figures = f"{result.speedup:.3f}x, {low:.2f} to {high:.2f}"
        screen.print(f"[yellow]no verified speed-up[/yellow] ({figures})")
    print(f"winner: {result.candidate.title()} ({result.candidate.kind})")
    print(
        f"checked on unseen prompts: logit error {result.verdict.error:.1e} of their spread "
        f"(exact: below {result.verdict.allowed:.1e}), "
        f"{result.verdict.agreement:.0%} of greedy tokens agree"
    )
    print(f"noise (program against itself): {noise_low:.2f} to {noise_high:.2f}")
    if count:
        print(f"{count} experiments, {seconds_spent / count:.1f} s each; {result.provenance}")
    print(f"saved: {folder / 'candidate.json'} (tkcc replay runs it again)")


def _add_replay(commands: Any) -> None:
    parser = commands.add_parser(
        "replay",
        help="run a saved candidate again: rebuild, check, time, generate",
        description="Rebuild a candidate's program from its recorded rewrites (every hash is "
        "compared), check it against the un-rewritten program, time the two in turn, and "
        "generate text with it.",
        epilog="example: tkcc replay tkcc-runs/smollm2-135m-20261130-231500/candidate.json",
    )
    parser.add_argument("candidate", type=Path, help="a candidate.json")
    parser.add_argument("--until", type=int, metavar="N", help="only the first N rewrites' IR")
    parser.add_argument("--pairs", type=int, default=15, help="timed pairs (15)")
    parser.set_defaults(run=_replay)


def _replay(options: argparse.Namespace) -> int:
    from tkcc.candidate import load_candidate

    candidate = load_candidate(options.candidate)
    if options.until is not None:
        return _print_until(candidate, options.until)
    from tkcc.optimize.again import run_again

    screen = console()
    work = candidate.workload
    shape = argparse.Namespace(
        batch=work.batch, context=work.context, prompt=work.prompt, dtype=work.dtype
    )
    language = _load(work.model, shape, screen)
    with screen.status("replaying, compiling, checking, timing"):
        again = run_again(candidate, language, pairs=options.pairs)
    low, high = again.interval
    before, after = again.milliseconds
    print(f"replayed {candidate.title()}: {candidate.result[:12]}, as recorded")
    print(f"right: {again.verdict.right} (logit error {again.verdict.error:.1e} of their spread)")
    print(f"speed-up {again.speedup:.2f}x ({low:.2f} to {high:.2f}): {before:.1f} > {after:.1f} ms")
    print(f"it says: {again.text!r}")
    return 0 if again.verdict.right else 1


def _print_until(candidate: Any, until: int) -> int:
    from tkcc.candidate import replay
    from tkcc.ir.text import print_module
    from tkcc.language import StepShape
    from tkcc.workloads import load_module

    if not 0 <= until <= len(candidate.steps):
        raise TkccError(
            f"--until {until}", remedy=f"the candidate has {len(candidate.steps)} steps"
        )
    work = candidate.workload
    module = load_module(work.model, StepShape(work.batch, work.context, work.prompt), work.dtype)
    print(print_module(replay(candidate, module, until=until)), end="")
    return 0
