"""Traffic made from a profile: lengths, arrivals and prefix sharing like those it was made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tkcc.ir.errors import TkccError
from tkcc.traffic.history import Conversation, History
from tkcc.traffic.profile import TrafficProfile
from tkcc.traffic.quantiles import correlated, probits
from tkcc.traffic.records import TrafficRequest
from tkcc.traffic.sharing import Sharing
from tkcc.traffic.text import PlainIds, TokenSource

VOCABULARY = 32_000


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """The first `used` of the `length` tokens of a stretch of text."""

    segment: int
    length: int
    used: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class GeneratedRequest:
    """A request to send. Its tokens are made when asked for, so that many requests fit memory."""

    arrival: float  # seconds
    output_tokens: int
    session: str
    turn: int
    pieces: tuple[Piece, ...]
    source: TokenSource = dataclasses.field(repr=False)
    think: float | None = None  # seconds after the session's last answer

    @property
    def input_tokens(self) -> int:
        return sum(piece.used for piece in self.pieces)

    def prompt(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        parts = [self.source(p.segment, p.length)[: p.used] for p in self.pieces]
        return tuple(np.concatenate(parts).tolist())

    def record(self, block_size: int) -> TrafficRequest:
        """As a reader would give it: block hashes without making the tokens."""
        return TrafficRequest(
            arrival=self.arrival,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            session=self.session,
            block_hashes=_hashes(self.pieces, block_size),
            block_size=block_size,
            think=self.think,
        )


def generate(
    profile: TrafficProfile,
    count: int,
    *,
    seed: int = 0,
    rate: float | None = None,
    scale: float = 1.0,
    longest: int | None = None,
    source: TokenSource | None = None,
) -> list[GeneratedRequest]:
    """`count` requests like those of the profile, by arrival; the same for the same arguments.

    `rate` (requests per second) replaces the profile's. `scale` multiplies every length, for small
    models. `longest` bounds prompt and answer together: answers are cut to half of it, then prompts
    to what is left, which changes the distributions. `source` makes the tokens (`Words` or
    `PlainIds`; by default plain ids below 32,000). Requests that share a prefix have its tokens in
    common; sharing below that is an accident of a few tokens.

    A profile that knows of no sharing gives prompts that share nothing. Traffic starts cold: the
    first requests that continue a conversation begin one that is long already. Raises TkccError.
    """
    _check(count, rate, scale, longest)
    rng = np.random.default_rng(seed)
    times = profile.arrivals.draw(count, rng, rate=rate)
    lengths = _lengths(profile, count, rng, scale)
    outputs = _outputs(profile, lengths, rng, scale)
    chosen = PlainIds(VOCABULARY, seed=seed) if source is None else source
    writer = _Writer(profile, rng, scale, profile.arrivals.rate / (rate or profile.arrivals.rate))
    made = []
    for time, length, output in zip(times, lengths, outputs, strict=True):
        answer = output if longest is None else min(output, longest // 2)
        room = None if longest is None else longest - answer
        conversation = writer.write(float(time), length.within(room))
        made.append(_request(conversation, float(time), answer, chosen, writer.think()))
    return made


def _check(count: int, rate: float | None, scale: float, longest: int | None) -> None:
    wrong = ""
    if count < 1:
        wrong = f"count is {count}: at least 1"
    elif rate is not None and not 0 < rate < float("inf"):
        wrong = f"rate is {rate}: above 0"
    elif not 0 < scale < float("inf"):
        wrong = f"scale is {scale}: above 0"
    elif longest is not None and longest < 2:
        wrong = f"longest is {longest}: at least 2"
    if wrong:
        what, _, remedy = wrong.partition(": ")
        raise TkccError(what, remedy=f"give a number {remedy}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Length:
    """A prompt: `reused` tokens of an earlier one (0: a first turn), and `new` ones."""

    reused: int
    new: int
    root: int = 0

    @property
    def total(self) -> int:
        return self.reused + self.new

    def within(self, room: int | None) -> _Length:
        if room is None or self.total <= room:
            return self
        new = min(self.new, max(1, room - self.reused))
        return _Length(min(self.reused, room - new), new, min(self.root, room))


def _lengths(
    profile: TrafficProfile, count: int, rng: np.random.Generator, scale: float
) -> list[_Length]:
    sharing = profile.sharing
    if sharing is None:
        return [_Length(0, int(n)) for n in profile.input.counts(rng.uniform(size=count), scale)]
    going = rng.uniform(size=count) < sharing.continues
    return [
        _going(sharing, rng, scale) if goes else _fresh(profile, sharing, rng, scale)
        for goes in going
    ]


def _going(sharing: Sharing, rng: np.random.Generator, scale: float) -> _Length:
    assert sharing.reused is not None
    assert sharing.new is not None
    uniform = rng.uniform(size=1)
    (reused,) = sharing.reused.counts(uniform, scale)
    tied = correlated(probits(uniform), sharing.reused_new_correlation, rng)
    (new,) = sharing.new.counts(tied, scale)
    return _Length(int(reused), int(new))


def _fresh(
    profile: TrafficProfile, sharing: Sharing, rng: np.random.Generator, scale: float
) -> _Length:
    table = profile.input if sharing.fresh is None else sharing.fresh
    (length,) = table.counts(rng.uniform(size=1), scale)
    draw, root = rng.uniform(), 0
    for known in sharing.roots:
        draw -= known.share
        if draw < 0:
            root = max(1, round(known.tokens * scale))
            break
    return _Length(0, int(length), root)


def _outputs(
    profile: TrafficProfile, lengths: Sequence[_Length], rng: np.random.Generator, scale: float
) -> list[int]:
    ranks = np.array([profile.input.rank(length.total / scale) for length in lengths])
    tied = correlated(probits(ranks), profile.input_output_correlation, rng)
    return [int(n) for n in profile.output.counts(tied, scale)]


class _Writer:
    """Puts prompts together from earlier ones and new text."""

    def __init__(
        self, profile: TrafficProfile, rng: np.random.Generator, scale: float, stretch: float
    ) -> None:
        self.profile, self.rng = profile, rng
        self.stretch = stretch  # of times between turns, as gaps between arrivals stretch
        self.history = History()
        self._segments = 0
        self._roots: dict[int, Piece] = {}
        self._turn = 1

    def write(self, time: float, length: _Length) -> Conversation:
        parent = self._parent(time, length) if length.reused else None
        if parent is None:
            made = self._first(time, length)
        else:
            made = self._next(time, length, parent)
        self._turn = made.turn
        self.history.add(made)
        return made

    def think(self) -> float | None:
        table = self.profile.think
        if table is None or self._turn == 1:
            return None
        return float(table.draw(self.rng.uniform(size=1))[0])

    def _parent(self, time: float, length: _Length) -> Conversation | None:
        sharing = self.profile.sharing
        gap = None
        if sharing is not None and sharing.gaps is not None:
            gap = float(sharing.gaps.draw(self.rng.uniform(size=1))[0]) * self.stretch
        return self.history.find(time, length.reused, gap)

    def _first(self, time: float, length: _Length) -> Conversation:
        pieces = []
        root = min(length.root, length.total)
        if root:
            if length.root not in self._roots:
                self._roots[length.root] = self._text(length.root)
            pieces.append(dataclasses.replace(self._roots[length.root], used=root))
        if length.total > root:
            pieces.append(self._text(length.total - root))
        return Conversation(time, length.total, self.history.next_session(), 1, tuple(pieces))

    def _next(self, time: float, length: _Length, parent: Conversation) -> Conversation:
        kept = min(length.reused, parent.length)
        pieces = (*cut(parent.pieces, kept), self._text(length.total - kept))
        return Conversation(time, length.total, parent.session, parent.turn + 1, pieces)

    def _text(self, length: int) -> Piece:
        self._segments += 1
        return Piece(self._segments, length, length)


def cut(pieces: Sequence[Piece], tokens: int) -> tuple[Piece, ...]:
    """The first `tokens` tokens."""
    kept = []
    for piece in pieces:
        if tokens <= 0:
            break
        kept.append(dataclasses.replace(piece, used=min(piece.used, tokens)))
        tokens -= piece.used
    return tuple(kept)


def _request(
    made: Conversation, time: float, output: int, source: TokenSource, think: float | None
) -> GeneratedRequest:
    return GeneratedRequest(time, output, f"s{made.session}", made.turn, made.pieces, source, think)


def _hashes(pieces: Sequence[Piece], size: int) -> tuple[int, ...]:
    """One per block, the last one partial: over what came before, and which text is in it."""
    hashes: list[int] = []
    state, room = 0, size
    for piece in pieces:
        start = 0
        while start < piece.used:
            took = min(room, piece.used - start)
            state = hash((state, piece.segment, start, took))
            start, room = start + took, room - took
            if not room:
                hashes.append(state)
                room = size
    return tuple(hashes) if room == size else (*hashes, state)
