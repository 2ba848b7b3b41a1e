"""GGUF reading: exact values, and one clear error for every damaged file."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tkcc.models.errors import ModelError
from tkcc.models.gguf import GgufFile

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")


def test_metadata_and_tensors_equal_those_of_the_gguf_packages_own_reader(write_tiny_gguf):
    path = write_tiny_gguf(kinds={"blk.0.ffn_up.weight": "Q8_0"}).path
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    expected = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata == expected
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert (info.offset, info.size) == (tensor.data_offset, tensor.n_bytes)
    assert len(ours.tensors) == len(theirs.tensors)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_a_tensor_is_read_back_within_the_error_of_its_type(write_tiny_gguf, kind):
    name = "blk.1.ffn_down.weight"
    tiny = write_tiny_gguf(kinds={name: kind})
    got = GgufFile(tiny.path).read(name)
    step = np.abs(tiny.tensors[name]).max() / {"Q4_0": 7, "Q4_1": 7, "Q8_0": 127}.get(kind, 256)
    assert got.dtype == np.float32
    assert np.abs(got - tiny.tensors[name]).max() <= (0 if kind == "F32" else step)


def test_q4_1_blocks_mean_scale_times_nibble_plus_minimum(tmp_path):
    # One block by hand: f16 scale, f16 minimum, 16 bytes of low nibbles 0..15, high nibbles 15..0.
    nibbles = bytes(i | (15 - i) << 4 for i in range(16))
    block = np.frombuffer(np.array([0.5, -2.0], "<f2").tobytes() + nibbles, np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("w", block.reshape(1, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    low = 0.5 * np.arange(16) - 2.0
    expected = np.concatenate([low, low[::-1]])[None].astype(np.float32)
    np.testing.assert_array_equal(GgufFile(tmp_path / "q.gguf").read("w"), expected)


def test_every_cut_of_a_file_is_one_clear_error(write_tiny_gguf, tmp_path):
    whole = write_tiny_gguf().path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [0, 3, 8, 20, 24, 100, 1000, 5000, len(whole) // 2, len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            GgufFile(cut)


def test_an_array_that_claims_2_to_the_60_entries_is_refused_at_once(tmp_path):
    key = b"tokenizer.ggml.tokens"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, 2**60)
    path = tmp_path / "lie.gguf"
    path.write_bytes(header + entry + bytes(64))
    with pytest.raises(ModelError, match="cannot fit"):
        GgufFile(path)


def test_nested_arrays_are_refused_and_do_not_recurse(tmp_path):
    deep = struct.pack("<IQ", 9, 1) * 5000
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    path = tmp_path / "deep.gguf"
    path.write_bytes(header + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9) + deep)
    with pytest.raises(ModelError, match="arrays of metadata type 9"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    ],
)
def test_what_is_no_gguf_of_a_known_version_is_refused(tmp_path, content, message):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        GgufFile(tmp_path / "x.gguf")


def test_a_type_without_dequantisation_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "i.gguf", "llama")
    writer.add_tensor("counts", np.arange(4, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'counts' has type I32"):
        GgufFile(tmp_path / "i.gguf").read("counts")


def test_a_missing_file_and_a_missing_tensor_are_named(write_tiny_gguf, tmp_path):
    with pytest.raises(ModelError, match="none"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="there is no tensor 'w'"):
        GgufFile(write_tiny_gguf().path).read("w")


@pytest.fixture(scope="module")
def small_header() -> bytes:
    """A short GGUF by hand: three metadata entries and one F32 tensor."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    metadata = text(b"a") + struct.pack("<If", 6, 1.5)
    metadata += text(b"b") + struct.pack("<IIQ", 9, 8, 2) + text(b"x") + text(b"yz")
    metadata += text(b"general.alignment") + struct.pack("<II", 4, 32)
    tensor = text(b"w") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + metadata + tensor
    return head + bytes(-len(head) % 32) + np.arange(8, dtype="<f4").tobytes()


def test_the_hand_written_file_reads_as_written(small_header, tmp_path):
    (tmp_path / "h.gguf").write_bytes(small_header)
    file = GgufFile(tmp_path / "h.gguf")
    assert file.metadata == {"a": 1.5, "b": ["x", "yz"], "general.alignment": 32}
    np.testing.assert_array_equal(file.read("w"), np.arange(8.0).reshape(2, 4))


@settings(max_examples=300, deadline=None)
@given(changes=st.dictionaries(st.integers(0, 191), st.integers(0, 255), min_size=1, max_size=4))
def test_no_change_of_bytes_gives_anything_but_values_or_a_model_error(
    small_header, tmp_path_factory, changes
):
    damaged = bytearray(small_header)
    for position, value in changes.items():
        damaged[position % len(damaged)] = value
    path: Path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(ModelError):  # anything else fails the test
        file = GgufFile(path)
        for name in file.tensors:
            file.read(name)
