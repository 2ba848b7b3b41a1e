"""Where each op of a function runs: in a kernel that the schedule asks for, or in XLA."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tkcc.backends.base import Ran, Schedule, Site, Target
from tkcc.backends.xla import options
from tkcc.backends.xla.kernel_calls import GENERAL, PREFIX, KernelCall, fitting, kernel_call
from tkcc.ir.errors import BackendError
from tkcc.ir.graph import Function, Module, Node
from tkcc.ir.lax_op import LaxOp
from tkcc.ir.op import lookup


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """A function's kernels by node, its report, and the schedule's keys that it used."""

    calls: dict[Node, KernelCall]
    report: tuple[Ran, ...]
    used: frozenset[str]

    def override(self, node: Node, operands: Sequence[Any]) -> Sequence[Any] | None:
        """For `evaluate`: a kernel's results in the place of the node's own."""
        call = self.calls.get(node)
        return None if call is None else call(operands)

    def sources(self) -> dict[str, Callable[[], str]]:
        """Makers of the kernels' texts by name, `decode.mlp.pallas`."""
        found: dict[str, Callable[[], str]] = {}
        for node, call in self.calls.items():
            name = f"{call.site.function}.{call.site.label or call.site.key}"
            if f"{name}.pallas" in found:
                name = f"{name}@{call.site.key}"
            found[f"{name}.pallas"] = functools.partial(call.source, node)
        return found


def place_module(module: Module, schedule: Schedule, target: Target) -> dict[str, Placement]:
    """Every function's placement. Raises BackendError for an entry that no function uses."""
    placements = {name: place(name, f, schedule, target) for name, f in module.functions.items()}
    used = frozenset[str]().union(*(item.used for item in placements.values()))
    unknown = [key for key in schedule.keys if key not in used and key != options.KEY]
    if unknown:
        labels = sorted(_labels(module))
        listed = f"has the groups {', '.join(labels)}" if labels else "has no group"
        raise BackendError(
            f"the schedule has entries for {unknown}, which module {module.name} does not have",
            remedy=f"it {listed}; sites are written as in a program's report (decode:4.0.2)",
        )
    return placements


def _labels(module: Module) -> set[str]:
    return {
        node.attribute("label")
        for function in module.functions.values()
        for node in function.walk()
        if node.op == "group"
    }


def place(name: str, function: Function, schedule: Schedule, target: Target) -> Placement:
    """The placement of one function. Raises BackendError for an entry that does not fit."""
    calls: dict[Node, KernelCall] = {}
    seen: dict[Node, str] = {}
    report: list[Ran] = []
    used: set[str] = set()
    for node, site, inside in _sites(function, name, (), "", calls):
        key, entry = schedule.get(*_keys(node, site)) or ("", {})
        if seen.setdefault(node, key) != key:
            raise BackendError(
                f"the schedule treats {site} unlike another place that shares its region",
                remedy="schedule both by the group's label",
            )
        if key:
            used.add(key)
        if entry and entry != {"kernel": GENERAL}:
            _check_reachable(site, inside)
            calls[node] = kernel_call(node, site, entry, target)
        report.append(_line(node, site, calls.get(node), bool(key)))
    return Placement(calls, tuple(report), frozenset(used))


def _sites(
    function: Function, name: str, path: tuple[int, ...], inside: str, calls: dict[Node, Any]
) -> Iterator[tuple[Node, Site, str]]:
    """Nodes in order with their sites, down into regions; not into a node that became a kernel.

    `inside` names the lax op whose region the node stands in, if it does.
    """
    for number, node in enumerate(function.nodes):
        here = (*path, number)
        yield node, Site(name, here, _label(node)), inside
        if node in calls:
            continue
        within = inside or (node.op if isinstance(lookup(node.op), LaxOp) else "")
        for index, region in enumerate(node.regions):
            yield from _sites(region, name, (*here, index), within, calls)


def _label(node: Node) -> str:
    return str(node.attribute("label")) if node.op == "group" else node.source.path


def _keys(node: Node, site: Site) -> Iterable[str]:
    if node.op != "group":
        return (site.key,)
    return (site.key, f"{site.function}/{site.label}", site.label)


def _check_reachable(site: Site, inside: str) -> None:
    if inside:
        raise BackendError(
            f"no kernel can stand at {site}: it is in a region of {inside}, which JAX traces whole",
            remedy="inline that op, or take the entry out of the schedule",
        )


def _line(node: Node, site: Site, call: KernelCall | None, asked: bool) -> Ran:
    if call is not None:
        return Ran(site, node.op, call.how)
    if node.op != "group":
        return Ran(site, node.op, GENERAL)
    if asked:
        return Ran(site, node.op, GENERAL, "the schedule says so")
    names = [PREFIX + found.kernel for found in fitting(node)]
    known = f"{' and '.join(names)} would compute it" if names else "no kernel computes its body"
    return Ran(site, node.op, GENERAL, f"no entry in the schedule; {known}")
