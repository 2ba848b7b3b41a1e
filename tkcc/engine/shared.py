"""Weights in memory that several processes map, and that none can change.

The segment is an anonymous file: it has no name, a child process is handed its descriptor, and it
is gone with the last process that holds it, however that ends. On Linux it is sealed after it was
written, so that the kernel refuses every write, the owner's too.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from tkcc.ir.errors import TkccError
from tkcc.ir.types import dtype_name, jax_dtype

_ALIGNMENT = 64  # XLA on the CPU uses such memory as it is


@dataclasses.dataclass(frozen=True)
class Piece:
    """One array of a segment: `offset` in bytes, dtype by IR name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What lies where in a segment of `size` bytes. Plain data: `to_plain` and `of_plain`."""

    size: int
    pieces: tuple[Piece, ...]

    def to_plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Manifest:
        pieces = tuple(
            Piece(p["name"], p["dtype"], tuple(p["shape"]), p["offset"]) for p in plain["pieces"]
        )
        return Manifest(plain["size"], pieces)


class SharedWeights:
    """The owner's side: writes arrays once, hands out `descriptor` and `manifest`.

    Example:
        with SharedWeights({"w": array}) as shared:
            child = subprocess.Popen(..., pass_fds=[shared.descriptor])
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.manifest = _laid_out(arrays)
        self.descriptor = _anonymous_file(self.manifest.size)
        try:
            self.sealed = self._write(arrays)
        except BaseException:
            self.close()
            raise

    def _write(self, arrays: Mapping[str, Any]) -> bool:
        with mmap.mmap(self.descriptor, self.manifest.size) as memory:
            for piece in self.manifest.pieces:
                source = np.ascontiguousarray(arrays[piece.name])
                view = _view(memory, piece)
                view[...] = source.reshape(piece.shape)
                del view  # a mapping that is still viewed cannot be closed
            memory.flush()
        return _seal(self.descriptor)

    def close(self) -> None:
        """Give the descriptor up; processes that have mapped the segment keep it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> SharedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def mapped(descriptor: int, manifest: Manifest) -> dict[str, np.ndarray[Any, Any]]:
    """Read-only arrays over the segment, without a copy. Raises TkccError if it is too short."""
    size = os.fstat(descriptor).st_size
    if size < manifest.size:
        raise TkccError(
            f"the shared weights have {size} bytes, their manifest says {manifest.size}",
            remedy="start the engine again",
        )
    memory = mmap.mmap(descriptor, manifest.size, access=mmap.ACCESS_READ)
    return {piece.name: _view(memory, piece) for piece in manifest.pieces}


def _laid_out(arrays: Mapping[str, Any]) -> Manifest:
    offset, pieces = 0, []
    for name, array in arrays.items():
        offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
        pieces.append(Piece(name, dtype_name(array.dtype), tuple(array.shape), offset))
        offset += int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize
    return Manifest(max(offset, 1), tuple(pieces))


def _view(memory: mmap.mmap, piece: Piece) -> np.ndarray[Any, Any]:
    dtype = np.dtype(jax_dtype(piece.dtype))
    count = int(np.prod(piece.shape))
    flat: np.ndarray[Any, Any] = np.frombuffer(memory, dtype, count, piece.offset)
    return flat.reshape(piece.shape)


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tkcc-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _seal(descriptor: int) -> bool:
    """Whether the kernel now refuses writes."""
    import fcntl

    if not hasattr(fcntl, "F_ADD_SEALS"):
        return False
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return True
