"""decode_attention: one query per sequence against its cache of keys and values."""

from tkcc.backends.xla.kernels.decode_attention.base import reference
from tkcc.backends.xla.kernels.decode_attention.config import Config, refuses, schedules, vmem_bytes
from tkcc.backends.xla.kernels.decode_attention.pallas import decode_attention

__all__ = ["Config", "decode_attention", "reference", "refuses", "schedules", "vmem_bytes"]
