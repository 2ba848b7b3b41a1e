"""JAX stays quiet on a machine with libtpu and no TPU, and the user's choice is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tkcc
from tkcc.backends.base import Target
from tkcc.backends.xla import platform

CODE = """
from tkcc.backends.base import Schedule, Target, get_backend
from tkcc.ir.text import parse_module
module = parse_module('module "m" func main { arg %x: f32[2] %0: f32[2] = lax.neg(%x) return %0 }')
cpu = Target.parse("xla:cpu")
program = get_backend("xla").compile(module, cpu)
with get_backend("xla").start(cpu, {}) as runtime:
    runtime.swap(program)
    import jax
    print(jax.config.jax_platforms, runtime.step("main", [jax.numpy.ones(2)])["0"].shape)
"""


def run(**changes: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    root = str(Path(tkcc.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        cwd=root,
        env={**kept, **changes},
        check=False,
    )


@pytest.mark.skipif(
    not platform.libtpu_installed() or platform.tpu_attached(),
    reason="needs libtpu and no TPU",
)
def test_compiling_for_the_cpu_prints_nothing_where_libtpu_finds_no_tpu() -> None:
    done = run()
    assert done.stderr == ""
    assert done.stdout.strip() == "cpu (2,)"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("libtpu_installed", False),
        ("tpu_attached", True),
        ("_gpu_plugin_installed", True),
        ("_started", True),
    ],
)
def test_platforms_are_left_alone_where_there_is_a_reason_to(
    name: str, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {
        "libtpu_installed": True,
        "tpu_attached": False,
        "_gpu_plugin_installed": False,
        "_started": False,
    }
    for key, value in {**usual, name: answer}.items():
        monkeypatch.setattr(platform, key, lambda value=value: value)
    set_platforms: list[tuple[str, str]] = []
    config = type(
        "Config",
        (),
        {"jax_platforms": None, "update": lambda self, *xs: set_platforms.append(xs)},
    )
    monkeypatch.setattr(platform.jax, "config", config())
    assert not platform.select_platforms()
    assert set_platforms == []
    monkeypatch.setattr(platform, name, lambda: usual[name])
    assert platform.select_platforms()
    assert set_platforms == [("jax_platforms", "cpu")]


def test_the_local_cpu_is_found_and_a_tpu_is_not() -> None:
    device = platform.local_device(Target.parse("xla:cpu"))
    assert device is not None
    assert device.platform == "cpu"
    if not platform.tpu_attached():
        assert platform.local_device(Target.parse("xla:tpu-v5e")) is None
