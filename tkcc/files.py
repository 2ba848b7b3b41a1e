"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tkcc.ir.errors import TkccError


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically (a new file in the same folder, then a rename).

    Creates missing folders. Raises TkccError if the place cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise TkccError(
            f"cannot write {path.name}: {error.strerror}",
            where=str(path.parent),
            remedy="choose a folder that can be written and has space",
        ) from error


def read_text(path: Path, what: str, limit: int = 64 << 20) -> str:
    """The file's text. Raises TkccError if it is missing, too large or not UTF-8."""
    try:
        if path.stat().st_size > limit:
            raise TkccError(
                f"{what} {path} is larger than {limit >> 20} MiB", remedy="check the path"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TkccError(
            f"cannot read {what} {path}: {error.strerror}", remedy="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise TkccError(f"{what} {path} is not UTF-8 text", remedy="check the path") from error
