"""`tkcc rules`: list, show, check."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from tkcc.cli.common import console, shown


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "rules",
        help="list rewrite rules, show one, or check a file of rules",
        description="Rules are data: a pattern and a replacement in IR text. docs/add-a-rule.md "
        "says how to write one.",
    )
    inner = parser.add_subparsers(dest="rules_command", metavar="action", required=True)
    listing = inner.add_parser("list", help="every rule: class, options, what it does")
    listing.add_argument(
        "--raise", action="store_true", dest="raising", help="the import's rules too"
    )
    listing.set_defaults(run=_list)
    show = inner.add_parser("show", help="a rule's text")
    show.add_argument("name")
    show.set_defaults(run=_show)
    check = inner.add_parser(
        "check",
        help="verify the rules of a file",
        description="Types must infer, and both sides must agree on random inputs over several "
        "shapes and dtypes. Prints the largest relative error by dtype; exit code 1 if a rule "
        "is wrong, 2 if one is malformed or too expensive to match.",
    )
    check.add_argument("file", type=Path)
    check.add_argument("--trials", type=int, default=12, help="cases per choice of options (12)")
    check.add_argument("--seed", type=int, default=0)
    check.set_defaults(run=_check)


def _list(options: argparse.Namespace) -> int:
    from tkcc.ir.rewrite.rule import all_rules

    table = RichTable()
    for column in ("rule", "class", "options", "what it does"):
        table.add_column(column)
    for rule in all_rules().values():
        if rule.group == "raise" and not options.raising:
            continue
        choices = ", ".join(f"{key}: {values}" for key, values in rule.options.items())
        table.add_row(rule.name, rule.kind, shown(choices), shown(rule.about.splitlines()[0]))
    console(stderr=False).print(table)
    return 0


def _show(options: argparse.Namespace) -> int:
    from tkcc.ir.rewrite.rule import PatternRule, get_rule

    rule = get_rule(options.name)
    if isinstance(rule, PatternRule) and rule.pattern is not None:
        print(rule.pattern.text)
    else:
        print(f"{rule.name} ({rule.kind}), a Python rule\n\n{rule.about}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from tkcc.files import read_text
    from tkcc.ir.rewrite.check import check_rule
    from tkcc.ir.rewrite.pattern import parse_rules

    patterns = parse_rules(read_text(options.file, "rule file", 1 << 20), str(options.file))
    right = True
    for pattern in patterns:
        with console().status(f"checking {pattern.name}"):
            report = check_rule(pattern, trials=options.trials, seed=options.seed)
        right = right and report.ok
        errors = ", ".join(f"{key} {value:.1e}" for key, value in sorted(report.worst().items()))
        verdict = "ok" if report.ok else "WRONG"
        print(f"{verdict}  {pattern.name} ({pattern.kind}): {len(report.trials)} cases, {errors}")
        for trial in [trial for trial in report.trials if not trial.ok][:3]:
            shown = ", ".join(f"%{name}: {text}" for name, text in trial.types.items())
            print(f"    error {trial.error:.2e} > {trial.allowed:.2e} with {shown}")
    return 0 if right else 1
