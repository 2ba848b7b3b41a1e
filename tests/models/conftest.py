"""Shared by the tests of `tkcc.models`: a tiny checkpoint as GGUF, and the real SmolLM2."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from tkcc.models import registry
from tkcc.models.errors import ModelError
from tkcc.models.llama import Llama, abstract_llama, llama_from_parameters
from tkcc.models.llama_config import LlamaConfig
from tkcc.models.registry import LoadedModel

TINY = LlamaConfig(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    tie_word_embeddings=True,
)


@pytest.fixture
def tiny_config() -> LlamaConfig:
    return TINY


@pytest.fixture(scope="session")
def tiny_model() -> Llama:
    """A model of TINY whose random weights give attention and logits that are far from flat."""
    draw = np.random.default_rng(3).standard_normal
    abstract = nnx.to_pure_dict(nnx.state(abstract_llama(TINY)))
    parameters = jax.tree.map(lambda x: 0.16 * draw(x.shape), abstract)
    parameters["final_norm"] += 1
    for norm in ("attention_norm", "mlp_norm"):
        parameters["layers"][norm] += 1
    return llama_from_parameters(TINY, parameters)


@dataclasses.dataclass
class TinyGguf:
    """A GGUF file and the checkpoint tensors in it, in the row order before llama.cpp's."""

    path: Path
    tensors: dict[str, np.ndarray]


@pytest.fixture
def write_tiny_gguf(tmp_path: Path) -> Callable[..., TinyGguf]:
    """Write TINY as GGUF with random weights; `kinds` gives a tensor another GGML type."""
    pytest.importorskip("gguf", reason="writing GGUF test files needs the gguf package")

    def write(kinds: dict[str, str] | None = None, extra: dict[str, Any] | None = None) -> TinyGguf:
        tensors = _random_tensors(TINY)
        path = tmp_path / "tiny.gguf"
        _write(path, tensors, kinds or {}, extra or {})
        return TinyGguf(path, tensors)

    return write


def _random_tensors(config: LlamaConfig) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).standard_normal
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    for i in range(config.num_layers):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (hidden,),
            f"blk.{i}.attn_q.weight": (query, hidden),
            f"blk.{i}.attn_k.weight": (key, hidden),
            f"blk.{i}.attn_v.weight": (key, hidden),
            f"blk.{i}.attn_output.weight": (hidden, query),
            f"blk.{i}.ffn_norm.weight": (hidden,),
            f"blk.{i}.ffn_gate.weight": (inner, hidden),
            f"blk.{i}.ffn_up.weight": (inner, hidden),
            f"blk.{i}.ffn_down.weight": (hidden, inner),
        }
    return {name: draw(shape).astype(np.float32) * 0.2 for name, shape in shapes.items()}


def _write(
    path: Path, tensors: dict[str, np.ndarray], kinds: dict[str, str], extra: dict[str, Any]
) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(TINY.num_layers)
    writer.add_embedding_length(TINY.hidden_size)
    writer.add_feed_forward_length(TINY.intermediate_size)
    writer.add_head_count(TINY.num_heads)
    writer.add_head_count_kv(TINY.num_kv_heads)
    writer.add_layer_norm_rms_eps(TINY.rms_norm_eps)
    writer.add_rope_freq_base(TINY.rope_theta)
    for key, value in {**_tokenizer_metadata(), **extra}.items():
        writer.add_key_value(key, value, _gguf_type(value))
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType[kinds.get(name, "F32")]
        stored = gguf.quants.quantize(_llama_cpp_order(name, values), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_type(value: Any) -> Any:
    import gguf

    return gguf.GGUFValueType.get_type(value)


def _llama_cpp_order(name: str, values: np.ndarray) -> np.ndarray:
    """Row r of a head goes to 2r, row r + d/2 to 2r + 1, as llama.cpp's converter does it."""
    if not (".attn_q." in name or ".attn_k." in name):
        return values
    moved = np.empty_like(values)
    half = TINY.head_dim // 2
    for row in range(values.shape[0]):
        head, r = divmod(row, TINY.head_dim)
        moved[head * TINY.head_dim + 2 * (r % half) + r // half] = values[row]
    return moved


def _tokenizer_metadata() -> dict[str, Any]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    pairs = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "Ġ"), ("1", "2"), ("i", "n")]
    merged = [left + right for left, right in pairs]
    special = ["<|end|>", "<|user|>"]
    fill = [f"<unused{i}>" for i in range(TINY.vocab_size - 256 - len(merged) - len(special))]
    tokens = special + alphabet + merged + fill
    control = [3] * len(special) + [1] * 256 + [1] * len(merged) + [3] * len(fill)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": control,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in pairs],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": (
            "{% for m in messages %}<|user|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
        ),
    }


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The real model; the test is skipped, with the reason, where its weights cannot be had."""
    try:
        return registry.load("smollm2-135m")
    except ModelError as error:
        pytest.skip(str(error))
