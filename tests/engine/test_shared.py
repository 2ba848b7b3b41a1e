"""Shared weights: the same bytes in another process, read-only, gone with their last holder."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from tkcc.engine.shared import Manifest, SharedWeights, mapped
from tkcc.ir.errors import TkccError

ARRAYS = {
    "a": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "b": np.arange(7).astype(ml_dtypes.bfloat16),
    "scalar": np.array(3, np.int32),
    "empty": np.zeros((0, 4), np.float32),
}
CHILD = """
import json, sys
from tkcc.engine.shared import Manifest, mapped
arrays = mapped(int(sys.argv[1]), Manifest.of_plain(json.loads(sys.argv[2])))
print(json.dumps({name: [str(a.dtype), a.astype(float).tolist()] for name, a in arrays.items()}))
"""


def test_another_process_sees_the_same_arrays() -> None:
    with SharedWeights(ARRAYS) as shared:
        plain = json.dumps(shared.manifest.to_plain())
        command = [sys.executable, "-c", CHILD, str(shared.descriptor), plain]
        done = subprocess.run(
            command, pass_fds=[shared.descriptor], capture_output=True, text=True, check=True
        )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == {n: [str(a.dtype), a.astype(float).tolist()] for n, a in ARRAYS.items()}


def test_nobody_can_write_once_they_are_made() -> None:
    with SharedWeights(ARRAYS) as shared:
        if not shared.sealed:
            pytest.skip("this system has no sealed memory")
        with pytest.raises((PermissionError, OSError)):
            mmap.mmap(shared.descriptor, shared.manifest.size)
        with pytest.raises(PermissionError):
            os.ftruncate(shared.descriptor, 1)
        array = mapped(shared.descriptor, shared.manifest)["a"]
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_arrays_start_where_xla_can_use_them_as_they_are() -> None:
    with SharedWeights(ARRAYS) as shared:
        assert all(piece.offset % 64 == 0 for piece in shared.manifest.pieces)


def test_mapped_arrays_outlive_the_owner() -> None:
    with SharedWeights(ARRAYS) as shared:
        arrays = mapped(shared.descriptor, shared.manifest)
    np.testing.assert_array_equal(arrays["a"], ARRAYS["a"])


def test_a_manifest_that_does_not_fit_is_refused() -> None:
    with SharedWeights(ARRAYS) as shared:
        longer = Manifest(shared.manifest.size + 1, shared.manifest.pieces)
        with pytest.raises(TkccError, match="their manifest says"):
            mapped(shared.descriptor, longer)
