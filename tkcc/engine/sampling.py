"""Drawing the next token from logits, on the host.

A seeded request's draw at position p is a function of its seed, p and the logits alone: not of what
else is in the batch, of when it runs, or of being put off and started again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tkcc.engine.requests import Sampling
from tkcc.ir.errors import BackendError

# Tokens that are put in order first to find top_p's; so many nearly always reach it.
_FIRST = 256


def draw(logits: np.ndarray[Any, Any], sampling: Sampling, position: int, salt: int) -> int:
    """The token after `position` tokens, from logits f32[vocabulary].

    `salt` stands for the seed of a request that has none. `top_k` applies before `top_p`, whose
    share is of what `top_k` left. Of equal tokens the lowest goes first. Raises BackendError if the
    largest logit is not finite: the step that computed it is broken.
    """
    best = int(np.argmax(logits))  # NaN, if there is one
    top = float(logits[best])
    if not np.isfinite(top):
        raise BackendError(
            f"the step gave {top} as a logit",
            remedy="check the weights and the program that was swapped in last",
        )
    if sampling.temperature == 0:
        return best
    # the difference first: a tiny temperature then drives all but the best to weight 0
    with np.errstate(over="ignore"):
        weights = np.exp((logits.astype(np.float64) - top) / sampling.temperature)
    tokens = _kept(weights, sampling)
    seed = salt if sampling.seed is None else sampling.seed
    point = np.random.Generator(np.random.Philox(key=seed, counter=position)).random()
    return int(tokens[_place(weights[tokens], point)])


def _kept(weights: np.ndarray[Any, Any], sampling: Sampling) -> np.ndarray[Any, Any]:
    """The tokens that top_k and top_p leave."""
    count = min(sampling.top_k or len(weights), len(weights))
    if sampling.top_p == 1:
        return _leading(weights, count) if count < len(weights) else np.arange(count)
    left = weights if count == len(weights) else weights[_leading(weights, count)]
    share = sampling.top_p * left.sum()
    asked = min(_FIRST, count)
    while True:
        tokens = _leading(weights, asked)
        reached = np.cumsum(weights[tokens])
        if reached[-1] >= share or asked == count:
            # the fewest tokens that reach the share
            return tokens[: int(np.searchsorted(reached, share)) + 1]
        asked = min(asked * 16, count)


def _leading(weights: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The `count` tokens of most weight, in order; of equal ones the lowest first."""
    if count < len(weights):
        last = np.partition(weights, len(weights) - count)[len(weights) - count]
        above = np.flatnonzero(weights > last)
        equal = np.flatnonzero(weights == last)[: count - len(above)]
        tokens = np.concatenate([above, equal])
    else:
        tokens = np.arange(count)
    return tokens[np.argsort(-weights[tokens], kind="stable")]


def _place(weights: np.ndarray[Any, Any], point: float) -> int:
    """Where `point` of [0, 1) falls when the weights divide it; never at a weight of 0."""
    reached = np.cumsum(weights)
    inside = min(point * reached[-1], np.nextafter(reached[-1], 0))
    return int(np.searchsorted(reached, inside, side="right"))
