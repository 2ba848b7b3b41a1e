"""What a scheduler works with: its limits, the requests on their way, and the plan of one step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tkcc.engine.requests import Request

DECODE, EXTEND = "decode", "extend"

# What a step costs beside its tokens (reading the weights, above all), in tokens.
STEP_COST = 32


@dataclasses.dataclass(frozen=True)
class Limits:
    """Sizes of the engine: buckets as in `tkcc.engine.programs.ServeShape`."""

    context: int
    page_size: int
    pages: int
    decode: tuple[int, ...]
    extend: tuple[tuple[int, int], ...]
    reach: tuple[int, ...]
    vocabulary: int
    end_tokens: frozenset[int] = frozenset()
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        # otherwise a request that is let in might never end
        assert self.pages > -(-self.context // self.page_size), "the longest request has no pages"
        assert max(self.reach) >= self.context


@dataclasses.dataclass(eq=False)
class Row:
    """A request on its way: `tokens` is prompt and answer, of which the cache holds `computed`."""

    request: Request
    tokens: list[int]
    computed: int = 0
    pages: list[int] = dataclasses.field(default_factory=list)
    hashes: list[bytes] = dataclasses.field(default_factory=list)
    cached: int = 0
    started: bool = False  # its first pages were handed out once
    apart: bool = False  # its pages are for nobody else: see `Scheduler.stop_sharing`

    @property
    def answered(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet."""
        return len(self.tokens) - self.computed

    @property
    def reading(self) -> bool:
        """More than its newest token is not in the cache, or it has no answer yet."""
        return self.pending > 1 or self.answered == 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """One step: `counts[i]` tokens of `rows[i]` from position `starts[i]` on, in a bucket.

    `batch` rows of `length` tokens that reach back `reach` tokens are computed; rows beyond
    `rows` are padding. `draws[i]` says whether row i gets a token from its last logits.
    """

    kind: str
    batch: int
    length: int
    reach: int
    rows: tuple[Row, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    draws: tuple[bool, ...]


def extend_bucket(buckets: Sequence[tuple[int, int]], pending: Sequence[int]) -> tuple[int, int]:
    """The bucket that computes most tokens of use for what it costs."""

    def worth(bucket: tuple[int, int]) -> float:
        batch, length = bucket
        useful = sum(min(count, length) for count in pending[:batch])
        return useful / (STEP_COST + batch * length)

    return max(buckets, key=worth)
