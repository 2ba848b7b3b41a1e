"""A checkpoint from the Hugging Face hub: safetensors and JSON only, one pinned commit."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from tkcc.models.pinned import HubSource, PinnedFile, Progress, Unavailable, verify, workspace


def from_hub(hub: HubSource, folder: Path, progress: Progress) -> Path:
    """Download the pinned files into `folder`/<revision>, all or none of them.

    Raises:
        Unavailable: no huggingface_hub, no network, or a file is not the pinned one.
    """
    where = f"Hugging Face hub ({hub.repository})"
    if importlib.util.find_spec("huggingface_hub") is None:
        raise Unavailable(f"{where}: the package huggingface_hub is not installed")
    total, done = sum(file.size for file in hub.files), 0
    with workspace(folder) as work:
        for file in hub.files:
            progress("download", done, total)
            _hub_download(hub, file, work, where)
            done += file.size
        progress("download", done, total)
        shutil.rmtree(folder / hub.revision, ignore_errors=True)
        complete = work / "complete"
        complete.mkdir()
        for file in hub.files:
            os.replace(work / file.name, complete / file.name)
        os.replace(complete, folder / hub.revision)
    return folder / hub.revision


def _hub_download(hub: HubSource, file: PinnedFile, work: Path, where: str) -> None:
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(hub.repository, file.name, revision=hub.revision, local_dir=work)
    except Exception as error:  # the client lets its HTTP library's own errors through
        raise Unavailable(f"{where}: {type(error).__name__}: {_first_line(error)}") from error
    verify(work / file.name, file)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
