"""A traffic profile: what a trace or a log says about traffic, in a small file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pydantic

from tkcc.files import read_text, write_text
from tkcc.ir.errors import TkccError
from tkcc.traffic.arrivals import Arrivals
from tkcc.traffic.quantiles import Quantiles, rank_correlation
from tkcc.traffic.records import TrafficRequest
from tkcc.traffic.sharing import Sharing, knows_sharing, match_prefixes, sharing_of

VERSION: Literal[1] = 1


class Concurrency(pydantic.BaseModel):
    """Requests in flight at once, over time, on the server that was recorded or replayed on.

    `users` is the number of closed loops, where the traffic is one.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    mean: float = pydantic.Field(ge=0)
    most: int = pydantic.Field(ge=0)
    users: int | None = pydantic.Field(default=None, gt=0)

    @classmethod
    def of(
        cls, spans: Sequence[tuple[float, float]], users: int | None = None
    ) -> Concurrency | None:
        """Of the (start, end) of each request in seconds; None if they take no time."""
        if not spans:
            return None
        took = max(end for _, end in spans) - min(start for start, _ in spans)
        if took <= 0:
            return None
        marks = sorted([(s, 1) for s, _ in spans] + [(e, -1) for _, e in spans])
        most = int(np.cumsum([step for _, step in marks]).max())
        return cls(mean=sum(e - s for s, e in spans) / took, most=most, users=users)


class TrafficProfile(pydantic.BaseModel):
    """Distributions of lengths, the arrival process, prefix sharing and concurrency.

    `new` are the prompt tokens that no earlier prompt began with; all of them where the trace says
    nothing of prefixes, which `sharing` None tells. `think` are the seconds between an answer and
    the session's next request. `expert_load` is each expert's share of the tokens, by layer, once
    a run has measured it.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = VERSION  # of the file format
    name: str = pydantic.Field(max_length=200)
    source: str = pydantic.Field(default="", max_length=2000)
    licence: str = pydantic.Field(default="", max_length=200)
    requests: int = pydantic.Field(gt=0)
    span: float = pydantic.Field(ge=0)  # seconds
    input: Quantiles
    output: Quantiles
    new: Quantiles
    input_output_correlation: float = pydantic.Field(default=0.0, ge=-1, le=1)
    arrivals: Arrivals
    sharing: Sharing | None = None
    think: Quantiles | None = None
    concurrency: Concurrency | None = None
    expert_load: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def of(
        cls,
        requests: Sequence[TrafficRequest],
        *,
        name: str = "traffic",
        source: str = "",
        licence: str = "",
        arrivals: Sequence[TrafficRequest] | None = None,
        users: int | None = None,
    ) -> TrafficProfile:
        """The profile of requests in their order; of `arrivals`, times and latencies, if given.

        Raises TkccError if there are fewer than three requests, or all at one time.
        """
        timed = requests if arrivals is None else arrivals
        process = Arrivals.of([r.arrival for r in timed])
        known = knows_sharing(requests)
        matches = match_prefixes(requests) if known else []
        reused = [m.reused_tokens for m in matches] if known else [0] * len(requests)
        given = [r.input_tokens for r in requests]
        made = [r.output_tokens for r in requests]
        spans = [(r.arrival, r.arrival + r.latency) for r in timed if r.latency is not None]
        thinks = [r.think for r in requests if r.think is not None]
        return cls(
            name=name,
            source=source,
            licence=licence,
            requests=len(requests),
            span=max(r.arrival for r in timed) - min(r.arrival for r in timed),
            input=Quantiles.of(given),
            output=Quantiles.of(made),
            new=Quantiles.of([i - r for i, r in zip(given, reused, strict=True)]),
            input_output_correlation=round(rank_correlation(given, made), 4),
            arrivals=process,
            sharing=sharing_of(requests, matches),
            think=Quantiles.of(thinks) if thinks else None,
            concurrency=Concurrency.of(spans, users),
        )

    def save(self, path: str | Path) -> None:
        """Write as JSON. Raises TkccError if the place cannot be written."""
        write_text(Path(path), self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> TrafficProfile:
        """Read what `save` wrote. Raises TkccError for anything else."""
        return cls.parse(read_text(Path(path), "traffic profile", limit=64 << 20), str(path))

    @classmethod
    def parse(cls, text: str, where: str) -> TrafficProfile:
        """The profile of a JSON text; `where` names it in errors."""
        try:
            return cls.model_validate_json(text)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "the file"
            raise TkccError(
                f"no traffic profile of version {VERSION}: {field}: {first['msg']}",
                where=where,
                remedy="write it with TrafficProfile.save, or read a trace with TrafficProfile.of",
            ) from error

    def in_flight(self, first_token: float, per_token: float) -> float:
        """Requests in flight if answers took that long (s to the first token, s per further one).

        Little's law: the mean number is the arrival rate times the mean time.
        """
        return self.arrivals.rate * (first_token + per_token * max(0.0, self.output.mean - 1))

    def with_run(
        self,
        concurrency: Concurrency | None,
        expert_load: Sequence[Sequence[float]] = (),
    ) -> TrafficProfile:
        """With what a run measured: requests in flight, and each layer's tokens per expert.

        Rows of `expert_load` are counts or shares, and are made to add up to 1.
        """
        rows = [np.asarray(row, np.float64) for row in expert_load]
        if any((row < 0).any() or not 0 < row.sum() < np.inf for row in rows):
            raise TkccError(
                "a layer's expert load is negative, empty or not finite",
                remedy="give each layer's tokens per expert",
            )
        shares = tuple(tuple(map(float, row / row.sum())) for row in rows)
        return self.model_copy(update={"concurrency": concurrency, "expert_load": shares})

    def summary(self) -> str:
        """The profile in a few lines of text."""
        from tkcc.traffic.summary import summarise

        return summarise(self)

    def plot(self) -> str:
        """The profile's distributions as an SVG image."""
        from tkcc.traffic.plot import draw_profile

        return draw_profile(self)
