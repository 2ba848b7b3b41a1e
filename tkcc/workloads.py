"""What a user names on the command line: built-in models, IR files, and Python objects."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tkcc.backends.xla.platform import select_platforms
from tkcc.candidate import Workload
from tkcc.files import read_text
from tkcc.ir.errors import TkccError
from tkcc.ir.graph import Module
from tkcc.language import StepShape, lower_language_model
from tkcc.models import registry
from tkcc.models.loading import is_model_path, load_folder, load_path
from tkcc.models.prompts import PROMPTS
from tkcc.models.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Language:
    """A language model, lowered, with its tokenizer and weights."""

    module: Module
    shape: StepShape
    workload: Workload
    tokenizer: Any

    def prompt_sets(self, searched: int, kept: int) -> list[list[list[int]]]:
        """`searched` batches of token ids to search with, then `kept` to confirm with.

        The two kinds come from different built-in prompts. A batch with more rows than prompts
        takes shorter beginnings of them, so that no two rows are the same.
        """
        encoded = [p.tokens(self.tokenizer)[: self.shape.prompt] for p in PROMPTS]
        pools = [(encoded[::2], searched), (encoded[1::2], kept)]
        return [batch for pool, count in pools for batch in self._batches(pool, count)]

    def _batches(self, pool: list[list[int]], count: int) -> list[list[list[int]]]:
        rows = []
        for number in range(count * self.shape.batch):
            prompt = pool[number % len(pool)]
            rows.append(prompt[: max(4, len(prompt) - 3 * (number // len(pool)))])
        return [rows[i : i + self.shape.batch] for i in range(0, len(rows), self.shape.batch)]


def load_language(
    name: str, shape: StepShape, dtype: str = "float32", progress: Progress | None = None
) -> Language:
    """A built-in model, or that of a folder (see `lower_path`), with real weights.

    Raises ModelError if it cannot be had.
    """
    select_platforms()  # before JAX is used: no noise from a libtpu without a TPU
    model: Any
    if name not in registry.names() and is_model_path(name):
        tokenizer = Tokenizer.from_folder(Path(name))
        model = load_folder(name, dtype)
    else:
        loaded = registry.load(name, dtype, progress=progress)
        model, tokenizer = loaded.module, loaded.tokenizer
    module = lower_language_model(model, shape, name=_title(name))
    workload = Workload(
        model=name, dtype=dtype, batch=shape.batch, context=shape.context, prompt=shape.prompt
    )
    return Language(module, shape, workload, tokenizer)


def lower_path(
    path: str | Path, shape: StepShape, dtype: str = "float32", recognise: bool = True
) -> Module:
    """The module of a model's folder or `config.json`, with functions `prefill` and `decode`.

    The folder is one that transformers' `save_pretrained` wrote. Where it holds safetensors files,
    the weights are the module's values; a bare config gives shapes only. Raises ModelError.
    """
    select_platforms()
    model = load_path(path, dtype)
    return lower_language_model(model, shape, name=_title(path), recognise=recognise)


def _title(path: str | Path) -> str:
    """The folder's name, also for the `config.json` in it; the file's for another JSON file."""
    place = Path(path)
    if place.name == "config.json":
        return place.resolve().parent.name
    return place.stem if place.suffix == ".json" else place.resolve().name


def load_module(
    name: str, shape: StepShape, dtype: str = "float32", recognise: bool = True
) -> Module:
    """The module that `name` stands for, without weights where it is a built-in model.

    `name` is a built-in model, a folder or `config.json` (see `lower_path`), a file of IR text
    (`*.tkir`), or `package.module:attribute`, where the attribute is a Module or a function without
    arguments that returns one (that code is yours: it is imported and run). Raises TkccError.
    """
    select_platforms()
    if name in registry.names():
        model = registry.abstract(name, dtype)
        return lower_language_model(model, shape, name=name, recognise=recognise)
    if is_model_path(name):
        return lower_path(name, shape, dtype, recognise)
    if name.endswith(".tkir"):
        from tkcc.ir.text import parse_module

        return parse_module(read_text(Path(name), "IR file"), name)
    if ":" in name:
        return _python_module(name)
    raise TkccError(
        f"there is no model {name!r}",
        remedy=f"use {', '.join(registry.names())}, a folder with a config.json, a config.json, "
        "a file of IR text ending in .tkir, or package.module:attribute",
    )


def _python_module(name: str) -> Module:
    path, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(path), attribute)
    except (ImportError, AttributeError) as error:
        raise TkccError(
            f"cannot import {name}: {error}", remedy="check the path, and that it is installed"
        ) from error
    module = found() if callable(found) else found
    if not isinstance(module, Module):
        raise TkccError(
            f"{name} gave a {type(module).__name__}, not a tkcc module",
            remedy="return what tkcc.lower returns",
        )
    return module


def model_names() -> Sequence[str]:
    return registry.names()
