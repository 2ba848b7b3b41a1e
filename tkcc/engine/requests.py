"""What a client asks for, what it hears back, and what is refused."""

from __future__ import annotations

import dataclasses
import math

from tkcc.ir.errors import TkccError

STOP, LENGTH, CANCELLED, ERROR = "stop", "length", "cancelled", "error"


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
        wrong = ""
        if self.max_tokens < 1:
            wrong = f"max_tokens is {self.max_tokens}: at least 1"
        elif not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            wrong = f"temperature is {self.temperature}: from 0 to 100"
        elif self.top_k < 0:
            wrong = f"top_k is {self.top_k}: 0 (all tokens) or more"
        elif not 0 < self.top_p <= 1:
            wrong = f"top_p is {self.top_p}: above 0, up to 1"
        elif self.seed is not None and not 0 <= self.seed < 2**64:
            wrong = f"seed is {self.seed}: from 0 to 2**64 - 1"
        if wrong:
            what, _, remedy = wrong.partition(": ")
            raise RequestError("bad_sampling", what, f"give {remedy}")


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
    wrong = next((t for t in prompt if not 0 <= t < vocabulary), None)
    if wrong is not None:
        raise RequestError(
            "invalid_token", f"{wrong} is no token", f"tokens are 0 to {vocabulary - 1}"
        )
