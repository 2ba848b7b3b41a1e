"""Evaluation: inputs are checked, kernels may replace nodes, 64-bit types are never narrowed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ir.samples import function, one_node, small_module, value
from tkcc.ir.errors import IRError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function, Node, Source
from tkcc.ir.op import build
from tkcc.ir.text import parse_function, print_function


def _add() -> Function:
    return one_node(build("lax.add", value("f32[2]", "x"), value("f32[2]", "y")))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.ones(2, np.float32)], "takes 2 inputs, got 1"),
        ([np.ones(2, np.float32), np.ones(3, np.float32)], "input y is f32[2], got f32[3]"),
        ([np.ones(2, np.int32), np.ones(2, np.float32)], "input x is f32[2], got i32[2]"),
        ([1.0, np.ones(2, np.float32)], "input x is f32[2], got f32[]"),
    ],
)
def test_inputs_of_other_types_are_refused(inputs: list[Any], message: str) -> None:
    with pytest.raises(IRError) as error:
        evaluate(_add(), inputs)
    assert message in error.value.what
    assert error.value.remedy


def test_numpy_arrays_count_as_the_jax_arrays_they_become() -> None:
    (got,) = evaluate(_add(), [np.ones(2), np.ones(2)])
    assert got.dtype == jnp.float32


def test_evaluation_works_inside_jit_and_grad() -> None:
    x = jnp.arange(2.0)
    (got,) = jax.jit(lambda a, b: evaluate(_add(), [a, b]))(x, x)
    np.testing.assert_array_equal(got, 2 * x)
    slope = jax.grad(lambda a: evaluate(_add(), [a, x])[0].sum())(x)
    np.testing.assert_array_equal(slope, np.ones(2))


def test_an_override_replaces_nodes_inside_regions_too() -> None:
    seen = []

    def kernel(node: Node, operands: Any) -> Any:
        seen.append(node.op)
        return (operands[0] * 0,) if node.op == "rms_norm" else None

    decode = small_module().functions["decode"]
    inputs = [jnp.ones(v.type.shape, jnp.bfloat16) for v in decode.inputs]
    _, scores = evaluate(decode, inputs, kernel)
    assert seen[0] == "scan"
    assert {"rms_norm", "linear", "lax.add"} <= set(seen)
    assert not scores.any()


def test_model_paths_become_named_scopes() -> None:
    x = value("f32[2]")
    f = one_node(build("lax.neg", x, source=Source("layers/3/norm")))
    jaxpr = jax.make_jaxpr(lambda a: evaluate(f, [a]))(jnp.ones(2))
    assert str(jaxpr.eqns[0].source_info.name_stack) == "layers/3/norm"


WIDE = """func main {
  arg %x: f64[4,8]
  arg %w: f64[8]
  %0: f64[4,8] = rms_norm(%x, %w) {eps=1e-06, plus_one=false}
  %1: f64[4] = lax.reduce_sum(%0) {axes=(1,), out_sharding=none}
  %2: i64[] = constant() {value=i64[](5)}
  %3: i64[3] = lax.iota() {dimension=0, dtype=i64, shape=(3,), sharding=none}
  return %1, %2, %3
}"""


def test_64_bit_types_are_inferred_whatever_jax_allows() -> None:
    f = parse_function(WIDE)
    assert print_function(f) == WIDE
    with jax.enable_x64(True):
        assert print_function(parse_function(WIDE)) == WIDE


def test_64_bit_types_need_jax_to_allow_them_when_evaluated() -> None:
    f = parse_function(WIDE)
    arguments = np.ones((4, 8)), np.ones(8)
    with jax.enable_x64(True):
        total, number, _ = evaluate(f, arguments)
        assert (total.dtype, number.dtype) == (np.float64, np.int64)
        np.testing.assert_allclose(total, 8 / np.sqrt(1 + 1e-6), rtol=1e-15)
    with pytest.raises(IRError, match="input x is f64") as error:
        evaluate(f, arguments)
    assert "enable_x64" in error.value.remedy
    constant = function((), f.nodes[2:3], f.nodes[2].result)
    with pytest.raises(IRError, match="a constant of int64 became int32"):
        evaluate(constant, ())
