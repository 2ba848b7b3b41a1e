"""The environment variables that tkcc reads, in one place. A value that does not parse is refused.

TKCC_DEBUG   0 (default): one clear message per error. 1: tracebacks too.
TKCC_CACHE   folder for downloaded weights (default ~/.cache/tkcc).
TKCC_DATA    folder with traces and model configurations for tests and benchmarks.
"""

from __future__ import annotations

import os
from pathlib import Path

from tkcc.ir.errors import TkccError


def debug() -> int:
    """TKCC_DEBUG as a number from 0 to 5. Raises TkccError for anything else."""
    text = os.environ.get("TKCC_DEBUG", "0")
    if text not in tuple("012345"):
        raise TkccError(f"TKCC_DEBUG is {text!r}", remedy="set it to a number from 0 to 5")
    return int(text)


def data_folder() -> Path | None:
    """The folder of test data, or None if it is not there."""
    folder = Path(os.environ.get("TKCC_DATA") or "../shared/data")
    return folder if folder.is_dir() else None
