"""Arithmetic, comparisons, bits, complex numbers, conversions, special functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from tests.frontends.programs.program import BOOLS, INTS, UNIT, WORDS, X, Y, program

Z = (X + 1j * Y).astype(np.complex64)


def each(*functions: Any) -> Any:
    """One program of several functions of the same arguments."""
    return lambda *args: tuple(f(*args) for f in functions)


def _narrow_and_back(x: Any, dtype: Any) -> Any:
    return lax.convert_element_type(lax.convert_element_type(x, dtype), jnp.float32)


NARROW = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "int8")

PROGRAMS = {
    "trigonometric": program(
        each(lax.sin, lax.cos, lax.tan, lax.asin, lax.acos, lax.atan, lax.sinh, lax.cosh), UNIT
    ),
    "inverse hyperbolic": program(
        each(lax.asinh, lambda x: lax.acosh(x + 1), lax.atanh, lax.tanh), UNIT
    ),
    "exponents and logarithms": program(
        each(lax.exp, lax.exp2, lax.expm1, lax.log, lax.log1p, lax.logistic), UNIT
    ),
    "roots and powers": program(
        each(lax.sqrt, lax.rsqrt, lax.cbrt, lax.square, lax.reciprocal, lambda x: x**5), UNIT
    ),
    "rounding and signs": program(
        each(
            lax.abs,
            lax.neg,
            lax.sign,
            lax.floor,
            lax.ceil,
            lax.is_finite,
            lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
            lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
        ),
        X * 3,
    ),
    "binary": program(
        each(lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.atan2), X, Y
    ),
    "powers": program(lax.pow, UNIT, Y),
    "power by integers": program(lax.pow, X, np.int32(3)),
    "neighbours": program(lax.nextafter, X, Y),
    "literals of several dtypes": program(lambda x, i: (x * 2.5 + 1, i * 3 - 7), X, INTS),
    "scalars": program(lambda a, b: a * b + 1, 2.0, 3),
    "broadcast arithmetic": program(lambda x: x + x[0] * x[:, :1], X),
    "accuracy": program(lambda x: lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST), X),
    "tolerance": program(lambda x: lax.sin(x, accuracy=lax.Tolerance(atol=1e-3, rtol=1e-3)), X),
    "comparisons": program(each(lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge), X, Y),
    "selection": program(
        lambda p, x, y: (lax.select(p, x, y), jnp.where(p, x, 0.0), lax.clamp(-0.5, x, 0.5)),
        BOOLS,
        X,
        Y,
    ),
    "selection of three": program(
        lambda i, x, y: lax.select_n(i % 3, x, y, x + y), np.abs(INTS), X, Y
    ),
    "integer arithmetic": program(
        lambda a, b: (a + b, a - b, a * b, a // b, a % b, lax.div(a, b), lax.rem(a, b), abs(a)),
        INTS,
        np.where(INTS == 0, 1, INTS).T.reshape(3, 4),
    ),
    "bits of integers": program(
        each(lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor), WORDS, WORDS[::-1].copy()
    ),
    "bits of booleans": program(
        lambda a, b: (a & b, a | b, a ^ b, ~a, jnp.logical_not(b)), BOOLS, ~BOOLS
    ),
    "shifts": program(
        each(lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic),
        WORDS.view(np.int32),
        np.abs(INTS) % 32,
    ),
    "counting bits": program(each(lax.population_count, lax.clz, lax.bitwise_not), WORDS),
    "high words": program(lax.mulhi, WORDS, WORDS[::-1].copy()),
    "complex parts": program(
        lambda z: (lax.real(z), lax.imag(z), lax.conj(z), lax.abs(z), jnp.angle(z)), Z
    ),
    "complex arithmetic": program(
        lambda z, x: (z * z, z / (z + 1j), lax.exp(z), lax.complex(x, x), z == z), Z, X
    ),
    "complex constants": program(lambda z: z * (1 - 2.5j) + jnp.array([1j, 2.0, 3, 4]), Z),
    "conversions": program(
        lambda x: [_narrow_and_back(x, dtype) for dtype in NARROW if hasattr(jnp, dtype)], X
    ),
    "four-bit integers": program(
        lambda x: _narrow_and_back(_narrow_and_back(x, jnp.int4), jnp.uint4), X * 2
    ),
    "integers to floats": program(lambda i: (i.astype(jnp.float32), i.astype(bool)), INTS),
    "bit casts": program(
        lambda x: (lax.bitcast_convert_type(x, jnp.int32), lax.bitcast_convert_type(x, jnp.uint8)),
        X,
    ),
    "bit casts that widen": program(
        lambda w: lax.bitcast_convert_type(w.reshape(3, 2, 2).astype(jnp.uint16), jnp.uint32), WORDS
    ),
    "reduced precision": program(lambda x: lax.reduce_precision(x, 5, 7), X),
    "error functions": program(each(lax.erf, lax.erfc, lax.erf_inv, special.ndtri), UNIT),
    "gamma functions": program(each(lax.lgamma, lax.digamma, special.gammaln), UNIT + 1),
    "incomplete gamma": program(each(lax.igamma, lax.igammac, lax.random_gamma_grad), UNIT, UNIT),
    "slope of incomplete gamma": program(
        jax.grad(lambda a, x: lax.igamma(a, x).sum(), argnums=(0, 1)), UNIT, UNIT
    ),
    "incomplete beta": program(lambda x: lax.betainc(x + 1, x + 2, x), UNIT),
    "zeta and polygamma": program(lambda x: (lax.zeta(x + 2, x), lax.polygamma(1.0, x)), UNIT),
    "bessel functions": program(each(lax.bessel_i0e, lax.bessel_i1e, special.i0, special.i1), X),
    "other special functions": program(
        lambda x: (special.logsumexp(x), special.xlogy(x, x), special.entr(x), special.expit(x)),
        UNIT,
    ),
    "infinities and not a number": program(
        lambda x: jnp.where(x > 0, jnp.inf, jnp.where(x < -1, jnp.nan, -jnp.inf)), X
    ),
    "barrier": program(lambda x, i: lax.optimization_barrier((x, i)), X, INTS),
    "float64": program(lambda x: (jnp.sin(x) * 1e-300, x.sum()), X.astype(np.float64), wide=True),
    "int64": program(lambda i: (i << 40) + jnp.arange(4), INTS.astype(np.int64), wide=True),
    "uint64 and complex128": program(
        lambda w, z: (w * w, jnp.exp(z)),
        WORDS.astype(np.uint64),
        Z.astype(np.complex128),
        wide=True,
    ),
    "float64 in from float32": program(lambda x: x.astype(jnp.float64) / 3, X, wide=True),
    "numpy float64 where 64 bits are off": program(lambda x: x + 1, X.astype(np.float64)),
}
