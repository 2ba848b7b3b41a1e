"""The process that holds libtpu's compiler: a request as JSON on stdin, an answer on stdout.

Started by `tkcc.backends.xla.tpu` only. Whatever libtpu prints goes to stderr.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import os
import re
import sys
import time
from typing import Any

import jax
from jax.experimental import topologies

from tkcc.backends import catalogue
from tkcc.backends.base import Costs, Schedule, Target
from tkcc.backends.xla import options
from tkcc.backends.xla.compile import Settings, compile_function
from tkcc.backends.xla.costs import compiler_costs
from tkcc.backends.xla.placement import place_module
from tkcc.ir.errors import BackendError, TkccError
from tkcc.ir.text import parse_module

_OUT_OF_HBM = re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def main() -> None:
    # Only the answer may reach stdout, and libtpu writes there from C++.
    answer = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    jax.config.update("jax_enable_x64", request["x64"])  # type: ignore[no-untyped-call]
    found = {"jobs": [_answer(job) for job in request["jobs"]]}
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump(found, out)


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return _compile(job)
    except TkccError as error:
        return {"error": {"what": error.what, "where": error.where, "remedy": error.remedy}}


def _compile(job: dict[str, Any]) -> dict[str, Any]:
    target, schedule = Target.parse(job["target"]), Schedule.parse(job["schedule"])
    module = parse_module(job["module"], "the request")
    placements = place_module(module, schedule, target)
    settings = Settings(_device(target), options.compiler_options(schedule, target))
    by = f"libtpu {importlib.metadata.version('libtpu')}"
    sources: dict[str, str] = {}
    costs: dict[str, Any] = {}
    began = time.perf_counter()
    for name in job["functions"]:
        function, placement = module.functions[name], placements[name]
        try:
            made = compile_function(name, function, placement, settings)
            costs[name] = _plain(compiler_costs(name, made, placement, settings, by))
        except BackendError as error:
            raise _out_of_memory(name, target, error) or error from error
        sources.update(made.sources)
    seconds = time.perf_counter() - began
    return {"sources": sources, "costs": costs, "seconds": seconds, "by": by}


@functools.cache
def _device(target: Target) -> Any:
    """The first device of the smallest topology of the chip: programs are for one device."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name=target.facts["topology"])
    return topology.devices[0]


def _plain(costs: Costs) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(costs) if field.name != "provenance"]
    return {name: getattr(costs, name) for name in fields}


def _out_of_memory(name: str, target: Target, error: BackendError) -> BackendError | None:
    """What XLA's error E1000 (out of HBM at compile time) means; None for another error."""
    found = _OUT_OF_HBM.search(error.what)
    if found is None:
        return None
    needed = float(found[1]) * _UNIT[found[2]]
    available = float(found[3]) * _UNIT[found[4]]
    return BackendError(
        f"{name} needs {_gib(needed)} of HBM on one device, and {target} has {_gib(available)}",
        remedy=f"{_larger(needed)}split the model over devices, quantise weights or cache, or "
        "choose a smaller batch or context",
    )


def _gib(count: float) -> str:
    return f"{count / (1 << 30):.2f} GiB"


def _larger(needed: float) -> str:
    usable = {
        chip: facts["measured"]["hbm_usable_bytes"]["value"]
        for chip, facts in catalogue.chips("xla").items()
        if facts["platform"] == "tpu"
    }
    large = [f"xla:{chip}" for chip, size in usable.items() if size >= needed]
    return f"it fits {' or '.join(large)}; else " if large else ""


if __name__ == "__main__":
    main()
