"""SmolLM2-135M with its real weights, against transformers with the same GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tkcc.models.generate import greedy, pad_prompts
from tkcc.models.llama import Llama
from tkcc.models.prompts import PROMPTS, prompt

pytestmark = pytest.mark.long

GOLDEN = json.loads((Path(__file__).parent / "golden" / "smollm2_135m.json").read_text())
LOGIT_TOLERANCE = 1e-3

# Here a number follows one space at most, and is written in ASCII digits: elsewhere transformers'
# GGUF reader departs from the model's own tokenizer, see `tkcc.models.tokenizer._pre_tokenizer`.
TEXTS = [
    "Hello, world! It's 1999, isn't it? 3.14159 and 1234567890.",
    "def f(x):\n    return x ** 2  # squared\n\n\nclass A:\n\tpass\n",
    "naïve café — 漢字かな交じり文 مرحبا Привет 🦉👩‍👩‍👧",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x",
    "   leading and trailing   ",
    "a\u00a0b\u2003c\u200bd",
    "https://example.org/a?b=c&d=%20 e-mail: x.y@z.io",
    "",
    *(p.text for p in PROMPTS),
]
NUMBERS = ["foo  5", "x =    42", "\n\n 7 8\t9", " ½ cup, m², Ⅷ, ٣ ١", "1 000 000.50", "v2.0-rc1"]


@pytest.fixture(scope="module")
def reference(smollm2):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    if not smollm2.source.endswith(".gguf"):
        pytest.skip("the weights came from the hub, not from the GGUF file")
    from transformers import AutoModelForCausalLM

    path = Path(smollm2.source)
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype="float32"
    ).eval()


@pytest.fixture(scope="module")
def theirs(smollm2):
    pytest.importorskip("torch", reason="transformers reads GGUF with torch")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    path = Path(smollm2.source)
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def test_64_greedy_tokens_equal_the_recorded_ones_of_transformers(smollm2):
    if not smollm2.source.endswith(".gguf"):
        pytest.skip("the weights came from the hub, not from the GGUF file")
    records = GOLDEN["prompts"]
    assert {n: prompt(n).tokens(smollm2.tokenizer) for n in records} == {
        n: record["tokens"] for n, record in records.items()
    }
    with jax.default_matmul_precision("highest"):
        ours = greedy(smollm2.module, [record["tokens"] for record in records.values()], 64)
    assert ours == [record["continuation"] for record in records.values()]
    assert all(len(row) == 64 for row in ours)


def test_prefill_logits_of_every_prompt_equal_those_of_transformers(smollm2, reference):
    import torch

    prompts = [p.tokens(smollm2.tokenizer) for p in PROMPTS]
    tokens, lengths = pad_prompts(prompts, smollm2.config.vocab_size)
    caches = smollm2.module.empty_caches(*tokens.shape)
    with jax.default_matmul_precision("highest"):
        step = nnx.jit(Llama.prefill)(
            smollm2.module, jnp.asarray(tokens), jnp.asarray(lengths), *caches
        )
    for ours, ids in zip(step.logits, prompts, strict=True):
        with torch.no_grad():
            expected = reference(torch.tensor([ids])).logits[0, -1].numpy()
        assert np.abs(expected).max() > 5
        np.testing.assert_allclose(ours, expected, atol=LOGIT_TOLERANCE, rtol=0)


def test_64_greedy_tokens_of_every_prompt_are_those_transformers_would_choose(smollm2, reference):
    import torch

    prompts = [p.tokens(smollm2.tokenizer) for p in PROMPTS]
    with jax.default_matmul_precision("highest"):
        ours = greedy(smollm2.module, prompts, 64)
    for ids, new in zip(prompts, ours, strict=True):
        # One pass over prompt and continuation: if the best token after each prefix is ours, then
        # greedy generation, prefix by prefix, is ours too.
        with torch.no_grad():
            logits = reference(torch.tensor([ids + new[:-1]])).logits[0, len(ids) - 1 :]
        assert logits.argmax(-1).tolist() == new


@pytest.mark.parametrize("text", TEXTS)
def test_token_ids_equal_those_of_transformers(smollm2, theirs, text):
    ids = smollm2.tokenizer.encode(text)
    assert ids == theirs.encode(text)
    assert smollm2.tokenizer.decode(ids) == theirs.decode(ids) == text


def test_chats_equal_those_of_transformers(smollm2, theirs):
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!\n"}
    reply = {"role": "assistant", "content": "Hello."}
    for messages in ([user], [system, user], [user, reply, user]):
        for add in (True, False):
            text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=add)
            ours = smollm2.tokenizer.chat(messages, add_generation_prompt=add)
            assert ours == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("text", [*NUMBERS, *TEXTS])
def test_token_ids_equal_those_of_transformers_with_the_digit_split_put_back(smollm2, theirs, text):
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    # As in the tokenizer.json that SmolLM2 is published with.
    original = Tokenizer.from_str(theirs.backend_tokenizer.to_str())
    split = Digits(individual_digits=True)
    original.pre_tokenizer = Sequence([split, ByteLevel(add_prefix_space=False)])
    assert smollm2.tokenizer.encode(text) == original.encode(text).ids
    assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(text)) == text


def test_bfloat16_parameters_choose_mostly_the_same_first_tokens(smollm2):
    from tkcc.models import registry

    rounded = registry.load("smollm2-135m", "bfloat16")
    prompts = [p.tokens(smollm2.tokenizer) for p in PROMPTS]
    exact, ours = greedy(smollm2.module, prompts, 1), greedy(rounded.module, prompts, 1)
    assert rounded.module.embedding[...].dtype == jnp.bfloat16
    assert sum(a == b for a, b in zip(exact, ours, strict=True)) >= 6
