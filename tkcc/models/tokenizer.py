"""Text to token ids and back, from a GGUF file's metadata or a Hugging Face `tokenizer.json`.

Both are data: the byte-level BPE runs in the `tokenizers` package, and a chat template is rendered
in jinja2's immutable sandbox, which gives it no attribute of a Python object to climb out through.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tkcc.models.errors import ModelError

if TYPE_CHECKING:
    import tokenizers

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_SPECIAL = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


class Tokenizer:
    """A tokenizer with its chat template.

    Example:
        tokenizer.encode("Hello")  # [19556]
        tokenizer.chat([{"role": "user", "content": "Hi"}])
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        chat_template: str | None,
    ) -> None:
        """`special_tokens` maps "eos_token" and the like to their text."""
        self._backend = backend
        self._special_tokens = dict(special_tokens)
        self._chat_template = chat_template
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.eos_id = self._id("eos_token")
        self.pad_id = self._id("pad_token")

    @staticmethod
    def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer that GGUF metadata describes (byte-level BPE, "gpt2").

        Raises:
            ModelError: another kind of tokenizer, an unknown pre-tokenizer, or damaged tables.
        """
        tokens = _strings(metadata, "tokenizer.ggml.tokens")
        special = {
            name: tokens[metadata[key]]
            for name, key in _SPECIAL.items()
            if key in metadata and _in_range(metadata[key], len(tokens), key)
        }
        backend = _byte_level_bpe(metadata, tokens)
        if metadata.get("tokenizer.ggml.add_bos_token", False):
            _prepend(backend, special.get("bos_token"))
        template = metadata.get("tokenizer.chat_template")
        if not (template is None or isinstance(template, str)):
            _fail("tokenizer.chat_template is not text")
        return Tokenizer(backend, special, template)

    @staticmethod
    def from_folder(folder: Path | str) -> Tokenizer:
        """Read `tokenizer.json` and `tokenizer_config.json` of a Hugging Face checkpoint.

        Raises:
            ModelError: a file is missing or is not what its name says.
        """
        import tokenizers

        text, settings = _read(folder, "tokenizer.json"), _read(folder, "tokenizer_config.json")
        try:
            options = json.loads(settings)
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # `tokenizers` raises Exception itself, no subclass
            raise _error(f"{folder}: the tokenizer files cannot be read ({error})") from error
        special = {name: _token_text(options[name]) for name in _SPECIAL if options.get(name)}
        return Tokenizer(backend, special, options.get("chat_template"))

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`; special tokens written out in it become their one id."""
        ids: list[int] = self._backend.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD.

        Raises:
            ModelError: an id outside the vocabulary.
        """
        plain = [int(i) for i in ids]
        for i in plain:
            if not 0 <= i < self.vocab_size:
                _fail(f"token id {i} is not in the vocabulary of {self.vocab_size:,}")
        text: str = self._backend.decode(plain, skip_special_tokens=skip_special_tokens)
        return text

    def chat(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """The token ids of a conversation, in the form the model was tuned on.

        Args:
            messages: each with a "role" ("system", "user", "assistant") and its "content".
            add_generation_prompt: end with the header of the assistant's turn.

        Raises:
            ModelError: no chat template, a malformed message, or a template that refuses it.
        """
        for message in messages:
            if not all(isinstance(message.get(key), str) for key in ("role", "content")):
                _fail(f"a message needs a text 'role' and 'content': {dict(message)!r}")
        text = self._render(list(messages), add_generation_prompt)
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def _render(self, messages: list[Mapping[str, str]], add_generation_prompt: bool) -> str:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if self._chat_template is None:
            _fail("this model has no chat template: use encode() on plain text")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _fail
        try:
            return environment.from_string(self._chat_template).render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise _error(f"the chat template failed: {error}") from error

    def _id(self, name: str) -> int | None:
        text = self._special_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import AddedToken, decoders, models

    if metadata.get("tokenizer.ggml.model") != "gpt2":
        _fail(f"tokenizer model {metadata.get('tokenizer.ggml.model')!r} is not implemented")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        _fail("tokenizer.ggml.tokens holds a token twice")
    merges = _merges(_strings(metadata, "tokenizer.ggml.merges"), vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = _pre_tokenizer(metadata.get("tokenizer.ggml.pre", "default"))
    backend.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    for token, kind in zip(tokens, kinds, strict=False):
        if kind == _CONTROL:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False, special=False)])
    return backend


def _pre_tokenizer(name: str) -> Any:
    """The split before BPE that GGUF calls `name`.

    "smollm" splits every digit off before the GPT-2 pattern runs, as the model's own
    tokenizer.json does and llama.cpp (`LLAMA_VOCAB_PRE_TYPE_SMOLLM`). transformers 5.24 leaves the
    digit split out when it reads a GGUF, and so differs where two or more spaces precede a digit,
    or any space a numeral such as "½".
    """
    from tokenizers import pre_tokenizers

    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in ("default", "gpt-2", "gpt2"):
        return gpt2
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    raise _error(f"pre-tokenizer {name!r} is not implemented")


def _merges(lines: list[str], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for line in lines:
        left, _, right = line.partition(" ")
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            _fail(f"merge {line!r} uses a token that is not in the vocabulary")
        merges.append((left, right))
    return merges


def _prepend(backend: tokenizers.Tokenizer, token: str | None) -> None:
    from tokenizers import processors

    if token is None:
        _fail("the tokenizer wants a first token (add_bos_token) but names none")
    backend.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, backend.token_to_id(token))]
    )


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
        _fail(f"{key} is missing or is no list of texts")
    return values


def _in_range(index: Any, size: int, key: str) -> bool:
    if not (isinstance(index, int) and 0 <= index < size):
        _fail(f"{key} is {index!r}, but there are {size:,} tokens")
    return True


def _token_text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, Mapping) else str(token)


def _read(folder: Path | str, name: str) -> str:
    try:
        return (Path(folder) / name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _error(f"{name} cannot be read ({error})") from error


def _fail(what: str) -> NoReturn:
    raise _error(what)


def _error(what: str) -> ModelError:
    remedy = "use a model with a byte-level BPE tokenizer, or fetch its files again"
    return ModelError(what, where="tokenizer", remedy=remedy)
