"""Every kernel compiles for TPUs with libtpu's compiler, which needs no TPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backends.xla.kernels import tpu_compile_child
from tests.backends.xla.kernels.tpu_compile_child import JOBS, TOO_LITTLE, TOPOLOGIES

ROOT = Path(__file__).parents[4]

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else it fails while another process holds libtpu
}

MIB = 1 << 20


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the child found: platform -> job -> error, number of kernel calls, temporary bytes."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: it has wheels for Linux on x86-64 only")
    answer = tmp_path_factory.mktemp("tpu") / "answer.json"
    done = subprocess.run(
        [sys.executable, "-m", tpu_compile_child.__name__, str(answer)],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(answer.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("platform", TOPOLOGIES)
@pytest.mark.parametrize("job", JOBS)
def test_kernel_compiles_as_one_mosaic_call_within_its_estimate_of_vmem(
    compiled: dict[str, dict[str, Any]], job: str, platform: str
) -> None:
    found = compiled[platform][job]
    assert found["error"] is None, f"{found['config']}: {found['error']}"
    assert found["calls"] == 1


def test_a_limit_below_the_need_does_not_compile(compiled: dict[str, dict[str, Any]]) -> None:
    error = compiled["tpu-v5e"][TOO_LITTLE]["error"]
    assert error is not None
    assert "vmem" in error


@pytest.mark.parametrize("platform", TOPOLOGIES)
@pytest.mark.parametrize(
    ("job", "cache_mib"),
    [
        ("decode_attention, 8 key heads", 64),
        ("decode_attention, 2 key heads", 64),
        ("decode_attention, 10 key heads", 80),
    ],
)
def test_the_first_schedule_of_decode_attention_copies_no_cache(
    compiled: dict[str, dict[str, Any]], job: str, cache_mib: int, platform: str
) -> None:
    assert compiled[platform][job]["temporary"] < cache_mib * MIB / 8
