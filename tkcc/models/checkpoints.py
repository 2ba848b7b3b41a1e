"""Reading a Llama checkpoint from disk: config, float32 parameters and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tkcc.models.errors import ModelError
from tkcc.models.gguf import GgufFile
from tkcc.models.llama_config import LlamaConfig
from tkcc.models.llama_fields import config_from_gguf, config_from_hf
from tkcc.models.llama_weights import GGUF, HUGGING_FACE, load_parameters
from tkcc.models.tokenizer import Tokenizer


class Contents(NamedTuple):
    """What a checkpoint holds."""

    config: LlamaConfig
    parameters: dict[str, Any]  # nested names -> f32 arrays, in the layout of `Llama`
    tokenizer: Tokenizer


def read_checkpoint(path: Path | str) -> Contents:
    """Read a GGUF file, or a folder with `config.json`, `model.safetensors` and `tokenizer.json`.

    Raises:
        ModelError: a file is missing, damaged, or describes a model that is not implemented.
    """
    path = Path(path)
    return _read_folder(path) if path.is_dir() else _read_gguf(path)


def _read_gguf(path: Path) -> Contents:
    file = GgufFile(path)
    config = config_from_gguf(file.metadata, tied=GGUF.head not in file.tensors)
    parameters = load_parameters(config, GGUF, set(file.tensors), file.read)
    return Contents(config, parameters, Tokenizer.from_gguf(file.metadata))


def _read_folder(folder: Path) -> Contents:
    try:
        config = config_from_hf(json.loads((folder / "config.json").read_bytes()))
    except (OSError, ValueError) as error:
        raise _error(folder, f"config.json cannot be read ({error})") from error
    parameters = _read_safetensors(folder / "model.safetensors", config)
    return Contents(config, parameters, Tokenizer.from_folder(folder))


def _read_safetensors(path: Path, config: LlamaConfig) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="flax") as file:  # numpy alone has no bfloat16
            present = set(file.keys())
            if config.tie_word_embeddings:
                present.discard(HUGGING_FACE.head)  # some files repeat the embedding here
            return load_parameters(
                config, HUGGING_FACE, present, lambda name: np.asarray(file.get_tensor(name))
            )
    except (OSError, SafetensorError) as error:
        raise _error(path, f"the safetensors file cannot be read ({error})") from error


def _error(path: Path, what: str) -> ModelError:
    return ModelError(what, where=str(path), remedy="fetch the checkpoint again")
