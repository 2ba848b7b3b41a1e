"""Candidates: recipes from a baseline module to a new one, as plain data.

Replaying a candidate applies its rewrites in order at the recorded sites and checks the
structural hash after each, so it gives the same program or an error, never another program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pydantic

from tkcc.backends.schedule import Schedule
from tkcc.files import read_text, write_text
from tkcc.ir.errors import TkccError
from tkcc.ir.graph import Module
from tkcc.ir.hashing import module_hash
from tkcc.ir.rewrite.driver import Log, apply_rule
from tkcc.ir.rewrite.rule import EXACT, get_rule

MAX_STEPS = 10_000


class _Record(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Step(_Record):
    """One rule, where it fired, and the module's hash afterwards."""

    rule: str
    options: dict[str, int | float | str | bool] = {}
    sites: tuple[str, ...]
    module: str


class Workload(_Record):
    """What the candidate was made for: the model's name and the shape of its steps."""

    model: str
    dtype: str = "float32"
    batch: int
    context: int
    prompt: int


class Candidate(_Record):
    """Rewrites in order, and the schedule of the groups that they form."""

    format: Literal["tkcc candidate 1"] = "tkcc candidate 1"
    workload: Workload
    target: str
    baseline: str
    steps: tuple[Step, ...] = pydantic.Field(max_length=MAX_STEPS)
    schedule: dict[str, dict[str, Any]] = {}

    @property
    def result(self) -> str:
        """The hash of the module that replaying gives."""
        return self.steps[-1].module if self.steps else self.baseline

    @property
    def kind(self) -> str:
        """`exact` if every rule is, else `approximate`."""
        kinds = {get_rule(step.rule).kind for step in self.steps}
        return EXACT if kinds <= {EXACT} else "approximate"

    def title(self) -> str:
        """The rules in order: `merge_qkv + unroll_scan(k=2)`."""
        return " + ".join(map(step_title, self.steps)) or "baseline"

    def save(self, path: Path) -> None:
        """Write it as JSON, atomically. Raises TkccError."""
        write_text(path, self.model_dump_json(indent=2) + "\n")


def step_title(step: Step) -> str:
    options = ", ".join(f"{key}={value}" for key, value in step.options.items())
    return f"{step.rule}({options})" if options else step.rule


def load_candidate(path: Path) -> Candidate:
    """Read a candidate. Raises TkccError that names the first thing that is wrong."""
    try:
        return Candidate.model_validate_json(read_text(path, "candidate", 16 << 20))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise TkccError(
            f"{path.name} is not a candidate: {place}: {first['msg']}",
            where=str(path),
            remedy="use the candidate.json of a tkcc optimize run",
        ) from error


def extend(
    module: Module, rule: str, options: dict[str, Any] | None = None, sites: Any = None
) -> tuple[Module, Step | None]:
    """Apply a rule (at all its sites, or those given); the step is None if it does not apply."""
    chosen = get_rule(rule).resolve(options)
    changed, fired = apply_rule(module, get_rule(rule), sites, chosen)
    if not fired:
        return module, None
    return changed, Step(rule=rule, options=chosen, sites=tuple(fired), module=module_hash(changed))


def replay(
    candidate: Candidate, baseline: Module, *, until: int | None = None, log: Log | None = None
) -> Module:
    """The module that the candidate makes of its baseline, after `until` steps (None: all).

    Raises TkccError if the baseline or a step differs from what was recorded.
    """
    if module_hash(baseline) != candidate.baseline:
        raise TkccError(
            f"the baseline's hash is {module_hash(baseline)[:12]}, the candidate was made for "
            f"{candidate.baseline[:12]}",
            remedy="use the same model, shapes and versions of tkcc and JAX, or optimize again",
        )
    module = baseline
    for number, step in enumerate(candidate.steps[:until], 1):
        module, _ = apply_rule(module, get_rule(step.rule), step.sites, step.options, log)
        if module_hash(module) != step.module:
            raise TkccError(
                f"step {number} ({step.rule}) gives {module_hash(module)[:12]}, the candidate "
                f"recorded {step.module[:12]}",
                remedy="the rule has changed since; optimize again",
            )
    return module


def schedule_of(candidate: Candidate) -> Schedule:
    return Schedule.of(candidate.schedule)
