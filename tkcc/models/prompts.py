"""Built-in prompts for language models: real text, so that measured activations are real too."""

from __future__ import annotations

from dataclasses import dataclass

from tkcc.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """One prompt; `chat` wraps the text as a user's message, otherwise it is continued as it is."""

    name: str
    text: str
    chat: bool

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        """The prompt as token ids."""
        if self.chat:
            return tokenizer.chat([{"role": "user", "content": self.text}])
        return tokenizer.encode(self.text)


PROMPTS: tuple[Prompt, ...] = (
    Prompt("question", "What is the capital of France, and which river runs through it?", True),
    Prompt("explain", "Explain to a ten year old why the sky looks blue at noon.", True),
    Prompt("list", "Give me three tips for keeping tomato plants healthy in a dry summer.", True),
    Prompt(
        "rewrite",
        "Rewrite this politely: your report is late again and the numbers in table 4 are wrong.",
        True,
    ),
    Prompt(
        "code",
        "def fibonacci(n: int) -> int:\n"
        '    """Return the n-th Fibonacci number, counting from zero."""\n',
        False,
    ),
    Prompt(
        "story",
        "The lighthouse keeper had not spoken to anyone for eleven days when the small boat "
        "appeared. At first she took it for",
        False,
    ),
    Prompt(
        "article",
        "Photosynthesis turns light into chemical energy. It happens in two stages: in the first, "
        "water is split and oxygen is released; in the second, carbon dioxide is",
        False,
    ),
    Prompt(
        "data",
        "city,country,population\nTokyo,Japan,37400068\nDelhi,India,28514000\nShanghai,",
        False,
    ),
)


def prompt(name: str) -> Prompt:
    """The built-in prompt called `name`.

    Raises:
        KeyError: no such prompt; the message lists the names.
    """
    for candidate in PROMPTS:
        if candidate.name == name:
            return candidate
    raise KeyError(f"no prompt {name!r}; there are: {', '.join(p.name for p in PROMPTS)}")
