"""Reading GGUF files: metadata, and tensors dequantised to float32.

The file is untrusted input. The `gguf` package's own reader believes every length it reads (an
array that claims 2**60 entries keeps it busy for ever) and takes seconds for a large vocabulary, so
the header is parsed here with every length checked against the bytes that are left; the package
supplies the block layouts and the dequantisation. Nothing in a file is imported or executed.

Format: the GGUF specification, versions 2 and 3, little endian (ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tkcc.models.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS[12] = "d"
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies: `shape` in numpy order (slowest axis first), `offset` in the file."""

    name: str
    shape: tuple[int, ...]
    kind: str  # GGML type name: "F32", "Q4_1", ...
    offset: int
    size: int  # bytes


class GgufFile:
    """One GGUF file, memory-mapped: `metadata` by key, `tensors` by name.

    Example: `GgufFile(path).read("output_norm.weight")` gives a float32 array.

    Raises:
        ModelError: the file is not GGUF, is cut short, contradicts itself, or uses a tensor type
            that the `gguf` package cannot dequantise.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._bytes = _map(self.path)
        cursor = _Cursor(self._bytes, self.path)
        try:
            self.metadata, self.tensors = _read_header(cursor)
        except UnicodeDecodeError as error:
            raise cursor.error(f"a string is not UTF-8 ({error.reason})") from error

    def read(self, name: str) -> np.ndarray:
        """The tensor `name` as float32, in numpy order: a matrix is [out, in]."""
        info = self.tensors.get(name)
        if info is None:
            raise _error(self.path, f"there is no tensor {name!r}")
        raw = np.frombuffer(self._bytes, np.uint8, info.size, info.offset)
        return _dequantize(raw, info, self.path)


def _dequantize(raw: np.ndarray, info: TensorInfo, path: Path) -> np.ndarray:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    rows = raw.reshape(math.prod(info.shape[:-1]), -1)
    try:
        values = dequantize(rows, GGMLQuantizationType[info.kind])
    except NotImplementedError as error:
        raise _error(path, f"tensor {info.name!r} has type {info.kind}: cannot be read") from error
    return values.reshape(info.shape).astype(np.float32, copy=False)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise _error(path, f"the file cannot be read ({error})") from error


class _Cursor:
    """A read position that never leaves the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.position, self.end = data, path, 0, len(data)

    def error(self, what: str) -> ModelError:
        return _error(self.path, f"{what}, at byte {self.position:,} of {self.end:,}")

    def skip(self, size: int) -> int:
        """Advance over `size` bytes that must exist; the position before them."""
        if size > self.end - self.position:
            raise self.error(f"the file ends inside a field of {size:,} bytes")
        start, self.position = self.position, self.position + size
        return start

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack_from("<" + layout, self.data, self.skip(struct.calcsize("<" + layout)))

    def string(self) -> str:
        (size,) = self.unpack("Q")
        start = self.skip(size)
        return self.data[start : start + size].decode("utf-8")

    def count(self, smallest: int, what: str) -> int:
        """A u64 number of items, each at least `smallest` bytes."""
        (count,) = self.unpack("Q")
        if count > (self.end - self.position) // smallest:
            raise self.error(f"{count:,} {what} cannot fit into the rest of the file")
        assert isinstance(count, int)
        return count


def _read_header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    magic, version = cursor.unpack("4sI")
    if magic != b"GGUF":
        raise cursor.error("this is not a GGUF file")
    if version not in (2, 3):
        raise cursor.error(f"GGUF version {version} (or byte order) is not supported")
    tensor_count = cursor.count(24, "tensors")
    metadata: dict[str, Any] = {}
    for _ in range(cursor.count(13, "metadata entries")):
        key = cursor.string()
        if key in metadata:
            raise cursor.error(f"metadata key {key!r} appears twice")
        metadata[key] = _read_value(cursor, *cursor.unpack("I"))
    return metadata, _read_tensors(cursor, tensor_count, metadata)


def _read_value(cursor: _Cursor, kind: int) -> Any:
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _read_array(cursor, *cursor.unpack("I"))
    if kind not in _SCALARS:
        raise cursor.error(f"metadata type {kind} is unknown")
    return cursor.unpack(_SCALARS[kind])[0]


def _read_array(cursor: _Cursor, kind: int) -> list[Any]:
    if kind == _STRING:
        return [cursor.string() for _ in range(cursor.count(8, "strings"))]
    if kind not in _SCALARS:
        raise cursor.error(f"arrays of metadata type {kind} are not supported")
    count = cursor.count(struct.calcsize("<" + _SCALARS[kind]), "array entries")
    return list(cursor.unpack(f"{count}{_SCALARS[kind]}"))


def _read_tensors(cursor: _Cursor, count: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
    entries = [_read_tensor_entry(cursor) for _ in range(count)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not (isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1) == 0):
        raise cursor.error(f"general.alignment is {alignment!r}, not a power of two")
    base = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise cursor.error(f"tensor {name!r} appears twice")
        tensors[name] = _locate(cursor, name, shape, kind, base + offset)
    return tensors


def _read_tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    (dimensions,) = cursor.unpack("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name!r} has {dimensions} dimensions")
    shape = cursor.unpack(f"{dimensions}Q")[::-1]  # GGUF lists the fastest axis first
    kind, offset = cursor.unpack("IQ")
    return name, shape, kind, offset


def _locate(
    cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> TensorInfo:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if kind not in GGMLQuantizationType.__members__.values():
        raise cursor.error(f"tensor {name!r} has the unknown type {kind}")
    known = GGMLQuantizationType(kind)
    block, block_bytes = GGML_QUANT_SIZES[known]
    if shape[-1] == 0 or shape[-1] % block:
        raise cursor.error(f"tensor {name!r}: rows of {shape[-1]} are no {known.name} blocks")
    size = math.prod(shape) // block * block_bytes
    if size == 0 or offset + size > cursor.end:
        raise cursor.error(f"tensor {name!r} of {size:,} bytes at {offset:,} is not in the file")
    return TensorInfo(name, shape, known.name, offset, size)


def _error(path: Path, what: str) -> ModelError:
    return ModelError(what, where=str(path), remedy="fetch it again: it may be cut or damaged")
