"""Shapes, indexing, reductions, windows, sorting, products, transforms of arrays."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.frontends.programs.arithmetic import each
from tests.frontends.programs.program import BOOLS, INTS, LARGE, VECTOR, X, Y, program

IMAGES = np.random.default_rng(1).standard_normal((2, 8, 8, 3)).astype(np.float32)
KERNEL = np.random.default_rng(2).standard_normal((3, 3, 3, 4)).astype(np.float32)
ROWS = np.array([2, 0, -1, 7], np.int32)  # two of them outside a dimension of 3
UPDATES = np.arange(16, dtype=np.float32).reshape(4, 4)
SCALED = np.random.default_rng(3).standard_normal((1, 4, 64)).astype(jnp.float8_e4m3fn)
SCALES = np.full((1, 4, 2), 2.0).astype(jnp.float8_e8m0fnu)
GROUPS = np.array([2, 0, 3], np.int32)
DIMENSIONS = ("NHWC", "HWIO", "NHWC")
MODES = ("clip", "fill", "promise_in_bounds")


def _convolution(x: Any, kernel: Any, **keywords: Any) -> Any:
    given = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": DIMENSIONS}
    return lax.conv_general_dilated(x, kernel, **{**given, **keywords})


def _pooled(x: Any, initial: Any, combine: Any) -> Any:
    return lax.reduce_window(x, initial, combine, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _max_pool_slope(x: Any) -> Any:
    return jax.grad(lambda y: (_pooled(y, -jnp.inf, lax.max) ** 2).sum())(x)


def _max_pool_derivative(x: Any) -> Any:
    return jax.jvp(lambda y: _pooled(y, -jnp.inf, lax.max), (x,), (x * 2,))


def _argmax_by_reduce(x: Any) -> Any:
    def larger(a: Any, b: Any) -> Any:
        keep = a[0] >= b[0]
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

    index = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return lax.reduce((x, index), (-jnp.inf, jnp.int32(0)), larger, (1,))


def _ragged_gradient(a: Any, b: Any, sizes: Any) -> Any:
    return jax.grad(lambda x, y: lax.ragged_dot(x, y, sizes).sum(), argnums=(0, 1))(a, b)


def _scaled_product(x: Any, scales: Any) -> Any:
    """A block-scaled product of float8 matrices, one scale per 32 elements."""
    dimensions = (((2,), (2,)), ((0,), (0,)))
    return lax.scaled_dot(
        x,
        x,
        lhs_scale=scales,
        rhs_scale=scales,
        dimension_numbers=dimensions,
        preferred_element_type=jnp.float32,
    )


PROGRAMS = {
    "shapes": program(
        lambda x: (x.reshape(2, 6), x.T, x[:, None], x[None].squeeze(0), jnp.ravel(x)), X
    ),
    "column-major reshape": program(lambda x: lax.reshape(x, (4, 3), dimensions=(1, 0)), X),
    "broadcasts": program(
        lambda x: (jnp.broadcast_to(x[0], (2, 3, 4)), lax.broadcast(x, (2,)), jnp.tile(x, (2, 1))),
        X,
    ),
    "joins": program(
        lambda x, y: (jnp.concatenate([x, y]), jnp.stack([x, y]), jnp.vstack([x, y[0]])), X, Y
    ),
    "cuts": program(
        lambda x: (jnp.split(x, 2, axis=1), jnp.array_split(x, 2), jnp.unstack(x), x[::2, ::-1]), X
    ),
    "padding": program(
        lambda x: (lax.pad(x, 0.5, ((1, -1, 0), (0, 2, 1))), jnp.pad(x, 1, mode="reflect")), X
    ),
    "reversal and rolls": program(lambda x: (lax.rev(x, (0, 1)), jnp.roll(x, 1, 1)), X),
    "ranges": program(
        lambda x: (jnp.arange(5), jnp.linspace(0, 1, 7), jnp.eye(3), jnp.tri(3), lax.iota("u1", 3)),
        X,
    ),
    "triangles and diagonals": program(
        lambda x: (jnp.triu(x), jnp.diagonal(x), jnp.diag(x[0]), jnp.trace(x)), X
    ),
    "dynamic slices": program(
        lambda x, i: (
            lax.dynamic_slice(x, (i, 1), (2, 2)),
            lax.dynamic_update_slice(x, x[:1, :2] * 9, (i, -1)),
            lax.dynamic_index_in_dim(x, i, axis=0),
        ),
        X,
        np.int32(2),
    ),
    "gather": program(lambda x, i: (x[i], x[:, i % 4], x[i % 3, i], jnp.take(x, i)), X, ROWS),
    "gather modes": program(
        lambda x, i: (
            [x.at[i].get(mode=mode) for mode in MODES[:2]]
            + [x.at[i % 3].get(mode=MODES[2], unique_indices=True)]
        ),
        X,
        ROWS,
    ),
    "gather along an axis": program(
        lambda x, i: jnp.take_along_axis(x, i % 3, axis=0), X, np.abs(INTS)
    ),
    "batched gather": program(jax.vmap(lambda row, i: row[i]), X, np.array([0, 1, 2])),
    "boolean masks": program(lambda x, p: (jnp.where(p, x, 0), jnp.nonzero(p, size=4)), X, BOOLS),
    "scatter": program(
        lambda x, i, u: (x.at[i].set(u), x.at[0, 1].set(5), x.at[:, 1:3].set(0), x.at[i, i].set(7)),
        X,
        ROWS,
        UPDATES,
    ),
    "scatter arithmetic": program(
        lambda x, i, u: (
            x.at[i].add(u),
            x.at[i].multiply(u),
            x.at[i].min(u),
            x.at[i].max(u),
            x.at[i].subtract(u),
        ),
        X,
        ROWS,
        UPDATES,
    ),
    "scatter division and powers": program(
        lambda x, i: (x.at[i].divide(2.0), x.at[i].power(2.0)), X, ROWS
    ),
    "scatter modes": program(
        lambda x, i, u: [x.at[i].add(u, mode=mode) for mode in ("clip", "drop")], X, ROWS, UPDATES
    ),
    "scatter by a function": program(lambda x, i: x.at[i].apply(jnp.sin), X, ROWS),
    "batched scatter": program(jax.vmap(lambda row, i: row.at[i].add(1)), X, np.array([0, 1, 2])),
    "slope of gather": program(jax.grad(lambda x, i: (x[i] ** 2).sum()), X, ROWS),
    "reductions": program(
        each(jnp.sum, jnp.prod, jnp.max, jnp.min, jnp.mean, jnp.var, jnp.argmax, jnp.argmin), X
    ),
    "reductions of an axis": program(
        lambda x: (x.sum(0), x.max(1, keepdims=True), jnp.argmax(x, 1), jnp.median(x, axis=1)), X
    ),
    "reductions of booleans": program(
        lambda p: (p.all(), p.any(1), lax.reduce_xor(p, (0,)), p.sum()), BOOLS
    ),
    "bitwise reductions": program(
        lambda i: (lax.reduce_and(i, (0,)), lax.reduce_or(i, (1,)), lax.reduce_xor(i, (0, 1))), INTS
    ),
    "reduction by a function": program(
        lambda x: lax.reduce(x, jnp.float32(1), lambda a, b: a * b + 0.5, (1,)), X
    ),
    "reduction of two by a function": program(_argmax_by_reduce, X),
    "cumulative": program(
        each(
            jnp.cumsum,
            jnp.cumprod,
            lax.cummax,
            functools.partial(lax.cummin, axis=1, reverse=True),
            functools.partial(lax.cumlogsumexp, axis=1),
        ),
        X,
    ),
    "pooling": program(
        lambda x: (
            _pooled(x, -jnp.inf, lax.max),
            _pooled(x, jnp.inf, lax.min),
            _pooled(x, 0.0, lax.add),
            _pooled(x, 1.0, lax.mul),
        ),
        IMAGES,
    ),
    "dilated windows": program(
        lambda x: lax.reduce_window(
            x, 0.0, lax.add, (1, 2), (1, 1), "SAME", base_dilation=(1, 2), window_dilation=(1, 2)
        ),
        X,
    ),
    "slope of pooling": program(_max_pool_slope, IMAGES),
    "derivative of pooling": program(_max_pool_derivative, IMAGES),
    "convolution": program(_convolution, IMAGES, KERNEL),
    "strided and dilated convolution": program(
        lambda x, k: _convolution(x, k, window_strides=(2, 2), rhs_dilation=(2, 2)), IMAGES, KERNEL
    ),
    "grouped convolution": program(
        lambda x, k: _convolution(x, k, feature_group_count=3), IMAGES, KERNEL[:, :, :1, :3].copy()
    ),
    "transposed convolution": program(
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), IMAGES, KERNEL
    ),
    "slope of convolution": program(
        jax.grad(lambda x, k: _convolution(x, k).sum(), argnums=(0, 1)), IMAGES, KERNEL
    ),
    "one-dimensional convolution": program(lambda a, b: jnp.convolve(a, b), VECTOR, VECTOR[:2]),
    "sorting": program(
        lambda x: (jnp.sort(x), jnp.argsort(x, axis=0), jnp.sort(x, descending=True)), X
    ),
    "sorting by several keys": program(
        lambda i, x: lax.sort((i % 3, x, x * 2), dimension=1, num_keys=2), INTS, X
    ),
    "lexicographic order": program(lambda i, x: jnp.lexsort((x, i % 2)), INTS, X),
    "largest elements": program(lambda x: (lax.top_k(x, 2), jnp.partition(x, 1)), X),
    "approximately largest": program(lambda x: (lax.approx_max_k(x, 2), lax.approx_min_k(x, 1)), X),
    "search": program(
        lambda a, b: (jnp.searchsorted(a, b), jnp.digitize(b, a)), np.sort(VECTOR), X
    ),
    "search by scans": program(
        lambda a, b: [jnp.searchsorted(a, b, method=m) for m in ("scan_unrolled", "sort")],
        np.sort(VECTOR),
        X,
    ),
    "counts": program(
        lambda i: (jnp.bincount(i.ravel() % 5, length=5), jnp.unique(i, size=6)), np.abs(INTS)
    ),
    "histogram and interpolation": program(
        lambda x, v: (jnp.histogram(x, bins=4)[0], jnp.interp(x, jnp.sort(v), v)), X, VECTOR
    ),
    "products": program(
        lambda x, y: (x @ y.T, jnp.einsum("ij,ij->i", x, y), jnp.kron(x, y), jnp.outer(x, y)), X, Y
    ),
    "products of low precision": program(
        lambda x, y: (
            lax.dot(x.astype(jnp.bfloat16), y.T.astype(jnp.bfloat16), precision="highest"),
            jnp.matmul(x.astype(jnp.bfloat16), y.T, preferred_element_type=jnp.float32),
        ),
        X,
        Y,
    ),
    "integer products": program(
        lambda i: lax.dot_general(
            i.astype(jnp.int8), i.astype(jnp.int8), (((1,), (1,)), ((), ())), None, jnp.int32
        ),
        INTS,
    ),
    "batched products": program(lambda a: jnp.einsum("bhwc,bhvc->bwv", a, a), IMAGES),
    "scaled products": program(_scaled_product, SCALED, SCALES),
    "ragged products": program(
        lax.ragged_dot, LARGE[:5, :4].copy(), LARGE[:6, :4].reshape(3, 4, 2).copy(), GROUPS
    ),
    "slope of ragged products": program(
        _ragged_gradient, LARGE[:5, :4].copy(), LARGE[:6, :4].reshape(3, 4, 2).copy(), GROUPS
    ),
    "fourier": program(lambda x: (jnp.fft.fft(x), jnp.fft.ifft(x), jnp.fft.fft2(x)), X),
    "real fourier": program(lambda x: (jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x), 4)), X),
    "one hot": program(lambda i: jax.nn.one_hot(i % 5, 5), np.abs(INTS)),
    "repeats": program(lambda x: jnp.repeat(x, 2, axis=0, total_repeat_length=5), X),
    "images": program(lambda x: jax.image.resize(x, (2, 4, 4, 3), "bilinear"), IMAGES),
    "empty arrays": program(lambda x: (x[:0].sum(), jnp.zeros((0, 3)), x[:, :0] @ x[:, :0].T), X),
}
