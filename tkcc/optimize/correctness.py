"""Is a candidate right? Its logits and greedy tokens against the un-rewritten program's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tkcc.optimize.session import Session, Start

# An exact rule reassociates sums. In float32 that moves the logits of a 30-layer model by about
# 1e-5 of their spread; a wrong mask, head or layer moves them by the whole spread.
# In bfloat16 another order of the same sums moved the logits of a 16-layer model with random
# weights by 0.06 to 0.14 of their spread (benchmarks/gpu_check.py).
EXACT_ERROR = {"float32": 1e-3, "bfloat16": 0.25}

# Two tokens this close (in standard deviations of the logits) may swap by rounding alone.
TIE = {"float32": 1e-4, "bfloat16": 0.1}


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """What the baseline says after one start: greedy tokens [n, batch], logits [n, batch, v]."""

    start: Start
    tokens: Any
    logits: Any


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`error`: largest logit difference over the logits' standard deviation. `agreement`: share of
    greedy tokens that agree when both are fed the same. `kl`: mean KL divergence in nats."""

    right: bool
    error: float
    agreement: float
    kl: float
    reason: str = ""


def references(session: Session, starts: Sequence[Start], count: int) -> list[Reference]:
    """Run the baseline, which must be in the slot, `count` greedy steps from each start."""
    assert session.runtime.program is session.baseline
    return [Reference(start, *session.generate(start, count)) for start in starts]


def check(
    session: Session, known: Sequence[Reference], *, dtype: str, max_kl: float | None = None
) -> Verdict:
    """Judge the program in the slot. `max_kl` None asks for exactness, else for a mean KL below it.

    The program is run twice: fed the baseline's tokens (errors do not add up, every step counts),
    and freely (its tokens must be the same, if it is to be exact).
    """
    forced = [session.forced(item.start, item.tokens) for item in known]
    error = max(_error(a, item.logits) for a, item in zip(forced, known, strict=True))
    pairs = [(np.argmax(a, -1), b.tokens) for a, b in zip(forced, known, strict=True)]
    agreement = float(np.mean([np.mean(a == b) for a, b in pairs]))
    kl = float(np.mean([_kl(item.logits, a) for a, item in zip(forced, known, strict=True)]))
    if not np.isfinite(error):
        return Verdict(False, error, agreement, kl, "its logits are not finite")
    if max_kl is not None:
        reason = "" if kl <= max_kl else f"KL {kl:.2g} is above {max_kl:.2g}"
        return Verdict(not reason, error, agreement, kl, reason)
    reason = _inexact(session, known, error, dtype)
    return Verdict(not reason, error, agreement, kl, reason)


def _inexact(session: Session, known: Sequence[Reference], error: float, dtype: str) -> str:
    if error > EXACT_ERROR[dtype]:
        return f"logits differ by {error:.2g} of their spread (allowed {EXACT_ERROR[dtype]:.0e})"
    for item in known:
        tokens, _ = session.generate(item.start, len(item.tokens))
        if not np.array_equal(tokens, item.tokens) and not _tie(item, tokens, TIE[dtype]):
            return "its greedy tokens differ"
    return ""


def _tie(item: Reference, tokens: Any, near: float) -> bool:
    """Whether the first different token is one that the baseline rates as high as its own."""
    for step, (ours, theirs) in enumerate(zip(tokens, item.tokens, strict=True)):
        for row in np.flatnonzero(ours != theirs):
            scores = item.logits[step, row]
            gap = scores[theirs[row]] - scores[ours[row]]
            return bool(gap <= near * np.std(scores))
    return True


def _error(ours: Any, theirs: Any) -> float:
    if not np.isfinite(ours).all():
        return float("inf")
    return float(np.max(np.abs(ours - theirs)) / max(float(np.std(theirs)), 1e-30))


def _kl(reference: Any, ours: Any) -> float:
    """Mean KL(reference || ours) over positions, in nats, computed in float64."""
    p, q = (_log_softmax(x.astype(np.float64)) for x in (reference, ours))
    return float(np.mean(np.sum(np.exp(p) * (p - q), axis=-1)))


def _log_softmax(x: Any) -> Any:
    x = x - np.max(x, axis=-1, keepdims=True)
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))
