"""A profile as text."""

from __future__ import annotations

from tkcc.traffic.profile import TrafficProfile
from tkcc.traffic.quantiles import Quantiles
from tkcc.traffic.sharing import Sharing

_AT = (0.5, 0.9, 0.99)


def summarise(profile: TrafficProfile) -> str:
    """Lengths, arrivals, sharing, concurrency and expert load, a line or a few for each."""
    lines = [
        f"{printable(profile.name)}: {profile.requests:,} requests, "
        f"arrivals over {profile.span:,.0f} s",
        *([f"from {printable(profile.source)}"] if profile.source else []),
        "",
        _row("tokens", "mean", *(f"p{at * 100:g}" for at in _AT)),
        *(
            _row(name, *_figures(table))
            for name, table in (
                ("input", profile.input),
                ("new input", profile.new),
                ("output", profile.output),
            )
        ),
        "",
        *_arrival_lines(profile),
        *_sharing_lines(profile.sharing),
        *_load_lines(profile),
    ]
    return "\n".join(lines) + "\n"


def printable(text: str) -> str:
    """Text from a file, with no control characters for a terminal to act on."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _row(*cells: str) -> str:
    return f"{cells[0]:<10}" + "".join(f"{cell:>10}" for cell in cells[1:])


def _figures(table: Quantiles) -> list[str]:
    return [f"{value:,.0f}" for value in (table.mean, *(table.at(at) for at in _AT))]


def _arrival_lines(profile: TrafficProfile) -> list[str]:
    found = profile.arrivals
    counts = "" if found.dispersion is None else f", dispersion {found.dispersion:.3g} per 10 s"
    fit = found.fit
    poor = " (poor: use the quantiles of the gaps)" if fit.distance > 0.1 else ""
    lines = [
        f"arrivals   {found.rate:.3g} per second, CV of gaps {found.cv:.3g}{counts}",
        f"           nearest {fit.family}, shape {fit.shape:.3g}, scale {fit.scale:.3g} s, "
        f"distance {fit.distance:.2f}{poor}",
    ]
    if found.rounded_to:
        lines.append(f"           times were rounded to {found.rounded_to:g} s, and spread again")
    if profile.think:
        think = profile.think
        lines.append(f"think time p50 {think.at(0.5):.3g} s, p90 {think.at(0.9):.3g} s")
    return lines


def _sharing_lines(sharing: Sharing | None) -> list[str]:
    if sharing is None:
        return ["sharing    unknown: the trace says nothing of prefixes"]
    lines = [
        f"sharing    {sharing.share:.1%} of prompt tokens were seen before; "
        f"{sharing.continues:.1%} of requests continue one, turn p50 {sharing.turns.at(0.5):.0f}, "
        f"p90 {sharing.turns.at(0.9):.0f}"
    ]
    lines += [
        f"           {root.share:.1%} of first turns share a beginning of {root.tokens} tokens"
        for root in sharing.roots
    ]
    lines += [
        f"           {share:.1%} with memory for {tokens:,} tokens"
        for tokens, share in sharing.at_capacity.items()
    ]
    return lines


def _load_lines(profile: TrafficProfile) -> list[str]:
    lines = []
    if (found := profile.concurrency) is not None:
        users = f", {found.users} users" if found.users else ""
        lines.append(f"in flight  mean {found.mean:.3g}, most {found.most}{users}")
    if profile.expert_load:
        skew = max(max(row) * len(row) for row in profile.expert_load)
        lines.append(f"experts    the busiest has {skew:.3g} times an even share")
    return lines
