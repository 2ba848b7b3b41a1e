"""Compiling for TPU without one: libtpu's compiler, in a process of its own.

libtpu prints, holds a lock file and reads the environment when it starts, so it never starts in the
user's process. A child gets modules as text and gives back figures and sources as JSON. Several
modules, targets and schedules go to one child: starting it costs more than compiling a small one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import tkcc
from tkcc.backends.base import Costs, Provenance, Schedule, Target
from tkcc.backends.xla.platform import libtpu_installed
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import Module
from tkcc.ir.text import print_module

TIME_LIMIT = 600.0  # seconds for one child
CHILD = "tkcc.backends.xla.tpu_child"

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "TPU_LIBRARY_PATH")
_FIXED = {
    "JAX_PLATFORMS": "cpu",  # the TPU is a description only
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any valid one; the topology is what counts
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a second child fails on libtpu's lock file
}


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One module to compile for one target; `functions` are all that are to be compiled."""

    module: Module
    target: Target
    schedule: Schedule
    functions: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """What the child found: sources by name, costs by function, seconds it compiled."""

    sources: dict[str, str]
    costs: dict[str, Costs]
    seconds: float


def compile_jobs(
    jobs: Sequence[Job], time_limit: float = TIME_LIMIT
) -> list[Answer | BackendError]:
    """Compile every job in one child process. A job that fails gives its error in its place.

    Raises BackendError if libtpu is missing, or if the child dies or exceeds `time_limit` seconds.
    """
    if not libtpu_installed():
        raise BackendError(
            "compiling for TPU needs libtpu, which is not installed",
            remedy="pip install 'tkcc[tpu]' (Linux, x86-64; no TPU is needed)",
        )
    answers = json.loads(_run(json.dumps(_request(jobs)), time_limit))["jobs"]
    return [_read(answer) for answer in answers]


def _request(jobs: Sequence[Job]) -> dict[str, Any]:
    return {
        "x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "jobs": [
            {
                "module": print_module(job.module),
                "target": str(job.target),
                "schedule": job.schedule.text,
                "functions": list(job.functions),
            }
            for job in jobs
        ],
    }


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The child's whole environment: a few variables of ours, and libtpu's."""
    paths = [str(Path(tkcc.__file__).parent.parent), environment.get("PYTHONPATH", "")]
    passed = {name: environment[name] for name in _PASSED_ON if name in environment}
    return {**passed, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **_FIXED}


def _run(request: str, time_limit: float) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", CHILD],
            input=request,
            capture_output=True,
            text=True,
            env=child_environment(os.environ),
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BackendError(
            f"the TPU compiler took longer than {time_limit:g} seconds and was stopped",
            remedy="compile fewer or smaller functions at a time, or raise the time limit",
        ) from None
    if done.returncode != 0:
        raise BackendError(
            f"the TPU compiler's process ended with {done.returncode}",
            where=done.stderr[-2000:],
            remedy="the lines above are its last words; a lower config may avoid a compiler crash",
        )
    return done.stdout


def _read(answer: dict[str, Any]) -> Answer | BackendError:
    if "error" in answer:
        error = answer["error"]
        return BackendError(error["what"], where=error["where"], remedy=error["remedy"])
    provenance = Provenance.estimated(answer["by"])
    costs = {name: Costs(provenance, **figures) for name, figures in answer["costs"].items()}
    return Answer(answer["sources"], costs, answer["seconds"])
