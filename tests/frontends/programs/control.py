"""Loops and branches, with constants of all sizes inside."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.frontends.programs.program import INTS, LARGE, VECTOR, X, program

WIDE = LARGE[0].copy()  # f32[10]


def _sum_rows(x: Any, **keywords: Any) -> Any:
    return lax.scan(lambda c, row: (c + row, c * 2), jnp.zeros(4), x, **keywords)


def _nested(x: Any) -> Any:
    def outer(c: Any, row: Any) -> Any:
        inner = lax.fori_loop(0, 2, lambda i, y: y * 0.5 + row[i], c)
        return lax.cond(row[0] > 0, lambda y: y, lambda y: -y, inner), inner

    return lax.scan(outer, jnp.float32(1), x)


def _tree_carry(x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        return {"total": c["total"] + row, "count": c["count"] + 1}, (row * 2, {"r": row.sum()})

    return lax.scan(step, {"total": jnp.zeros(4), "count": 0}, x)


def _collatz(n: Any) -> Any:
    return lax.while_loop(
        lambda c: c[0] > 1,
        lambda c: (jnp.where(c[0] % 2 == 0, c[0] // 2, 3 * c[0] + 1), c[1] + 1),
        (n, 0),
    )


def _large_in_while(x: Any) -> Any:
    """Both the condition and the body close over large arrays."""
    limit, step = jnp.asarray(LARGE), jnp.asarray(LARGE * 0.5)
    return lax.while_loop(
        lambda c: c[1] + limit.sum() * 0 < 3, lambda c: (c[0] @ step, c[1] + 1), (x, 0.0)
    )


def _large_in_cond(x: Any) -> Any:
    first, second = jnp.asarray(LARGE), jnp.asarray(LARGE + 1)
    return lax.switch(
        2, [lambda v: v @ first, lambda v: v @ second, lambda v: v @ first @ second], x
    )


def _large_two_deep(x: Any) -> Any:
    weight = jnp.asarray(LARGE)

    def outer(c: Any, _: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, y: jnp.tanh(y @ weight + i), c), None

    return lax.scan(outer, x, None, length=2)


def _search(a: Any, x: Any) -> Any:
    """Binary search by while_loop with constants in both functions."""
    return lax.while_loop(
        lambda c: c[0] < c[1] - 1,
        lambda c: lax.cond(
            a[(c[0] + c[1]) // 2] <= x,
            lambda c: ((c[0] + c[1]) // 2, c[1]),
            lambda c: (c[0], (c[0] + c[1]) // 2),
            c,
        ),
        (0, 4),
    )


PROGRAMS = {
    "scan": program(_sum_rows, X),
    "reverse scan": program(lambda x: _sum_rows(x, reverse=True), X),
    "unrolled scan": program(lambda x: _sum_rows(x, unroll=2), X),
    "scan of trees": program(_tree_carry, X),
    "scan without inputs": program(
        lambda v: lax.scan(lambda c, _: (c * 2, c), v, None, length=4), VECTOR
    ),
    "scan without carry": program(lambda x: lax.map(lambda row: row.sum(), x), X),
    "scan of nothing": program(lambda x: _sum_rows(x[:0]), X),
    "map by batches": program(lambda x: lax.map(jnp.sin, x, batch_size=2), X),
    "scan over booleans and integers": program(
        lambda i: lax.scan(lambda c, row: (c | (row > 0), row % 3), i[0] > 5, i), INTS
    ),
    "while": program(_collatz, np.int32(7)),
    "while with constants": program(_search, np.sort(VECTOR), np.float32(0.1)),
    "counted loop": program(lambda v: lax.fori_loop(0, 3, lambda i, c: c * 2 + i, v), VECTOR),
    "loop with a dynamic count": program(
        lambda n, v: lax.fori_loop(0, n, lambda i, c: c + i, v), np.int32(3), VECTOR
    ),
    "cond": program(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), np.bool_(True), X),
    "cond on a comparison": program(lambda x: lax.cond(x.sum() > 0, lambda: x, lambda: -x), X),
    "switch": program(
        lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda y: y * 2], x), np.int32(5), X
    ),
    "cond without operands": program(lambda p: lax.cond(p, lambda: 1, lambda: 2), np.bool_(False)),
    "batched cond": program(
        jax.vmap(lambda v: lax.cond(v > 0, jnp.sin, lambda y: y * 3, v)), VECTOR
    ),
    "batched while": program(jax.vmap(_collatz), np.array([1, 2, 7], np.int32)),
    "nested loops and branches": program(_nested, X),
    "associative scan": program(lambda x: lax.associative_scan(jnp.add, x), X),
    "associative scan of pairs": program(
        lambda x: lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (x, x)), X
    ),
    "a small constant in a loop": program(
        lambda x: lax.scan(lambda c, row: (c + row * jnp.array([1.0, 2, 3, 4]), None), x[0], x), X
    ),
    "a large constant": program(lambda v: (v @ LARGE, v @ jnp.asarray(LARGE) * 2), WIDE),
    "a large constant in a scan": program(
        lambda v: lax.scan(lambda c, _: (jnp.tanh(c @ jnp.asarray(LARGE)), c), v, None, length=3),
        WIDE,
    ),
    "large constants in a while": program(_large_in_while, WIDE),
    "large constants in a switch": program(_large_in_cond, WIDE),
    "a large constant two loops deep": program(_large_two_deep, WIDE),
    "slope of a scan": program(jax.grad(lambda x: _sum_rows(x)[0].sum() ** 2), X),
    "slope of a cond": program(
        jax.grad(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x).sum()), X
    ),
    "derivative of a while": program(
        lambda v: jax.jvp(lambda y: lax.fori_loop(0, v.size, lambda i, c: c * y, y), (v,), (v,)),
        VECTOR,
    ),
    "the platform": program(lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), X),
}
