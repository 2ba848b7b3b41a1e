"""Factorisations and solvers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg as scipy_linalg
import numpy as np
from jax import lax
from jax.scipy.sparse.linalg import cg

from tests.frontends.programs.program import SPD, SQUARE, VECTOR, X, program

BATCH = np.stack([SPD, SPD + 1])


def _householder(a: Any) -> Any:
    reflectors, taus = lax.linalg.geqrf(a) if hasattr(lax.linalg, "geqrf") else (a, a[0])
    return lax.linalg.householder_product(reflectors, taus)


def _tridiagonal_solve(a: Any, b: Any) -> Any:
    lower = jnp.pad(jnp.diagonal(a, -1), (1, 0))
    upper = jnp.pad(jnp.diagonal(a, 1), (0, 1))
    return lax.linalg.tridiagonal_solve(lower, jnp.diagonal(a), upper, b[:, None])


def _fixed_point(b: Any) -> Any:
    """x = cos(x) + b, by Newton's method with an implicit derivative."""
    return lax.custom_root(
        lambda x: x - jnp.cos(x) - b,
        b,
        lambda f, x: lax.fori_loop(0, 8, lambda _, y: y - f(y) / (1 + jnp.sin(y)), x),
        lambda g, y: y / g(jnp.ones_like(y)),
    )


PROGRAMS = {
    "cholesky": program(jnp.linalg.cholesky, SPD),
    "batched cholesky": program(jnp.linalg.cholesky, BATCH),
    "lu": program(lambda a: (lax.linalg.lu(a), jnp.linalg.det(a), jnp.linalg.slogdet(a)), SQUARE),
    "pivots": program(
        lambda p: lax.linalg.lu_pivots_to_permutation(p, 4), np.array([1, 3, 2, 3], np.int32)
    ),
    "qr": program(lambda a: (jnp.linalg.qr(a), jnp.linalg.qr(a, mode="r")), X),
    "qr with pivots": program(lambda a: scipy_linalg.qr(a, pivoting=True), SQUARE),
    "householder": program(_householder, SQUARE),
    "symmetric eigenvalues": program(lambda a: (jnp.linalg.eigh(a), jnp.linalg.eigvalsh(a)), SPD),
    "eigenvalues": program(jnp.linalg.eigvals, SQUARE),
    "eigenvectors": program(lambda a: jnp.linalg.eig(a), SQUARE),
    "svd": program(lambda a: (jnp.linalg.svd(a, full_matrices=False), jnp.linalg.norm(a, 2)), X),
    "solve": program(lambda a, b: (jnp.linalg.solve(a, b), jnp.linalg.inv(a)), SPD, VECTOR),
    "triangular solve": program(
        lambda a, b: (
            lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
            scipy_linalg.solve_triangular(a.T, b[:, 0], trans=1),
        ),
        SPD,
        SQUARE,
    ),
    "cholesky solve": program(
        lambda a, b: scipy_linalg.cho_solve(scipy_linalg.cho_factor(a), b), SPD, VECTOR
    ),
    "pseudo-inverse": program(jnp.linalg.pinv, X),
    "least squares": program(lambda a, b: jnp.linalg.lstsq(a, b)[0], X.T.copy(), VECTOR),
    "matrix functions": program(
        lambda a: (scipy_linalg.expm(a), jnp.linalg.matrix_power(a, 3)), SQUARE
    ),
    "schur": program(scipy_linalg.schur, SQUARE),
    "hessenberg": program(lambda a: scipy_linalg.hessenberg(a, calc_q=True), SQUARE),
    "tridiagonal": program(lax.linalg.tridiagonal, SPD),
    "tridiagonal solve": program(_tridiagonal_solve, SPD, VECTOR),
    "cholesky update": program(
        lambda a, v: lax.linalg.cholesky_update(jnp.linalg.cholesky(a).T, v), SPD, VECTOR
    ),
    "symmetric product": program(
        lambda a, c: lax.linalg.symmetric_product(a, c, alpha=2.0, beta=0.5), SQUARE, SPD
    ),
    "conjugate gradients": program(lambda a, b: cg(lambda x: a @ x, b, maxiter=6)[0], SPD, VECTOR),
    "implicit root": program(_fixed_point, VECTOR),
}
