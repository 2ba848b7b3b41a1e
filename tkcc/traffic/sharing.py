"""How much of the prompts was seen before: the prefix tree of a trace, in a few figures."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import pydantic

from tkcc.traffic.quantiles import Quantiles, rank_correlation
from tkcc.traffic.records import TrafficRequest

CAPACITIES = (512_000, 5_120_000, 25_600_000)  # tokens
_COMMON = 0.05  # of the requests (or sessions) begin with a block: it is a shared root
_COMMON_LEAST = 8

Block = tuple[int, int]  # block size, hash


class Root(pydantic.BaseModel):
    """A beginning that many conversations share, such as a system prompt."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    share: float = pydantic.Field(gt=0, le=1)  # of the requests that start a conversation
    tokens: int = pydantic.Field(gt=0)


class Sharing(pydantic.BaseModel):
    """The prefix tree in figures. Shares are of 1; lengths in tokens.

    `share` is the part of all prompt tokens that an earlier prompt began with, given memory
    without end; `at_capacity` with so many tokens of it, the least recently used blocks forgotten.
    A request `continues` if it shares more than a root with an earlier one. `reused` and `new` are
    those requests' lengths, `fresh` those of the others. `gaps` are the seconds since the request
    whose prompt was continued. `turns` counts requests from the conversation's first.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    share: float = pydantic.Field(ge=0, le=1)
    at_capacity: dict[int, float] = {}
    block_size: int = pydantic.Field(gt=0)
    continues: float = pydantic.Field(ge=0, le=1)
    roots: tuple[Root, ...] = ()
    turns: Quantiles
    fresh: Quantiles | None
    reused: Quantiles | None
    new: Quantiles | None
    reused_new_correlation: float = pydantic.Field(default=0.0, ge=-1, le=1)
    gaps: Quantiles | None


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """What one prompt shares with earlier ones.

    `parent` is the last request that began with all of it. `turn` is one more than that of the
    request that began with all of it first.
    """

    reused_tokens: int
    root_tokens: int
    parent: int | None
    turn: int

    @property
    def continues(self) -> bool:
        return self.reused_tokens > self.root_tokens


def blocks_of(request: TrafficRequest) -> list[Block]:
    return [(request.block_size, key) for key in request.block_hashes]


def knows_sharing(requests: Sequence[TrafficRequest]) -> bool:
    """Whether the trace tells anything of prefixes."""
    return any(r.block_hashes or r.reused_tokens is not None for r in requests)


def match_prefixes(requests: Sequence[TrafficRequest]) -> list[Match]:
    """What each request shares with those before it, given memory without end."""
    common = _common_blocks(requests)
    owner: dict[Block, int] = {}  # the last request with a block
    maker: dict[Block, int] = {}  # the first one
    matches: list[Match] = []
    for number, request in enumerate(requests):
        blocks = blocks_of(request)
        known = _leading(blocks, owner)
        rooted = min(_leading(blocks, common), known)
        parent = owner[blocks[known - 1]] if known > rooted else None
        turn = matches[maker[blocks[known - 1]]].turn + 1 if parent is not None else 1
        matches.append(_match(request, known, rooted, parent, turn))
        owner.update(dict.fromkeys(blocks, number))
        maker.update(dict.fromkeys(blocks[known:], number))
    return matches


def _match(
    request: TrafficRequest, known: int, rooted: int, parent: int | None, turn: int
) -> Match:
    limit, size = request.input_tokens, request.block_size
    reused = min(known * size, limit) if request.reused_tokens is None else request.reused_tokens
    rooted = min(rooted * size, limit)
    return Match(min(reused, limit), rooted, parent, request.turn or turn)


def _leading(blocks: Sequence[Block], known: collections.abc.Container[Block]) -> int:
    return next((i for i, block in enumerate(blocks) if block not in known), len(blocks))


def _common_blocks(requests: Sequence[TrafficRequest]) -> set[Block]:
    """Blocks that many conversations begin with, however long each of them is."""
    named = [(r.session or str(i), r) for i, r in enumerate(requests) if r.block_hashes]
    least = max(_COMMON_LEAST, _COMMON * len({name for name, _ in named}))
    common: set[Block] = set()
    depth = 0
    while named:  # a block that few begin with ends the search there
        users: dict[Block, set[str]] = collections.defaultdict(set)
        for name, request in named:
            users[request.block_size, request.block_hashes[depth]].add(name)
        kept = {block for block, names in users.items() if len(names) >= least}
        common |= kept
        named = [(name, r) for name, r in named if _goes_on(r, depth, kept)]
        depth += 1
    return common


def _goes_on(request: TrafficRequest, depth: int, kept: set[Block]) -> bool:
    block = (request.block_size, request.block_hashes[depth])
    return block in kept and len(request.block_hashes) > depth + 1


def sharing_of(requests: Sequence[TrafficRequest], matches: Sequence[Match]) -> Sharing | None:
    """The figures; None if the trace does not tell."""
    if not knows_sharing(requests):
        return None
    pairs = list(zip(requests, matches, strict=True))
    going = [(r, m) for r, m in pairs if m.continues]
    fresh = [r.input_tokens for r, m in pairs if not m.continues]
    reused = [m.reused_tokens for _, m in going]
    new = [r.input_tokens - m.reused_tokens for r, m in going]
    return Sharing(
        share=sum(m.reused_tokens for m in matches) / sum(r.input_tokens for r in requests),
        at_capacity=_at_capacities(requests),
        block_size=max(r.block_size for r in requests) or 1,
        continues=len(going) / len(pairs),
        roots=_roots([m for _, m in pairs if not m.continues]),
        turns=Quantiles.of([m.turn for m in matches]),
        fresh=_maybe(fresh),
        reused=_maybe(reused),
        new=_maybe(new),
        reused_new_correlation=round(rank_correlation(reused, new), 4),
        gaps=_maybe(_gaps(requests, matches)),
    )


def _maybe(sample: Sequence[float]) -> Quantiles | None:
    return Quantiles.of(sample) if sample else None


def _gaps(requests: Sequence[TrafficRequest], matches: Sequence[Match]) -> list[float]:
    found = [
        request.arrival - requests[match.parent].arrival
        for request, match in zip(requests, matches, strict=True)
        if match.parent is not None
    ]
    return [gap for gap in found if gap >= 0]


def _roots(fresh: Sequence[Match]) -> tuple[Root, ...]:
    """By length. Requests of equal root length count as one root, the first use included."""
    lengths = collections.Counter(m.root_tokens for m in fresh if m.root_tokens)
    kept = [(n, count) for n, count in lengths.most_common(16) if count >= _COMMON_LEAST]
    return tuple(Root(share=count / len(fresh), tokens=n) for n, count in kept)


def _at_capacities(requests: Sequence[TrafficRequest]) -> dict[int, float]:
    if any(r.reused_tokens is not None for r in requests):
        return {}  # the recorded reuse includes prompts that the trace does not have
    return {tokens: round(reuse_at_capacity(requests, tokens), 5) for tokens in CAPACITIES}


def reuse_at_capacity(requests: Sequence[TrafficRequest], tokens: int) -> float:
    """The share of prompt blocks that a cache of so many tokens has, in leading order.

    Blocks are used in the prompt's order, and the least recently used block goes first, as plain
    LRU over blocks does.
    """
    memory: collections.OrderedDict[Block, None] = collections.OrderedDict()
    hits = total = 0
    for request in requests:
        blocks = blocks_of(request)
        hits += _leading(blocks, memory)
        total += len(blocks)
        for block in blocks:
            memory[block] = None
            memory.move_to_end(block)
        while len(memory) * (request.block_size or 1) > tokens:
            memory.popitem(last=False)
    return hits / total if total else 0.0
