"""The command line: `tkcc <command>`."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 an answer of no, 2 bad input, 130 interrupted."""
    from tkcc.cli.main import run

    return run(arguments)
