"""Errors a caller can act on: what is wrong, where, and what to do next."""

from __future__ import annotations


class TkccError(Exception):
    """A mistake in the caller's input.

    `what` says it in the user's terms, `where` names the place (a line of IR, a model path, a
    file), `remedy` says what to do next.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = what, where, remedy
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines += ["    " + line for line in self.where.splitlines()]
        if self.remedy:
            lines.append(f"    remedy: {self.remedy}")
        return "\n".join(lines)


class IRError(TkccError):
    """A node, function or module of the IR that cannot be built."""


class ParseError(TkccError):
    """Text that is not IR (or not a rule)."""


class LoweringError(TkccError):
    """A program that the importer refuses, by name."""


class RuleError(TkccError):
    """A rewrite rule that is malformed, wrong, or too expensive to match."""


class BackendError(TkccError):
    """A target that cannot compile or run a program."""
