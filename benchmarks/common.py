"""What every benchmark shares: the record of where it ran, and saving results."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from tkcc.files import write_text

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("jax", "jaxlib", "flax", "numpy", "libtpu")


def environment() -> dict[str, Any]:
    """Device, versions, commit and date of a run."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "processor": _processor(),
        "python": sys.version.split()[0],
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _commit() -> str:
    """The commit, with `+` if the tree has changes; TKCC_COMMIT names it where there is no git."""
    if os.environ.get("TKCC_COMMIT"):
        return os.environ["TKCC_COMMIT"]
    folder = Path(__file__).parent
    try:
        head = _git("rev-parse", "HEAD", folder=folder)
        changed = _git("status", "--porcelain", "--untracked-files=no", folder=folder)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head[:12] + ("+" if changed else "")


def _git(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return f"{names[0]} x{len(names)}" if names else platform.machine()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def save(name: str, figures: Any) -> Path:
    """Write results/NAME.json and print the figures."""
    path = RESULTS / f"{name}.json"
    text = json.dumps({"environment": environment(), "figures": figures}, indent=2, allow_nan=False)
    write_text(path, text + "\n")
    print(json.dumps(figures, indent=2))
    print(f"saved {path.name}")
    return path
