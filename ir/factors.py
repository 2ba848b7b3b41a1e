"""How an op may be split: einsum-like factors, `"m k, k n -> m n"`.

Each letter group is an index of the op's iteration space. An index in the result may be split
with no communication; an index that is only in operands is a reduction, and splitting it leaves
partial sums; an index written with `!` may not be split at all.
"""

from __future__ import annotations

import dataclasses

from tkcc.ir.errors import IRError

WHOLE = "!"


@dataclasses.dataclass(frozen=True)
class Factors:
    """Index names per operand dimension and per result dimension."""

    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]

    @staticmethod
    def parse(text: str) -> Factors:
        """From `"m k, k n -> m n"`. Raises IRError."""
        left, arrow, right = text.partition("->")
        if not arrow:
            raise IRError(f"factors {text!r} have no '->'", remedy='write "m k, k n -> m n"')
        return Factors(_terms(left), _terms(right))

    def __str__(self) -> str:
        left = ", ".join(" ".join(term) for term in self.operands)
        return f"{left} -> {', '.join(' '.join(term) for term in self.results)}"

    @property
    def reduced(self) -> tuple[str, ...]:
        """Indices of operands that no result has; splitting one needs an all-reduce."""
        in_results = {index for term in self.results for index in term}
        found = dict.fromkeys(i for term in self.operands for i in term if i not in in_results)
        return tuple(index for index in found if not index.endswith(WHOLE))

    @property
    def parallel(self) -> tuple[str, ...]:
        """Indices of results that may be split without communication."""
        found = dict.fromkeys(index for term in self.results for index in term)
        return tuple(index for index in found if not index.endswith(WHOLE))


def _terms(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(term.split()) for term in text.split(",")) if text.strip() else ()


def elementwise(operand_ranks: list[int], result_count: int) -> Factors:
    """All operands and results share one shape; scalars (rank 0) go along."""
    rank = max(operand_ranks, default=0)
    indices = tuple(f"d{i}" for i in range(rank))
    operands = tuple(indices if r == rank else () for r in operand_ranks)
    return Factors(operands, (indices,) * result_count)


def batched(rank: int, prefix: str = "b") -> tuple[str, ...]:
    """Names for leading dimensions that go along one to one."""
    return tuple(f"{prefix}{i}" for i in range(rank))
