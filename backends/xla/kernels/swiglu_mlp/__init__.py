"""swiglu_mlp: a gated feed-forward layer (gate, up, activation, down) as one kernel."""

from tkcc.backends.xla.kernels.swiglu_mlp.base import ACTIVATIONS, reference
from tkcc.backends.xla.kernels.swiglu_mlp.config import Config, refuses, schedules, vmem_bytes
from tkcc.backends.xla.kernels.swiglu_mlp.pallas import swiglu_mlp

__all__ = [
    "ACTIVATIONS",
    "Config",
    "reference",
    "refuses",
    "schedules",
    "swiglu_mlp",
    "vmem_bytes",
]
