"""Logs of an OpenAI-compatible server: one request a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tkcc.engine.pages import block_hashes
from tkcc.traffic.readers.azure import moment
from tkcc.traffic.readers.lines import Place, read_objects, real, shown, some, whole
from tkcc.traffic.records import TrafficRequest

Encode = Callable[[str], Sequence[int]]
Render = Callable[[list[dict[str, Any]]], str]
_TIMES = ("created", "timestamp", "time")
_SESSIONS = ("session_id", "conversation_id", "user")


def plain(messages: list[dict[str, Any]]) -> str:
    """Messages as text where no chat template is given: equal beginnings stay equal."""
    return "".join(f"{_text(m.get('role'))}\n{_content(m.get('content'))}\n" for m in messages)


def read_openai_log(
    path: str | Path,
    *,
    encode: Encode | None = None,
    render: Render = plain,
    block_size: int = 16,
) -> list[TrafficRequest]:
    """Requests of chat completions (`messages`) or completions (`prompt`: text or token ids).

    A line is the request's body, or {"request": body, "response": answer}. Beside it, or in the
    answer: `created`, `timestamp` or `time` (seconds since 1970, or ISO 8601; all lines or none),
    `usage` with `prompt_tokens` and `completion_tokens`, `session_id`, `latency` (s). Without
    `usage`, `encode` counts the prompt, and the answer's length is `max_tokens`, which must then
    be there. Prefix sharing is known where prompts are token ids or `encode` is given. Without
    times, requests are one second apart. Sorted by time. Raises TkccError with the line.
    """
    path = Path(path)
    reader = _Reader(encode, render, block_size)
    found = [(place, reader.request(place, row)) for place, row in read_objects(path)]
    known = [when for _, (when, _) in some(found, path) if when is not None]
    if known and len(known) != len(found):
        place = next(place for place, (when, _) in found if when is None)
        place.fail("no time, but other lines have one", "give all lines a `created`, or none")
    first = min(known, default=0.0)
    made = [
        request(float(number) if when is None else when - first)
        for number, (_, (when, request)) in enumerate(found)
    ]
    return sorted(made, key=lambda request: request.arrival)


class _Reader:
    def __init__(self, encode: Encode | None, render: Render, block_size: int) -> None:
        self.encode, self.render, self.block_size = encode, render, block_size

    def request(
        self, place: Place, row: dict[str, Any]
    ) -> tuple[float | None, Callable[[float], TrafficRequest]]:
        body = _object(row.get("request", row), "request", place)
        answer = _object(row.get("response", {}), "response", place)
        parts = (row, body, answer)
        usage = _object(_first(parts, "usage", {}), "usage", place)
        tokens = self._tokens(body, place)
        given = _input(usage, tokens, place)
        made = _output(usage, body, place)
        hashes = self._hashes(tokens)
        session = next((_text(v) for n in _SESSIONS if (v := _first(parts, n, None))), None)
        late = _first(parts, "latency", None)
        latency = None if late is None else real(late, "latency", place)

        def at(arrival: float) -> TrafficRequest:
            size = self.block_size if hashes else 0
            return TrafficRequest(arrival, given, made, session, hashes, size, latency=latency)

        return _time(parts, place), at

    def _tokens(self, body: dict[str, Any], place: Place) -> list[int] | None:
        """The prompt's token ids; None if they are not known."""
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], str):
            return [whole(token, "a token of prompt", place, most=2**31 - 1) for token in prompt]
        if isinstance(prompt, str):
            text = prompt
        elif isinstance(body.get("messages"), list):
            text = self.render([_object(m, "a message", place) for m in body["messages"]])
        else:
            place.fail(
                "neither messages nor a prompt of one text or token ids",
                "log the request's body; split a batch of prompts into lines",
            )
        return None if self.encode is None else list(self.encode(text))

    def _hashes(self, tokens: list[int] | None) -> tuple[int, ...]:
        keys = block_hashes(tokens, self.block_size) if tokens else []
        return tuple(int.from_bytes(key[:8], "little") for key in keys)


def _input(usage: dict[str, Any], tokens: list[int] | None, place: Place) -> int:
    if tokens is not None:
        return whole(len(tokens), "the prompt's length", place, least=1)
    if "prompt_tokens" not in usage:
        place.fail("the prompt's length is unknown", "log usage, or give `encode` a tokenizer")
    return whole(usage["prompt_tokens"], "prompt_tokens", place, least=1)


def _output(usage: dict[str, Any], body: dict[str, Any], place: Place) -> int:
    places = ((usage, "completion_tokens"), (body, "max_completion_tokens"), (body, "max_tokens"))
    known = [(part[name], name) for part, name in places if part.get(name) is not None]
    if not known:
        place.fail("the answer's length is unknown", "log usage, or at least max_tokens")
    return whole(*known[0], place)


def _time(parts: Sequence[dict[str, Any]], place: Place) -> float | None:
    for name in _TIMES:
        value = _first(parts, name, None)
        if isinstance(value, str):
            return moment(value, name, place)
        if value is not None:
            return real(value, name, place)
    return None


def _first(parts: Sequence[dict[str, Any]], name: str, default: Any) -> Any:
    return next((part[name] for part in parts if part.get(name) is not None), default)


def _object(value: Any, name: str, place: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        place.fail(f"{name} is {shown(value)}", "give a JSON object")
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _content(value: Any) -> str:
    """A message's text; of a list of parts, the text of each."""
    if isinstance(value, list):
        return "".join(_text(p.get("text", "")) for p in value if isinstance(p, dict))
    return value if isinstance(value, str) else ""
