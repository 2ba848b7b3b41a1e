"""Widening gives the same program without the rounding of a narrow dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tkcc
from tests.tiny import tiny_module
from tkcc.ir.errors import IRError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.hashing import module_hash
from tkcc.ir.passes.widen import widen


def program(dtype):
    """A loop, a branch, explicit conversions and constants, all in `dtype`."""

    def run(x, w):
        def body(h, w):
            return jnp.tanh((h @ w).astype(dtype)) * jnp.asarray(1.5, dtype), None

        h, _ = jax.lax.scan(body, x.astype(dtype), w)
        total = jnp.sum(h, dtype=dtype)
        return jax.lax.cond(total > 0, lambda h: h + 1, lambda h: h * 2, h)

    return run


def lowered(dtype):
    x, w = jnp.ones((2, 4), jnp.float32), jnp.zeros((3, 4, 4), dtype)
    return tkcc.lower(program(dtype), x, w, parameters=["w"])


@pytest.mark.parametrize("narrow", [jnp.bfloat16, jnp.float16])
def test_the_widened_program_is_the_one_written_in_float32(narrow):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4)).astype(np.float32)
    w = (rng.normal(size=(3, 4, 4)) / 2).astype(narrow)
    wide = widen(lowered(narrow)).function()
    assert not {n.op for n in wide.walk()} & {"lax.reduce_precision"}
    types = {v.type.dtype for n in wide.walk() for v in (*n.operands, *n.results)}
    assert not types & {"bf16", "f16"}
    (got,) = evaluate(wide, [x, w.astype(np.float32)])
    wanted = program(jnp.float32)(x, w.astype(np.float32))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_known_values_are_converted_and_names_stay():
    module = tiny_module("bfloat16")
    wide = widen(module)
    assert set(wide.values) == set(module.values)
    assert {value.dtype for value in wide.values.values()} == {np.dtype(np.float32)}
    assert set(wide.parameters) == set(module.parameters)
    assert set(wide.state) == set(module.state)


def test_a_program_without_narrow_dtypes_does_not_change():
    module = tiny_module()
    assert module_hash(widen(module)) == module_hash(module)


def test_an_op_on_bits_is_refused_by_name():
    module = tkcc.lower(
        lambda x: jax.lax.bitcast_convert_type(x, jnp.int16), jnp.ones(3, jnp.bfloat16)
    )
    with pytest.raises(IRError, match="bitcast_convert_type depends on the bits"):
        widen(module)
