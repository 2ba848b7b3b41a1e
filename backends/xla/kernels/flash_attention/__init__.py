"""flash_attention: the attention of prefill, many queries per sequence, over blocks of keys."""

from tkcc.backends.xla.kernels.flash_attention.base import reference
from tkcc.backends.xla.kernels.flash_attention.config import Config, refuses, schedules, vmem_bytes
from tkcc.backends.xla.kernels.flash_attention.pallas import flash_attention

__all__ = ["Config", "flash_attention", "reference", "refuses", "schedules", "vmem_bytes"]
