"""flash_attention: the attention of prefill, many queries per sequence, over blocks of keys."""

from tkcc.backends.xla.kernels.flash_attention.base import reference
from tkcc.backends.xla.kernels.flash_attention.pallas import (
    Config,
    flash_attention,
    refuses,
    schedules,
    vmem_bytes,
)

__all__ = ["Config", "flash_attention", "reference", "refuses", "schedules", "vmem_bytes"]
