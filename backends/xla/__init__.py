"""The XLA backend: jax.jit and Pallas. Runs on CPU and GPU; compiles for TPU without a TPU.

Importing this package imports no JAX and touches no device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tkcc.backends.xla.backend import XlaBackend


def create() -> XlaBackend:
    """The backend; called once by `tkcc.backends.base.get_backend`."""
    from tkcc.backends.xla.backend import XlaBackend

    return XlaBackend()
