"""Models from a folder (or a `config.json`) as transformers' `save_pretrained` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tkcc.models.causal import CausalModel
from tkcc.models.errors import ModelError
from tkcc.models.families import family_of
from tkcc.models.tensors import has_tensors, open_tensors

DTYPES = ("float32", "bfloat16")
_MOST_BYTES = 1 << 24  # of a config.json


def load_folder(path: Path | str, dtype: str = "float32") -> CausalModel:
    """The model of a folder with `config.json` and safetensors files.

    Args:
        path: the folder.
        dtype: of the parameters, "float32" or "bfloat16". Some small ones (a router's correction
            bias, say) stay in float32 where their family needs it.

    Raises:
        ModelError: a file that is missing or damaged; a model type, config field or dtype that
            is not implemented; a tensor that is missing, unexpected or of another shape. By name.
    """
    check_dtype(dtype)
    folder = Path(path)
    values = read_fields(folder)
    family = family_of(values)
    config = family.config(values)
    with open_tensors(folder) as (present, read):
        return family.load(config, present, read, dtype)


def abstract_folder(path: Path | str, dtype: str = "float32") -> CausalModel:
    """The model of a folder or `config.json`, with shapes only. Raises ModelError."""
    check_dtype(dtype)
    values = read_fields(Path(path))
    family = family_of(values)
    return family.abstract(family.config(values), dtype)


def load_path(path: Path | str, dtype: str = "float32") -> CausalModel:
    """`load_folder` where the path is a folder with weights, else `abstract_folder`."""
    found = Path(path)
    weights = found.is_dir() and has_tensors(found)
    return load_folder(found, dtype) if weights else abstract_folder(found, dtype)


def is_model_path(path: Path | str) -> bool:
    """Whether this is a folder with a `config.json`, or a JSON file."""
    found = Path(path)
    return (found / "config.json").is_file() or (found.suffix == ".json" and found.is_file())


def read_fields(path: Path) -> Mapping[str, Any]:
    """The fields of a `config.json`, or of the one in a folder. Raises ModelError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise _error(file, "it is too large for a config")
        values = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _error(file, f"it cannot be read ({error})") from error
    if not isinstance(values, dict):
        raise _error(file, "it holds no JSON object")
    return values


def check_dtype(dtype: str) -> None:
    """Raises ModelError for a dtype that parameters cannot have."""
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not offered", remedy=f"use {' or '.join(DTYPES)}")


def _error(path: Path, what: str) -> ModelError:
    return ModelError(what, where=str(path), remedy="give a model's folder or its config.json")
