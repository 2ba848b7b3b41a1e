"""Is a candidate right? Its logits and greedy tokens against the un-rewritten program's.

The error that is allowed is the un-rewritten program's own, against float32, never a constant that
was fitted to what candidates happen to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tkcc.backends.base import Target
from tkcc.ir.passes.widen import widen
from tkcc.optimize.session import Session, Start

# An exact rule reassociates sums. In float32 that moves the logits of a 30-layer model by about
# 1e-5 of their spread; a wrong mask, head or layer moves them by the whole spread.
EXACT_ERROR = 1e-3

# Two tokens this close (in standard deviations of the logits) may swap by float32 rounding alone.
TIE = 1e-4

# In a narrower dtype the un-rewritten program is itself off by its rounding. Another order of the
# same sums rounds differently, not more; the factor covers the largest of many differences.
ROUNDING = 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """What the baseline says after one start: greedy tokens [n, batch], logits [n, batch, v].

    `exact` holds the logits of the same program in float32, fed the same tokens, where the
    baseline computes in less.
    """

    start: Start
    tokens: Any
    logits: Any
    exact: Any = None

    @property
    def truth(self) -> Any:
        """The logits that errors are measured against."""
        return self.logits if self.exact is None else self.exact

    def rounding(self) -> float:
        """The baseline's own error, in standard deviations of the logits."""
        return _error(self.logits, self.truth)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`error`: largest logit difference over the logits' standard deviation, against the baseline,
    or against float32 where the baseline computes in less; `allowed`: the most that is exact.
    `agreement`: share of greedy tokens that agree with the baseline's when both are fed the same.
    `kl`: mean KL divergence from the baseline in nats."""

    right: bool
    error: float
    allowed: float
    agreement: float
    kl: float
    reason: str = ""


def oracle(session: Session, dtype: str) -> Session | None:
    """The baseline in float32 on the CPU, for a session that computes in less; else None."""
    if dtype == "float32":
        return None
    return Session(widen(session.module), Target.parse("xla:cpu"), session.shape)


def references(
    session: Session,
    sets: Sequence[Sequence[Sequence[int]]],
    count: int,
    exact: Session | None = None,
) -> list[Reference]:
    """Run the baseline, which must be in the slot, `count` greedy steps from each set of prompts.

    `exact` is the `oracle`, which is fed the same tokens.
    """
    assert session.runtime.program is session.baseline
    found = []
    for prompts in sets:
        start = session.read(prompts)
        tokens, logits = session.generate(start, count)
        truth = None if exact is None else _forced(exact, prompts, start, tokens)
        found.append(Reference(start, tokens, logits, truth))
    return found


def _forced(exact: Session, prompts: Sequence[Sequence[int]], start: Start, tokens: Any) -> Any:
    own = exact.read(prompts)
    return exact.forced(Start(start.tokens, own.positions, own.state), tokens)[1]


def check(session: Session, known: Sequence[Reference], *, max_kl: float | None = None) -> Verdict:
    """Judge the program in the slot. `max_kl` None asks for exactness, else for a mean KL below it.

    The program is fed the baseline's tokens, so that errors do not add up and every step counts.
    Where each of its own tokens is the baseline's, it would have said the same when run freely.
    """
    ran = [session.forced(item.start, item.tokens) for item in known]
    pairs = list(zip(ran, known, strict=True))
    error = max(_error(logits, item.truth) for (_, logits), item in pairs)
    allowed = max(EXACT_ERROR, ROUNDING * max(item.rounding() for item in known))
    agreement = float(np.mean([np.mean(tokens == item.tokens) for (tokens, _), item in pairs]))
    kl = float(np.mean([_kl(item.logits, logits) for (_, logits), item in pairs]))
    if not np.isfinite(error):
        reason = "its logits are not finite"
    elif max_kl is not None:
        reason = "" if kl <= max_kl else f"KL {kl:.2g} is above {max_kl:.2g}"
    elif error > allowed:
        reason = f"logits differ by {error:.2g} of their spread (allowed {allowed:.2g})"
    else:
        right = all(_only_ties(item, tokens) for (tokens, _), item in pairs)
        reason = "" if right else "its greedy tokens differ"
    return Verdict(not reason, error, allowed, agreement, kl, reason)


def _only_ties(item: Reference, tokens: Any) -> bool:
    """Whether each token that is not the baseline's is rated as high as the baseline's."""
    near = max(TIE, ROUNDING * item.rounding())
    for step, row in np.argwhere(tokens != item.tokens):
        scores = item.truth[step, row]
        gap = scores[item.tokens[step, row]] - scores[tokens[step, row]]
        if gap > near * np.std(scores):
            return False
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
