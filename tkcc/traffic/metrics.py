"""What a replay measured. Formulas as vLLM's serving benchmark and InferenceX define them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tkcc.traffic.profile import Concurrency


@dataclasses.dataclass
class Record:
    """One request as its client saw it; all times in seconds on the replay's clock.

    `due` is when it should have been sent, `sent` when the engine had it. `token_times` are when
    each token was heard. `finish` is stop, length, cancelled or error once it has ended.
    """

    id: str
    input_tokens: int
    due: float
    sent: float
    token_times: list[float] = dataclasses.field(default_factory=list)
    tokens: list[int] = dataclasses.field(default_factory=list)
    cached_tokens: int = 0
    ended: float | None = None
    finish: str = ""
    error: str = ""

    @property
    def completed(self) -> bool:
        return self.finish in ("stop", "length")

    @property
    def time_to_first_token(self) -> float | None:
        """First token's time - due time: waiting to be sent counts, as it does for a client."""
        return self.token_times[0] - self.due if self.token_times else None

    @property
    def time_per_output_token(self) -> float | None:
        """(Last token's time - first token's time) / (tokens - 1); None below two tokens."""
        times = self.token_times
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def latency(self) -> float:
        """End to end: the end's time - due time."""
        assert self.ended is not None
        return self.ended - self.due


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and percentiles (linear between order statistics) of seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> Spread | None:
        """None of an empty sample."""
        if not len(sample):
            return None
        return cls(float(np.mean(sample)), *map(float, np.percentile(sample, (50, 90, 99))))


@dataclasses.dataclass(frozen=True)
class Report:
    """Figures of the completed requests; failed and cancelled ones are counted, not averaged.

    `duration` is from the first due time to the last end of any request. Throughputs are the
    completed requests' tokens per second of it. See `Record` for `ttft`, `tpot` and `e2e`; `itl`
    are the times between successive tokens, of all requests together, as in vLLM's
    `benchmark_serving`. `lateness` is sent - due: if it is long, the replay could not keep up.
    """

    completed: int
    failed: int
    cancelled: int
    duration: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None
    lateness: Spread | None
    interactivity: float | None
    concurrency: Concurrency | None
    errors: dict[str, int]
    records: tuple[Record, ...] = dataclasses.field(repr=False)

    @property
    def output_tokens_per_second(self) -> float:
        return self.output_tokens / self.duration if self.duration else 0.0

    @property
    def total_tokens_per_second(self) -> float:
        """Prompts' and answers' tokens, cached ones included."""
        both = self.input_tokens + self.output_tokens
        return both / self.duration if self.duration else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Prompt tokens that were not computed again / prompt tokens."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @classmethod
    def of(cls, records: Sequence[Record]) -> Report:
        """Of records that have all ended."""
        assert all(r.ended is not None for r in records)
        good = [r for r in records if r.completed]
        return cls(
            completed=len(good),
            failed=sum(r.finish == "error" for r in records),
            cancelled=sum(r.finish == "cancelled" for r in records),
            duration=_duration(records),
            input_tokens=sum(r.input_tokens for r in good),
            output_tokens=sum(len(r.token_times) for r in good),
            cached_tokens=sum(r.cached_tokens for r in good),
            ttft=Spread.of([t for r in good if (t := r.time_to_first_token) is not None]),
            tpot=Spread.of([t for r in good if (t := r.time_per_output_token) is not None]),
            itl=Spread.of([float(t) for r in good for t in np.diff(r.token_times)]),
            e2e=Spread.of([r.latency for r in good]),
            lateness=Spread.of([r.sent - r.due for r in records]),
            interactivity=interactivity(good),
            concurrency=_concurrency(records),
            errors=_errors(records),
            records=tuple(records),
        )

    def to_json(self) -> dict[str, Any]:
        """All figures as plain data, without the requests."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del named["records"]
        for name in ("ttft", "tpot", "itl", "e2e", "lateness"):
            named[name] = None if named[name] is None else dataclasses.asdict(named[name])
        if self.concurrency is not None:
            named["concurrency"] = self.concurrency.model_dump()
        for name in ("output_tokens_per_second", "total_tokens_per_second", "cache_hit_rate"):
            named[name] = getattr(self, name)
        return named

    def text(self) -> str:
        """The figures as a table, times in milliseconds."""
        lines = [
            f"{self.completed} completed, {self.failed} failed, {self.cancelled} cancelled "
            f"in {self.duration:.2f} s",
            f"{self.output_tokens_per_second:,.1f} output tokens/s, "
            f"{self.total_tokens_per_second:,.1f} tokens/s in all, "
            f"{self.cache_hit_rate:.1%} of prompt tokens cached",
            f"{'ms':<10}" + "".join(f"{name:>10}" for name in ("mean", "p50", "p90", "p99")),
        ]
        for name in ("ttft", "tpot", "itl", "e2e", "lateness"):
            if (spread := getattr(self, name)) is not None:
                cells = dataclasses.astuple(spread)
                lines.append(f"{name:<10}" + "".join(f"{1000 * cell:>10.2f}" for cell in cells))
        if self.interactivity is not None:
            lines.append(f"interactivity {self.interactivity:.2f} tokens/s per user (end to end)")
        lines += [f"{count} x {error}" for error, count in self.errors.items()]
        return "\n".join(lines) + "\n"


def interactivity(completed: Sequence[Record]) -> float | None:
    """InferenceX's end-to-end normalised interactivity, tokens/s per user.

    1 / p90(latency / output tokens), the percentile taken over requests before the inversion (so it
    tells of the slow ones), linear between order statistics. None without an answer that took time.
    """
    ratios = [r.latency / len(r.token_times) for r in completed if r.token_times]
    ratios = [ratio for ratio in ratios if ratio > 0]
    return 1 / float(np.percentile(ratios, 90)) if ratios else None


def _duration(records: Sequence[Record]) -> float:
    ends = [r.ended for r in records if r.ended is not None]
    return max(ends) - min(r.due for r in records) if ends else 0.0


def _concurrency(records: Sequence[Record]) -> Concurrency | None:
    spans = [(r.sent, r.ended) for r in records if r.ended is not None and r.ended > r.sent]
    return Concurrency.of(spans)


def _errors(records: Sequence[Record]) -> dict[str, int]:
    """How often each message came, the most frequent first, at most 20."""
    counts: dict[str, int] = {}
    for record in records:
        if record.finish == "error":
            text = record.error or "no reason given"
            counts[text] = counts.get(text, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: -pair[1])[:20])
