"""The tensors of a folder of safetensors files, one file or several with an index."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tkcc.models.errors import ModelError
from tkcc.models.weights import Read

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def has_tensors(folder: Path) -> bool:
    """Whether the folder holds weights that `open_tensors` reads."""
    return (folder / WHOLE).is_file() or (folder / INDEX).is_file()


@contextlib.contextmanager
def open_tensors(folder: Path) -> Iterator[tuple[set[str], Read]]:
    """The names of all tensors, and a function that reads one, while the context is open.

    Nothing in the files is executed. Raises ModelError for files that are missing, damaged or
    not where the index says, and for tensors that are not floating.
    """
    if not has_tensors(folder):
        raise _error(folder, f"there is neither {WHOLE} nor {INDEX}")
    indexed = None if (folder / WHOLE).is_file() else _read_index(folder / INDEX)
    names = [WHOLE] if indexed is None else sorted(set(indexed.values()))
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(_open(folder / name)) for name in names}
        place = {tensor: name for name, file in files.items() for tensor in file.keys()}  # noqa: SIM118
        if indexed is not None and place != indexed:
            wrong = sorted(set(place.items()) ^ set(indexed.items()))[0]
            raise _error(folder, f"{INDEX} and the files differ about {wrong[0]!r} in {wrong[1]}")
        yield set(place), lambda tensor: _floating(tensor, files[place[tensor]].get_tensor(tensor))


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="flax") as file:  # numpy alone has no bfloat16
            yield file
    except (OSError, SafetensorError) as error:
        raise _error(path, f"the safetensors file cannot be read ({error})") from error


def _read_index(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _error(path, f"it cannot be read ({error})") from error
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table or not all(map(_is_plain_name, table.values())):
        raise _error(path, "weight_map must name a .safetensors file of this folder per tensor")
    return table


def _is_plain_name(name: Any) -> bool:
    plain = isinstance(name, str) and Path(name).name == name and "\\" not in name
    return plain and str(name).endswith(".safetensors")


def _floating(name: str, values: Any) -> np.ndarray:
    if values.dtype.name not in _FLOATS:
        raise ModelError(
            f"tensor {name!r} is {values.dtype.name}; only {', '.join(_FLOATS)} are read",
            where="checkpoint",
            remedy="use a checkpoint without quantisation",
        )
    return np.asarray(values)


def _error(path: Path, what: str) -> ModelError:
    return ModelError(what, where=str(path), remedy="fetch the checkpoint again")
