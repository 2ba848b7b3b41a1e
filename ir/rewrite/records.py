"""The records of a rule as data: what `tkcc.ir.rewrite.pattern` parses rule text to."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from tkcc.ir.rewrite.expression import Expression


@dataclasses.dataclass(frozen=True)
class TypePattern:
    """dtype (a name or a symbol), leading symbol ("" for none), sizes."""

    dtype: str
    lead: str
    sizes: tuple[int | str, ...]
    at: int = dataclasses.field(default=0, compare=False)  # place in the text, for errors


@dataclasses.dataclass(frozen=True)
class PatternNode:
    """One line of `match` or `replace`. With op "" the line renames: `%y = %x`."""

    results: tuple[str, ...]
    op: str
    operands: tuple[str, ...]
    optional: tuple[tuple[str, str], ...]
    attributes: tuple[tuple[str, Expression], ...]
    any_attributes: bool
    at: int = dataclasses.field(default=0, compare=False)

    @property
    def read(self) -> tuple[str, ...]:
        """The names of all values that the line reads."""
        return (*self.operands, *(value for _, value in self.optional))


@dataclasses.dataclass(frozen=True)
class Condition:
    """`name(arguments)`; values are given as `%name` strings, the rest as expressions."""

    name: str
    arguments: tuple[str | Expression, ...]
    at: int = dataclasses.field(default=0, compare=False)

    @property
    def values(self) -> list[str]:
        """The names of the values that stand as arguments."""
        return [item[1:] for item in self.arguments if isinstance(item, str)]

    @property
    def expressions(self) -> list[Expression]:
        return [item for item in self.arguments if isinstance(item, Expression)]

    @property
    def named(self) -> set[str]:
        """The names of all values that it speaks of, also inside `dim(%x, 0)`."""
        return set(self.values).union(*(item.values() for item in self.expressions))


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A parsed rule."""

    name: str
    kind: str
    about: str
    given: tuple[tuple[str, TypePattern], ...]
    match: tuple[PatternNode, ...]
    conditions: tuple[Condition, ...]
    replace: tuple[PatternNode, ...]
    choices: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    samples: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    lets: tuple[tuple[str, Expression], ...] = ()  # sizes that follow from others
    error: float = 0.0  # for approximate rules: the largest relative error that is allowed
    text: str = ""

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names that the replacement redefines, in pattern order."""
        made = {name for node in self.replace for name in node.results}
        return tuple(n for node in self.match for n in node.results if n in made)

    @functools.cached_property
    def anchor(self) -> int:
        """Position of the first pattern node with a replaced result."""
        outputs = set(self.outputs)
        return next(i for i, node in enumerate(self.match) if outputs & set(node.results))

    @functools.cached_property
    def suspects(self) -> tuple[str, ...]:
        """Matched values that the replacement reads and that an output might be computed from.

        What every output is computed from in the pattern cannot itself depend on an output.
        """
        above = [self._above(name) for name in self.outputs]
        made: set[str] = set()
        found: dict[str, None] = {}
        for line in self.replace:
            found.update(dict.fromkeys(name for name in line.read if name not in made))
            made |= set(line.results)
        return tuple(name for name in found if not all(name in names for names in above))

    def _above(self, output: str) -> set[str]:
        """The names that the output is computed from, in the match."""
        wanted, found = {output}, set[str]()
        for line in reversed(self.match):
            if wanted & set(line.results):
                wanted |= set(line.read)
                found |= set(line.read)
        return found
