"""`tkcc lower`, `tkcc compile`, `tkcc compare`, `tkcc models`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from tkcc.cli.common import add_model, console, human, shape_of, shown
from tkcc.files import write_text
from tkcc.ir.errors import TkccError
from tkcc.ir.graph import Module


def add_commands(commands: Any) -> None:
    _add_lower(commands)
    _add_compile(commands)
    _add_compare(commands)
    models = commands.add_parser("models", help="list the built-in models")
    models.set_defaults(run=_models)


def _add_lower(commands: Any) -> None:
    parser = commands.add_parser(
        "lower",
        help="lower a model to IR, and apply rules",
        description="Lower a model to IR. Without --print or --output, a summary is shown: "
        "functions, ops, FLOPs and bytes.",
        epilog="example: tkcc lower smollm2-135m --rules merge_qkv,merge_linears --log",
    )
    add_model(parser)
    parser.add_argument("--print", action="store_true", help="print the IR to stdout")
    parser.add_argument("--no-sources", action="store_true", help="leave provenance out")
    parser.add_argument("--output", type=Path, help="write the IR to this file")
    parser.add_argument("--rules", default="", help="comma-separated rules to apply in order")
    parser.add_argument("--log", action="store_true", help="show every rewrite: rule, site, path")
    parser.add_argument("--until", type=int, metavar="N", help="stop after rewrite N")
    parser.add_argument("--print-ir", action="store_true", help="print the IR after each rule")
    parser.add_argument("--plain", action="store_true", help="do not raise plain code to named ops")
    parser.set_defaults(run=_lower)


def _lower(options: argparse.Namespace) -> int:
    from tkcc.ir.rewrite.driver import Log
    from tkcc.ir.text import print_module
    from tkcc.workloads import load_module

    sources = not options.no_sources
    module = load_module(options.model, shape_of(options), options.dtype, not options.plain)
    log = Log(limit=options.until)
    if options.print_ir:
        log.on_module = lambda name, m: print(f"# after {name}\n{print_module(m, sources=sources)}")
    module = _apply_rules(module, options.rules, log)
    if options.log:
        for event in log.events:
            print(event)
    text = print_module(module, sources=sources)
    if options.output is not None:
        write_text(options.output, text)
    if options.print:
        sys.stdout.write(text)
    if not (options.print or options.output or options.print_ir or options.log):
        _summary(module)
    return 0


def _apply_rules(module: Module, names: str, log: Any) -> Module:
    from tkcc.ir.rewrite.driver import apply_rule
    from tkcc.ir.rewrite.rule import get_rule

    for text in filter(None, names.split(",")):
        name, _, choice = text.partition(":")
        rule = get_rule(name)
        module, _ = apply_rule(module, rule, None, _options_of(rule, choice), log)
    return module


def _options_of(rule: Any, choice: str) -> dict[str, Any]:
    """`unroll_scan:5` sets the rule's only option."""
    if not choice:
        return {}
    if len(rule.options) != 1:
        raise TkccError(
            f"rule {rule.name} has the options {dict(rule.options)}", remedy="name:value"
        )
    (name, values) = next(iter(rule.options.items()))
    matching = [value for value in values if str(value) == choice]
    if not matching:
        raise TkccError(f"{rule.name}: {name} is {choice!r}", remedy=f"use one of {values}")
    return {name: matching[0]}


def _summary(module: Module) -> None:
    from tkcc.ir.cost import function_cost
    from tkcc.ir.hashing import module_hash

    table = RichTable(
        title=f"{shown(module.name)}  {module_hash(module)[:12]}", title_justify="left"
    )
    for column in ("function", "ops", "inputs", "state", "FLOPs", "bytes"):
        table.add_column(column, justify="left" if column == "function" else "right")
    for name, function in module.functions.items():
        cost = function_cost(function)
        counts = (
            str(function.size()),
            str(len(function.inputs)),
            str(len(function.inputs_of("state"))),
        )
        table.add_row(shown(name), *counts, human(cost.flops), human(cost.bytes, "B"))
    console(stderr=False).print(table)
    total = sum(type_.bytes for type_ in module.parameters.values())
    print(
        f"{len(module.parameters)} parameters, {human(total, 'B')}; tkcc lower --print shows the IR"
    )


