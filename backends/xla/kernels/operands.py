"""What kernels ask of an operand (its shape and dtype only), and the checks that they share."""

from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

HELD_DTYPES = ("float32", "bfloat16")


class Operand(Protocol):
    """An array, a tracer or a jax.ShapeDtypeStruct."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


def require(kernel: str, condition: bool, message: str) -> None:
    """Raise ValueError, naming the kernel, unless condition holds."""
    if not condition:
        raise ValueError(f"{kernel}: {message}")


Dimensions = dict[str, int | None]
"""Sizes by name; None stands for any size from 1 on."""


def require_shape(kernel: str, name: str, operand: Operand, expected: Dimensions) -> None:
    """Raise ValueError unless operand has these dimensions."""
    shape = tuple(operand.shape)
    fits = len(shape) == len(expected) and all(
        got >= 1 if want is None else got == want
        for got, want in zip(shape, expected.values(), strict=True)
    )
    wanted = ", ".join(dim if size is None else f"{dim}={size}" for dim, size in expected.items())
    require(kernel, fits, f"{name} has shape {shape}, but must be [{wanted}]")


def require_integers(kernel: str, name: str, operand: Operand) -> None:
    """Raise ValueError unless operand is int32, the type of positions and lengths."""
    dtype = np.dtype(operand.dtype)
    require(kernel, dtype == np.int32, f"{name} is {dtype}, but must be int32; cast it first")


def dtype_refusal(**operands: Operand) -> str | None:
    """Why these operands, which one product combines, have dtypes that no kernel holds, or None."""
    dtypes = {name: jnp.dtype(operand.dtype).name for name, operand in operands.items()}
    for name, dtype in dtypes.items():
        if dtype not in HELD_DTYPES:
            return f"{name} is {dtype}; the kernel holds {' and '.join(HELD_DTYPES)} only"
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        return f"operands must share one dtype, but {listed}"
    return None
