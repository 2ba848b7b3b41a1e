"""What import refuses, it refuses by name, with the place and what to do instead."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback
from jax.experimental import pallas as pl

from tests.frontends.programs.program import LARGE, X
from tkcc.frontends.lowering import lower
from tkcc.ir.errors import LoweringError, TkccError

P = jax.sharding.PartitionSpec


def _with_print(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def _with_debug_callback(x: Any) -> Any:
    jax.debug.callback(lambda v: None, x)
    return x


def _print_in_a_loop(x: Any) -> Any:
    return lax.scan(lambda c, row: (_with_print(c), row), x[0], x)


def _print_in_a_branch(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda: jax.jit(_with_print)(x), lambda: x)


def _reference(x: Any) -> Any:
    ref = jax.new_ref(x)
    ref[0] = ref[1] * 2
    return ref[...]


def _reference_in_a_loop(x: Any) -> Any:
    ref = jax.new_ref(x)

    def body(i: Any, c: Any) -> Any:
        ref[i] = ref[i] + 1
        return c

    lax.fori_loop(0, 3, body, 0)
    return ref[...]


def _kernel(x: Any) -> Any:
    def body(source: Any, target: Any) -> None:
        target[...] = source[...] * 2

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype), interpret=True)(x)


def _sharded(x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(lambda y: y * 2, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)


def _checked(x: Any) -> Any:
    checkify.check((x > 0).all(), "not positive")
    return x


def _exported(x: Any) -> Any:
    struct = jax.ShapeDtypeStruct(X.shape, X.dtype)
    return jax.export.export(jax.jit(jnp.sin))(struct).call(x)


def _inspected(x: Any) -> Any:
    jax.debug.inspect_array_sharding(x, callback=print)
    return x


def _foreign(x: Any) -> Any:
    return jax.ffi.ffi_call("unknown", jax.ShapeDtypeStruct(X.shape, X.dtype))(x)


# function, primitive named in the error, part of the remedy
REFUSED: list[tuple[Any, str, str]] = [
    (_with_print, "debug_print", "remove jax.debug.print"),
    (_with_debug_callback, "debug_callback", "remove jax.debug"),
    (_print_in_a_loop, "debug_print", "remove jax.debug.print"),
    (_print_in_a_branch, "debug_print", "remove jax.debug.print"),
    (lambda x: jax.pure_callback(np.sin, x, x), "pure_callback", "move the host code out"),
    (lambda x: io_callback(np.sin, x, x), "io_callback", "move the host code out"),
    (_reference, "new_ref", "instead of writing to a Ref"),
    (_reference_in_a_loop, "new_ref", "instead of writing to a Ref"),
    (_kernel, "pallas_call", "tag the call with jax.lax.composite"),
    (_sharded, "shard_map", "pass the unsharded function"),
    (_checked, "check", "move the effect out"),
    (_exported, "call_exported", "pass the function that was exported"),
    (_inspected, "inspect_sharding", "move the effect out"),
    (_foreign, "ffi_call", "custom calls"),
    (lambda x: lax.rng_uniform(x[0, 0], x[0, 1], (2,)), "rng_uniform", "use jax.random"),
]


@pytest.mark.parametrize(("f", "primitive", "remedy"), REFUSED, ids=[r[1] for r in REFUSED])
def test_effects_and_foreign_code_are_refused_by_name(f: Any, primitive: str, remedy: str) -> None:
    with pytest.raises(LoweringError) as error:
        lower(f, X, recognise=False)
    assert error.value.what.startswith(primitive)
    assert remedy in error.value.remedy
    assert "from " in error.value.where
    assert " at 0x" not in str(error.value)


def test_a_refused_equation_counts_even_if_nobody_reads_it() -> None:
    def f(x: Any) -> Any:
        jax.pure_callback(np.sin, x, x)  # pure and dead: dropped
        io_callback(lambda v: None, None, x)  # not pure: kept, so refused
        return x

    with pytest.raises(LoweringError, match="io_callback"):
        lower(f, X, recognise=False)


def test_a_dead_pure_callback_is_dropped() -> None:
    def f(x: Any) -> Any:
        jax.pure_callback(np.sin, x, x)
        return x

    assert lower(f, X, recognise=False).function().nodes == ()


def test_a_composite_of_an_unknown_op_is_refused_with_the_known_ones() -> None:
    tagged = lax.composite(lambda x: x, name="tkcc.no_such_op")
    with pytest.raises(LoweringError, match="composite tkcc.no_such_op names no op") as error:
        lower(tagged, X, recognise=False)
    assert "rms_norm" in error.value.remedy


def test_a_composite_that_does_not_fit_its_op_is_refused() -> None:
    tagged = lax.composite(lambda x, w, *, eps: x, name="tkcc.rms_norm")
    with pytest.raises(LoweringError, match="the last axis of x is"):
        lower(lambda x: tagged(x, x, eps=1e-6), X, recognise=False)


def test_a_composite_whose_attribute_is_no_text_of_ours_is_refused() -> None:
    tagged = lax.composite(lambda x, *, kind: x, name="tkcc.activation")
    with pytest.raises(LoweringError, match="attribute 'silu' of composite") as error:
        lower(lambda x: tagged(x, kind="silu"), X, recognise=False)
    assert "tkcc.ir.functional.call" in error.value.remedy


def test_a_dtype_without_a_name_is_refused() -> None:
    def f(i: Any) -> Any:
        return jax.grad(lambda j: jnp.float32(1), allow_int=True)(i)

    with pytest.raises(LoweringError, match="float0"):
        lower(f, np.int32(1), recognise=False)


def test_python_control_flow_on_values_is_refused() -> None:
    with pytest.raises(LoweringError, match="cannot be traced"):
        lower(lambda x: x if x.sum() > 0 else -x, X, recognise=False)


def test_a_large_constant_inside_a_reduction_is_refused() -> None:
    def combine(a: Any, b: Any) -> Any:
        return a + b + jnp.asarray(LARGE)[0, 0] * 0

    with pytest.raises(TkccError, match="closes over a large constant|do not fit"):
        lower(lambda x: lax.reduce(x, jnp.float32(0), combine, (0,)), X, recognise=False)
