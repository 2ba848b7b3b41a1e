"""What a client asks for, what it hears back, and what is refused."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any

from tkcc.ir.errors import TkccError

STOP, LENGTH, CANCELLED, ERROR = "stop", "length", "cancelled", "error"


def _whole(value: Any) -> bool:
    """True and 1.0 are no counts, though Python takes them for 1."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


class RequestError(TkccError):
    """A request that is refused; `code` is for programs, the text for people."""

    def __init__(self, code: str, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy=remedy)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How an answer is drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep all tokens.

    `seed` None draws another answer each time; with one, an answer depends on nothing else that
    the engine does. `stop_tokens` end an answer and are not part of it, like the model's own end
    tokens, which `ignore_end` disables.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_tokens: tuple[int, ...] = ()
    ignore_end: bool = False

    def __post_init__(self) -> None:
        wrong = self._wrong()
        if wrong:
            what, _, remedy = wrong.partition(": ")
            raise RequestError("bad_sampling", what, f"give {remedy}")

    def _wrong(self) -> str:
        """What is wrong: what should be; empty if nothing is."""
        if not (_whole(self.max_tokens) and self.max_tokens >= 1):
            return f"max_tokens is {self.max_tokens!r}: a whole number, at least 1"
        if not (_real(self.temperature) and 0 <= self.temperature <= 100):
            return f"temperature is {self.temperature!r}: a number from 0 to 100"
        if not (_whole(self.top_k) and self.top_k >= 0):
            return f"top_k is {self.top_k!r}: a whole number, 0 (all tokens) or more"
        if not (_real(self.top_p) and 0 < self.top_p <= 1):
            return f"top_p is {self.top_p!r}: a number above 0, up to 1"
        if self.seed is not None and not (_whole(self.seed) and 0 <= self.seed < 2**64):
            return f"seed is {self.seed!r}: a whole number from 0 to 2**64 - 1"
        if not all(_whole(token) for token in self.stop_tokens):
            return f"stop_tokens are {self.stop_tokens!r}: whole numbers"
        return ""


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt of token ids and how to answer it; `id` is unique among the requests in flight."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling = Sampling()


@dataclasses.dataclass(frozen=True)
class Event:
    """One step of an answer: a token, or the end (`finish`), or both at once.

    `cached_tokens` is how many tokens of the prompt were not computed again.
    """

    request: str
    token: int | None = None
    finish: str | None = None  # stop, length, cancelled, error
    error: str = ""
    cached_tokens: int = 0


def validate(request: Request, *, vocabulary: int, context: int) -> None:
    """Raises RequestError for a prompt that cannot be read, whatever the engine's load."""
    prompt = request.prompt
    if not prompt:
        raise RequestError("empty_prompt", "the prompt is empty", "send at least one token")
    if len(prompt) >= context:
        raise RequestError(
            "prompt_too_long",
            f"the prompt has {len(prompt)} tokens, the context holds {context}",
            f"send at most {context - 1} tokens",
        )
    place = _first_invalid(prompt, vocabulary)
    if place is not None:
        raise RequestError(
            "invalid_token",
            f"{prompt[place]!r}, at place {place} of the prompt, is no token",
            f"send whole numbers from 0 to {vocabulary - 1}",
        )


def _first_invalid(prompt: Sequence[Any], vocabulary: int) -> int | None:
    # the common case in C: a prompt may have 100,000 tokens, and the engine's loop waits
    if set(map(type, prompt)) == {int} and min(prompt) >= 0 and max(prompt) < vocabulary:
        return None
    fits = (_whole(token) and 0 <= token < vocabulary for token in prompt)
    return next((place for place, good in enumerate(fits) if not good), None)
