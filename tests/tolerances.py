"""How far two results may differ, by the dtype in which the op rounds its result.

One table for all tests; loosening it is a reviewed change.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

# IR dtype name -> (relative, absolute) tolerance against a float64 reference.
TOLERANCES: dict[str, tuple[float, float]] = {
    "f64": (1e-12, 1e-12),
    "c128": (1e-12, 1e-12),
    "f32": (2e-5, 2e-6),
    "c64": (2e-5, 2e-6),
    "f16": (2e-3, 1e-3),
    "bf16": (2e-2, 1e-2),
}
# The same JAX program compiled twice: fusion may reorder sums.
SAME_PROGRAM = (1e-6, 1e-6)


def assert_close(got: Any, want: Any, dtype: str) -> None:
    """`got` equals the reference `want` to the tolerance of an IR dtype."""
    relative, absolute = TOLERANCES[dtype]
    np.testing.assert_allclose(
        np.asarray(got, np.complex128 if dtype[0] == "c" else np.float64),
        want,
        rtol=relative,
        atol=absolute,
    )


def assert_same_program(got: Any, want: Any) -> None:
    """Equal types; equal integers, booleans and keys; floats equal up to reordered sums."""
    got, want = _plain(got), _plain(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    relative, absolute = SAME_PROGRAM
    np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=relative, atol=absolute)


def assert_identical(got: Any, want: Any) -> None:
    """Equal types and equal bits."""
    got, want = _plain(got), _plain(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.tobytes() == want.tobytes()


def _plain(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)
