"""Profiles that come with tkcc: figures computed from public traces, which are not included.

`benchmarks/compute_profiles.py` computes them again; each names its source and licence.
"""

from __future__ import annotations

import importlib.resources

from tkcc.ir.errors import TkccError
from tkcc.traffic.profile import TrafficProfile

NAMES = ("chat", "code", "long-conversation", "agentic-coding")


def built_in_names() -> tuple[str, ...]:
    return NAMES


def built_in(name: str) -> TrafficProfile:
    """One of `built_in_names()`. Raises TkccError for another name."""
    if name not in NAMES:
        raise TkccError(
            f"there is no built-in traffic profile {name!r}", remedy=f"use {', '.join(NAMES)}"
        )
    file = importlib.resources.files(__name__).joinpath(f"{name}.json")
    return TrafficProfile.parse(file.read_text(encoding="utf-8"), f"{name}.json")