def _add_compile(commands: Any) -> None:
    parser = commands.add_parser(
        "compile",
        help="compile a model for one target, and report what runs how",
        description="Compile a model for one target. TPU targets need no TPU (pip install "
        "'tkcc[tpu]').",
        epilog="example: tkcc compile smollm2-135m --target xla:tpu-v6e --report",
    )
    add_model(parser)
    parser.add_argument("--target", default="xla:cpu", help="backend:chip (xla:cpu)")
    parser.add_argument("--rules", default="", help="rules to apply first, in order")
    parser.add_argument("--candidate", type=Path, help="a candidate.json to replay first")
    parser.add_argument("--schedule", type=Path, help="a JSON file: group label -> kernel, config")
    parser.add_argument("--report", action="store_true", help="show op by op what ran how")
    parser.add_argument("--sources", type=Path, help="write StableHLO, HLO and kernels here")
    parser.set_defaults(run=_compile)


def _compile(options: argparse.Namespace) -> int:
    from tkcc.api import compile as compile_module
    from tkcc.backends.schedule import Schedule
    from tkcc.candidate import load_candidate, replay, schedule_of
    from tkcc.files import read_text
    from tkcc.ir.rewrite.driver import Log
    from tkcc.workloads import load_module

    module = load_module(options.model, shape_of(options), options.dtype)
    schedule = Schedule()
    if options.candidate is not None:
        candidate = load_candidate(options.candidate)
        module, schedule = replay(candidate, module), schedule_of(candidate)
    module = _apply_rules(module, options.rules, Log())
    if options.schedule is not None:
        schedule = Schedule.parse(read_text(options.schedule, "schedule"))
    with console().status(f"compiling {shown(options.model)} for {options.target}"):
        program = compile_module(module, options.target, schedule)
    if options.sources is not None:
        for name, text in program.sources.items():
            write_text(options.sources / f"{name.replace('/', '_')}.txt", text)
    if options.report:
        print(program.report_text())
    _print_costs(program)
    return 0


def _print_costs(program: Any) -> None:
    table = RichTable(
        title=f"{shown(program.module.name)} on {program.target}", title_justify="left"
    )
    for column in ("function", "FLOPs", "bytes moved", "memory need", "time by compiler"):
        table.add_column(column, justify="left" if column == "function" else "right")
    for name in program.functions:
        cost = program.costs[name]
        guess = "" if cost.seconds is None else f"{cost.seconds * 1e3:.3f} ms"
        sizes = (human(cost.flops), human(cost.bytes, "B"), human(cost.peak_bytes, "B"))
        table.add_row(shown(name), *sizes, guess)
    console(stderr=False).print(table)
    sources = dict.fromkeys(str(program.costs[name].provenance) for name in program.functions)
    print(f"{'; '.join(sources)}. Compiled in {program.compile_seconds:.1f} s.")


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare targets in one table",
        description="Compile a model for several targets; time it where the device is here. "
        "Measured and estimated times stand in different columns.",
        epilog="example: tkcc compare smollm2-135m --targets xla:cpu,xla:tpu-v5e,xla:tpu7x",
    )
    add_model(parser)
    parser.add_argument("--targets", required=True, help="comma-separated targets")
    parser.add_argument("--json", action="store_true", help="print JSON with every provenance")
    parser.add_argument("--no-measure", action="store_true", help="do not run anything")
    parser.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    from tkcc.backends.base import Target
    from tkcc.comparison import compare_targets
    from tkcc.workloads import load_module

    targets = [Target.parse(text) for text in options.targets.split(",")]
    module = load_module(options.model, shape_of(options), options.dtype)
    with console().status("comparing") as status:
        table = compare_targets(
            module, targets, measure=not options.no_measure, progress=status.update
        )
    if options.json:
        print(table.json())
    else:
        _print_comparison(table)
    return 1 if all(row.error for row in table.rows) else 0


def _print_comparison(table: Any) -> None:
    rich = RichTable(title=shown(table.module), title_justify="left")
    heads = ("target", "function", "FLOPs", "bytes", "memory", "step, measured", "step, estimated")
    for column in heads:
        rich.add_column(column, justify="left" if column in heads[:2] else "right")
    for row in table.rows:
        if row.error:
            rich.add_row(row.target, f"[red]{shown(row.error)}[/red]")
            continue
        rich.add_row(
            row.target,
            shown(row.function),
            human(row.flops.value),
            human(row.bytes.value, "B"),
            human(row.memory_bytes.value, "B"),
            "" if row.measured_ms.value is None else f"{row.measured_ms.value:.2f} ms",
            "" if row.estimated_ms.value is None else f"{row.estimated_ms.value:.3f} ms",
        )
    console(stderr=False).print(rich)
    for column, lines in table.provenances().items():
        print(f"{column}: {'; '.join(lines)}")


def _models(options: argparse.Namespace) -> int:
    from tkcc.models import registry

    for name in registry.names():
        print(registry.describe(name))
    return 0
