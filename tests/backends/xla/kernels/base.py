"""What the tests of all Pallas kernels share: random operands and how results are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.tolerances import TOLERANCES

DTYPES = (jnp.float32, jnp.bfloat16)
_IN_A_HURRY: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
}
_IR_NAMES = {"float32": "f32", "bfloat16": "bf16"}


class Operands:
    """Random operands, the same for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self.numbers = np.random.default_rng(seed)

    def normal(self, shape: tuple[int, ...], dtype: Any, deviation: float = 1.0) -> jax.Array:
        return jnp.asarray(self.numbers.normal(size=shape) * deviation, dtype)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> jax.Array:
        """int32, from low to below high."""
        return jnp.asarray(self.numbers.integers(low, high, size=shape), jnp.int32)


def run(function: Callable[..., jax.Array], *arrays: Any) -> jax.Array:
    """function of arrays (some may be None), compiled in a hurry: compiling takes longest here."""
    compiled = jax.jit(function).lower(*arrays).compile(compiler_options=_IN_A_HURRY)
    result: jax.Array = compiled(*arrays)
    return result


def shapes_of(*operands: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]


def assert_near(got: jax.Array, want: Any, dtype: Any) -> None:
    """Equal shapes, and no element off by more than dtype's tolerance of the largest magnitude.

    Sums of many terms that nearly cancel have no accurate digits of their own.
    """
    relative, _ = TOLERANCES[_IR_NAMES[jnp.dtype(dtype).name]]
    found, wanted = wide(got, want)
    assert found.shape == wanted.shape
    assert np.isfinite(found).all()
    largest = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=relative * largest)


def wide(*arrays: Any) -> list[np.ndarray[Any, Any]]:
    """As float64 numpy arrays, for an oracle that shares no code with the kernels."""
    return [np.asarray(array, np.float64) for array in arrays]
