"""What several commands share: model options, durations, numbers, progress."""

from __future__ import annotations

import argparse
import re

from rich.console import Console
from rich.markup import escape

from tkcc.ir.errors import TkccError
from tkcc.language import StepShape

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?\Z")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def console(stderr: bool = True) -> Console:
    """Progress goes to stderr, so that stdout holds the answer only.

    A file or a pipe has no width of its own; tables there are as wide as they need to be.
    """
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=180)


def shown(text: str) -> str:
    """Text from models, rules and compilers, to stand in a table or between markup.

    Brackets are no markup, and control characters (which could steer a terminal) show as escapes.
    """
    return escape("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def add_model(parser: argparse.ArgumentParser, batch: int = 1) -> None:
    """The model and the shape of its steps; `batch` is the default batch."""
    parser.add_argument(
        "model",
        help="built-in name, model folder, config.json, file.tkir, or package.module:attribute",
    )
    group = parser.add_argument_group("shape of a language model's steps")
    group.add_argument("--batch", type=int, default=batch, help=f"sequences side by side ({batch})")
    group.add_argument("--context", type=int, default=256, help="tokens the caches hold (256)")
    group.add_argument("--prompt", type=int, default=64, help="tokens a prompt is padded to (64)")
    group.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights"
    )


def shape_of(options: argparse.Namespace) -> StepShape:
    return StepShape(options.batch, options.context, options.prompt)


def seconds(text: str) -> float:
    """`90`, `90s`, `3m`, `1h` in seconds. Raises TkccError."""
    match = _DURATION.match(text)
    if match is None or float(match.group(1)) <= 0:
        raise TkccError(f"{text!r} is no duration", remedy="write 90s, 3m or 1h")
    return float(match.group(1)) * _SECONDS[match.group(2) or "s"]


def human(value: float | None, unit: str = "") -> str:
    """`1.23 G` style text; an empty string for nothing."""
    if value is None:
        return ""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()
