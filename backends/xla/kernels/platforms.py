"""The platforms that a kernel may be asked about, and how much vector memory each has."""

from collections.abc import Mapping
from types import MappingProxyType

MIB = 1 << 20

VMEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "tpu-v4": 16 * MIB,
        "tpu-v5e": 128 * MIB,
        "tpu-v5p": 64 * MIB,
        "tpu-v6e": 128 * MIB,
        "tpu-v7x": 64 * MIB,
    }
)
"""Vector memory (VMEM) of one TensorCore, as jax.experimental.pallas.tpu.get_tpu_info states it."""

PLATFORMS = ("cpu", "gpu", *VMEM_BYTES)
"""cpu means Pallas' interpreter: it is right and slow, and it has no limit on memory."""

USABLE_SHARE = 0.9
"""The rest is left to the compiler: its own scratch, and buffers that XLA keeps in VMEM."""


def check_platform(platform: str) -> None:
    """Raise ValueError unless platform is one of PLATFORMS."""
    if platform not in PLATFORMS:
        raise ValueError(f"platform {platform!r} is unknown; use one of {', '.join(PLATFORMS)}")


def platform_refusal(platform: str) -> str | None:
    """Why no kernel of this folder runs on platform, or None. ValueError if it is unknown."""
    check_platform(platform)
    if platform != "gpu":
        return None
    return "this kernel is written for the TPU's Mosaic compiler, which has no GPU target"


def memory_refusal(needed: int, platform: str) -> str | None:
    """Why `needed` bytes of VMEM are too many for one TensorCore of platform, or None."""
    if platform not in VMEM_BYTES:
        return None
    usable = int(VMEM_BYTES[platform] * USABLE_SHARE)
    if needed <= usable:
        return None
    return (
        f"these blocks need {needed / MIB:.1f} MiB of VMEM, and {platform} has "
        f"{usable / MIB:.1f} MiB for one kernel; use smaller blocks"
    )


def vmem_limit(needed: int) -> int:
    """The VMEM limit to compile under, in bytes.

    The estimate, or 16 MiB (the compiler's least default) where the estimate is below that.
    """
    return max(needed, 16 * MIB)
