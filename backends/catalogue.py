"""Which backends there are, and which chips each knows, without importing any of them.

A backend is a package in this folder, or one that an installed distribution announces under the
entry point group `tkcc.backends`. Its folder holds `chips.json`: chip name -> facts about it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import json
import pkgutil
from pathlib import Path
from typing import Any

from tkcc.ir.errors import BackendError

ENTRY_POINTS = "tkcc.backends"
CHIPS_FILE = "chips.json"


@functools.cache
def packages() -> dict[str, str]:
    """Backend name -> import name of its package, in-tree ones first."""
    here = [str(Path(__file__).parent)]
    found = {
        item.name: f"tkcc.backends.{item.name}"
        for item in pkgutil.iter_modules(here)
        if item.ispkg and (Path(here[0]) / item.name / CHIPS_FILE).is_file()
    }
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        found.setdefault(entry.name, entry.value)
    return found


def package(backend: str) -> str:
    """The import name of a backend's package. Raises BackendError for an unknown backend."""
    known = packages()
    if backend not in known:
        raise BackendError(
            f"unknown backend {backend!r}", remedy=f"use one of {', '.join(sorted(known))}"
        )
    return known[backend]


@functools.cache
def chips(backend: str) -> dict[str, dict[str, Any]]:
    """Chip name -> facts, from the backend's chips.json. Raises BackendError."""
    name = package(backend)
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    for folder in folders:
        path = Path(folder) / CHIPS_FILE
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            return {str(chip): dict(facts) for chip, facts in content["chips"].items()}
    raise BackendError(
        f"backend {backend!r} ({name}) has no {CHIPS_FILE}",
        remedy="a backend's folder lists its chips there; see docs/add-a-chip.md",
    )


def load(backend: str) -> Any:
    """Import the backend's package."""
    return importlib.import_module(package(backend))
