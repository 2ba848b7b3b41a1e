"""Which of JAX's platforms this process uses, and the local device of a target."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import jax

from tkcc.backends.base import Target
from tkcc.ir.errors import BackendError

_TPU_DEVICES = ("accel*", "vfio/[0-9]*")


def select_platforms() -> bool:
    """Keep JAX from starting libtpu on a machine that has no TPU, where it prints errors.

    With libtpu installed and neither a TPU nor a GPU plugin, JAX's platforms are set to the CPU.
    Nothing is changed if the user chose platforms (JAX_PLATFORMS or jax.config) or if JAX has
    started its backends. Returns whether they were set. Call it before JAX is first used.
    """
    # JAX fills this from the environment's JAX_PLATFORMS too.
    chosen = jax.config.jax_platforms  # type: ignore[attr-defined]
    others = tpu_attached() or _gpu_plugin_installed()
    if chosen or others or not libtpu_installed() or _started():
        return False
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    return True


def _started() -> bool:
    # JAX has no public question for this; without the private one, nothing is changed.
    from jax._src import xla_bridge

    asked = getattr(xla_bridge, "backends_are_initialized", None)
    return True if asked is None else bool(asked())


def _gpu_plugin_installed() -> bool:
    # A list of platforms must name the plugin exactly and then fails without its device, so no
    # list is set beside one.
    announced = importlib.metadata.entry_points(group="jax_plugins")
    return bool(announced) or importlib.util.find_spec("jax_plugins") is not None


def libtpu_installed() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def tpu_attached() -> bool:
    """Whether a TPU's device files are there (asked without starting libtpu)."""
    devices = Path("/dev")
    return any(next(devices.glob(pattern), None) is not None for pattern in _TPU_DEVICES)


def local_device(target: Target) -> Any | None:
    """The first JAX device of this machine that is the target's chip; None if there is none."""
    platform = target.facts["platform"]
    if platform == "tpu" and not (libtpu_installed() and tpu_attached()):
        return None
    select_platforms()
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError:  # JAX's answer for a platform that is not here
        return None
    wanted = target.facts.get("device_kind")
    fitting = [item for item in devices if wanted is None or item.device_kind == wanted]
    return fitting[0] if fitting else None


def require_device(target: Target) -> Any:
    """`local_device`, or BackendError saying what JAX does see here."""
    device = local_device(target)
    if device is not None:
        return device
    seen = ", ".join(sorted({item.device_kind for item in jax.local_devices()}))
    raise BackendError(
        f"{target} cannot run here: JAX sees no such device (it sees: {seen})",
        remedy=_remedy(target),
    )


def _remedy(target: Target) -> str:
    if target.facts["platform"] == "tpu":
        return (
            "compiling for TPU works without one (program.sources, program.costs); "
            "to run, start xla:cpu, or use a machine with this TPU"
        )
    return "install JAX for this device (pip install 'jax[cuda13]' on NVIDIA), or use xla:cpu"
