"""Drawing the next token from logits, on the host.

A seeded request's draw at position p is a function of its seed, p and the logits alone: not of what
else is in the batch, of when it runs, or of being put off and started again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tkcc.engine.requests import Sampling


def draw(logits: np.ndarray[Any, Any], sampling: Sampling, position: int, salt: int) -> int:
    """The token after `position` tokens, from logits f32[vocabulary].

    `salt` stands for the seed of a request that has none. Greedy takes the lowest of equal tokens.
    """
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    scores = logits.astype(np.float64) / sampling.temperature
    tokens = np.argsort(-scores, kind="stable")
    tokens = tokens[: sampling.top_k] if sampling.top_k else tokens
    weights = np.exp(scores[tokens] - scores[tokens[0]])
    weights /= weights.sum()
    if sampling.top_p < 1:
        # the fewest tokens whose probabilities reach top_p
        count = int(np.searchsorted(np.cumsum(weights), sampling.top_p)) + 1
        tokens, weights = tokens[:count], weights[:count]
    seed = salt if sampling.seed is None else sampling.seed
    point = np.random.Generator(np.random.Philox(key=seed, counter=position)).random()
    place = int(np.searchsorted(np.cumsum(weights), point * weights.sum(), side="right"))
    return int(tokens[min(place, len(tokens) - 1)])
