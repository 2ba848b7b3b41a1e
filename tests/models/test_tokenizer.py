"""Tokenizer: byte-level BPE from GGUF metadata, the chat template, and clear refusals."""

from __future__ import annotations

import pytest

from tkcc.models.errors import ModelError
from tkcc.models.gguf import GgufFile
from tkcc.models.tokenizer import Tokenizer

TEXTS = ["the thing in the end", "naïve café — 漢字 🦉", "tab\tnew\nline\r\n", "", "  12 the12"]


@pytest.fixture
def metadata(write_tiny_gguf) -> dict:
    return GgufFile(write_tiny_gguf().path).metadata


@pytest.fixture
def tokenizer(metadata) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_gives_back_the_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_are_applied_in_order(tokenizer, metadata):
    tokens = metadata["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in tokenizer.encode("the in the")] == ["the", "Ġ", "in", "Ġthe"]


def test_smollm_splits_digits_before_merging_and_gpt2_does_not(metadata):
    tokens = metadata["tokenizer.ggml.tokens"]
    pieces = {}
    for pre in ("smollm", "gpt-2"):
        ids = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.pre": pre}).encode("i  12")
        pieces[pre] = [tokens[i] for i in ids]
    assert pieces == {"smollm": ["i", "ĠĠ", "1", "2"], "gpt-2": ["i", "Ġ", "Ġ", "12"]}


def test_special_tokens_in_text_become_one_id_and_can_be_left_out(tokenizer):
    ids = tokenizer.encode("the<|end|>")
    assert ids[-1] == tokenizer.eos_id == 0
    assert tokenizer.decode(ids) == "the<|end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the"


def test_add_bos_token_puts_it_first_in_text_but_not_in_a_chat(metadata):
    metadata |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 1}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.chat([{"role": "user", "content": "the"}])[:2] != [1, 1]


def test_the_chat_template_is_rendered_with_the_special_tokens(tokenizer):
    messages = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "in"}]
    assert tokenizer.decode(tokenizer.chat(messages)) == "<|user|>the<|end|><|user|>in<|end|>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no system message') }}",
        "{{ 1 / 0 }}",
        "{% for %}",
    ],
)
def test_a_template_that_climbs_out_or_fails_is_one_clear_error(metadata, template):
    tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.chat_template": template})
    with pytest.raises(ModelError, match="template|system message"):
        tokenizer.chat([{"role": "user", "content": "x"}])


def test_a_model_without_a_template_says_so(metadata):
    del metadata["tokenizer.chat_template"]
    with pytest.raises(ModelError, match="no chat template"):
        Tokenizer.from_gguf(metadata).chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "content": 3}])
def test_a_malformed_message_is_refused(tokenizer, message):
    with pytest.raises(ModelError, match="a message needs"):
        tokenizer.chat([message])


@pytest.mark.parametrize("ids", [[300], [-1]])
def test_an_id_outside_the_vocabulary_is_refused(tokenizer, ids):
    with pytest.raises(ModelError, match="not in the vocabulary of 300"):
        tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.model", "llama", "'llama' is not implemented"),
        ("tokenizer.ggml.pre", "qwen2", "'qwen2' is not implemented"),
        ("tokenizer.ggml.tokens", 7, "tokens is missing or is no list"),
        ("tokenizer.ggml.tokens", ["a", "a"], "token twice"),
        ("tokenizer.ggml.merges", ["x nothere"], "not in the vocabulary"),
        ("tokenizer.ggml.merges", ["x"], "not in the vocabulary"),
        ("tokenizer.ggml.eos_token_id", 300, "eos_token_id is 300"),
        ("tokenizer.chat_template", 5, "not text"),
        ("tokenizer.ggml.add_bos_token", True, "names none"),
    ],
)
def test_damaged_tables_are_named(metadata, key, value, message):
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf({**metadata, key: value})
