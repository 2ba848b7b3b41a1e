"""Token ids for made-up prompts: real text through a tokenizer, or plain ids."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

Encode = Callable[[str], Sequence[int]]


class TokenSource(Protocol):
    def __call__(self, segment: int, count: int) -> np.ndarray:
        """`count` token ids (int32) of one stretch of text; the same for the same arguments."""


class PlainIds:
    """Ids drawn evenly from `first` to `vocabulary` - 1: for engines, not for people."""

    def __init__(self, vocabulary: int, *, first: int = 0, seed: int = 0) -> None:
        assert 0 <= first < vocabulary
        self.first, self.vocabulary, self.seed = first, vocabulary, seed

    def __call__(self, segment: int, count: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, segment])
        return rng.integers(self.first, self.vocabulary, count, dtype=np.int32)


class Words:
    """Sentences in random order, encoded by a tokenizer.

    A stretch begins with a number of its own, so that two of them never share a beginning of more
    than a few tokens. `encode` turns text into token ids and must add no special tokens.
    """

    def __init__(self, encode: Encode, *, seed: int = 0) -> None:
        self.encode, self.seed = encode, seed
        self._sentences = [self._ids(f" {sentence}") for sentence in corpus()]

    def __call__(self, segment: int, count: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, segment])
        parts = [self._ids(f"{rng.integers(10**12, 10**13)}.")]
        have = len(parts[0])
        while have < count:
            part = self._sentences[rng.integers(len(self._sentences))]
            parts.append(part)
            have += len(part)
        return np.concatenate(parts)[:count]

    def _ids(self, text: str) -> np.ndarray:
        return np.asarray(self.encode(text), np.int32)


@functools.cache
def corpus() -> tuple[str, ...]:
    """The sentences."""
    file = importlib.resources.files("tkcc.traffic").joinpath("corpus.json")
    return tuple(json.loads(file.read_text(encoding="utf-8"))["sentences"])
