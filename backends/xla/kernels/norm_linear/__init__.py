"""norm_linear: a linear layer whose input is RMS-normalised on the way in, as one kernel."""

from tkcc.backends.xla.kernels.norm_linear.base import reference
from tkcc.backends.xla.kernels.norm_linear.config import Config, refuses, schedules, vmem_bytes
from tkcc.backends.xla.kernels.norm_linear.pallas import norm_linear

__all__ = ["Config", "norm_linear", "reference", "refuses", "schedules", "vmem_bytes"]
