"""Products with parameters become linear, of any rank and order of dimensions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.rules.raising import attributes, check, named, node, ops, plain, struct
from tkcc.ir.graph import Module

B, T, D, H, K, N = 2, 5, 12, 3, 4, 10
DTYPES = ("f32", "bf16")


def raised(f: Any, dtype: str, *shapes: tuple[int, ...]) -> Module:
    """f(x, w) or f(x, w, b), all but x parameters."""
    args = [struct(dtype, *shape) for shape in shapes]
    names = {
        2: lambda x, w: f(x, w),
        3: lambda x, w, b: f(x, w, b),
    }[len(shapes)]
    return check(plain(names, *args, parameters=("w", "b")[: len(shapes) - 1]))


MATRICES = {
    "matmul": (lambda x, w: x @ w, (D, N), False),
    "transposed weight": (lambda x, w: x @ w.T, (N, D), True),
    "einsum": (lambda x, w: jnp.einsum("btd,dn->btn", x, w), (D, N), False),
    "einsum transposed": (lambda x, w: jnp.einsum("btd,nd->btn", x, w), (N, D), True),
    "weight first": (lambda x, w: jnp.einsum("nd,btd->btn", w, x), (N, D), True),
    "tensordot": (lambda x, w: jnp.tensordot(x, w, axes=1), (D, N), False),
    "dot_general": (
        lambda x, w: jax.lax.dot_general(x, w, (((2,), (0,)), ((), ()))),
        (D, N),
        False,
    ),
    "vmap": (lambda x, w: jax.vmap(lambda row: row @ w)(x), (D, N), False),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name, dtype):
    f, shape, transposed = MATRICES[name]
    after = raised(f, dtype, (B, T, D), shape)
    assert [n.op for n in after.function().nodes if n.op != "lax.transpose"] == ["linear"]
    assert attributes(after, "linear")["transposed"] is transposed
    assert node(after, "linear").operands[1] is after.function().inputs[1]


HIGHER = {
    "heads out": (lambda x, w: jnp.einsum("btd,dhk->bthk", x, w), (B, T, D), (D, H, K)),
    "heads first": (lambda x, w: jnp.einsum("btd,hdk->bthk", x, w), (B, T, D), (H, D, K)),
    "to [b, h, t, k]": (lambda x, w: jnp.einsum("btd,dhk->bhtk", x, w), (B, T, D), (D, H, K)),
    "depth last": (lambda x, w: jnp.einsum("btd,hkd->bthk", x, w), (B, T, D), (H, K, D)),
    "heads in": (lambda x, w: jnp.einsum("bthk,hkd->btd", x, w), (B, T, H, K), (H, K, D)),
    "from [b, h, t, k]": (lambda x, w: jnp.einsum("bhtk,hkd->btd", x, w), (B, H, T, K), (H, K, D)),
    "one row": (lambda x, w: x @ w, (D,), (D, N)),
    "first axis": (lambda x, w: jnp.einsum("dt,dn->tn", x, w), (D, T), (D, N)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HIGHER)
def test_weights_and_x_of_more_dimensions(name, dtype):
    f, x, w = HIGHER[name]
    assert ops(raised(f, dtype, x, w)) == {"linear": 1}


@pytest.mark.parametrize("dtype", DTYPES)
def test_biases(dtype):
    after = raised(lambda x, w, b: x @ w + b, dtype, (B, T, D), (D, N), (N,))
    assert [n.op for n in after.function().nodes] == ["linear"]
    assert node(after, "linear").keys == ("bias",)
    after = raised(
        lambda x, w, b: b + jnp.einsum("btd,dhk->bthk", x, w), dtype, (B, T, D), (D, H, K), (H, K)
    )
    assert ops(after) == {"linear": 1}
    after = raised(
        lambda x, w, b: jnp.einsum("btd,dhk->bhtk", x, w) + b[:, None],
        dtype,
        (B, T, D),
        (D, H, K),
        (H, K),
    )
    assert ops(after) == {"linear": 1}


def test_what_is_no_bias():
    for shape, index in ((((T, N)), ...), ((T, 1), ...)):
        after = raised(lambda x, w, b: x @ w + b, "f32", (B, T, D), (D, N), shape)
        assert node(after, "linear").keys == (), index
    after = raised(
        lambda x, w, b: jnp.einsum("btd,dhk->bthk", x, w) + b, "f32", (B, T, D), (D, H, K), (K,)
    )
    assert node(after, "linear").keys == ()


def test_a_product_that_others_read_keeps_its_bias_apart():
    def f(x: Any, w: Any, b: Any) -> Any:
        y = x @ w
        return y + b, y

    after = raised(f, "f32", (B, T, D), (D, N), (N,))
    assert ops(after) == {"linear": 1, "lax.add": 1}


# --- dtypes ---------------------------------------------------------------------------------------


def test_a_product_rounded_once_from_float32():
    def f(x: Any, w: Any) -> Any:
        return jnp.matmul(x, w, preferred_element_type=jnp.float32).astype(x.dtype)

    assert [n.op for n in raised(f, "bf16", (B, T, D), (D, N)).function().nodes] == ["linear"]


def test_a_product_of_widened_operands_rounded_once():
    def f(x: Any, w: Any) -> Any:
        return (x.astype(jnp.float32) @ w.astype(jnp.float32)).astype(x.dtype)

    assert [n.op for n in raised(f, "bf16", (B, T, D), (D, N)).function().nodes] == ["linear"]


def test_a_product_that_stays_in_float32_stays():
    def f(x: Any, w: Any) -> Any:
        return jnp.matmul(x, w, preferred_element_type=jnp.float32)

    assert ops(raised(f, "bf16", (B, T, D), (D, N))) == {"lax.dot_general": 1}


def test_a_bias_added_in_float32_before_rounding_stays_there():
    def f(x: Any, w: Any, b: Any) -> Any:
        y = jnp.matmul(x, w, preferred_element_type=jnp.float32)
        return (y + b.astype(jnp.float32)).astype(x.dtype)

    after = raised(f, "bf16", (B, T, D), (D, N), (N,))
    assert "linear" not in ops(after)


def test_weights_in_another_dtype():
    args = struct("bf16", B, T, D), struct("f32", D, N)
    after = check(plain(lambda x, w: x @ w, *args, parameters=("w",)))
    assert ops(after) == {"linear": 1}
    assert node(after, "linear").result.type.dtype == "f32"


@pytest.mark.parametrize("precision", ["highest", "high", jax.lax.Precision.HIGHEST])
def test_higher_precision_in_float32_stays(precision):
    after = raised(lambda x, w: jnp.matmul(x, w, precision=precision), "f32", (B, T, D), (D, N))
    assert named(after) == {}


def test_precision_says_nothing_for_bfloat16():
    after = raised(lambda x, w: jnp.matmul(x, w, precision="highest"), "bf16", (B, T, D), (D, N))
    assert named(after) == {"linear": 1}


def test_integers_stay():
    args = struct("i32", B, D), struct("i32", D, N)
    assert named(check(plain(lambda x, w: x @ w, *args, parameters=("w",)))) == {}


# --- what is no weight ----------------------------------------------------------------------------


def test_a_product_of_two_activations_stays():
    after = check(plain(lambda x, y: x @ y, struct("f32", B, D), struct("f32", D, N)))
    assert named(after) == {}


def test_a_product_of_two_parameters_stays():
    def f(x: Any, w: Any, b: Any) -> Any:
        return x + w @ b

    after = raised(f, "f32", (D, N), (D, K), (K, N))
    assert named(after) == {}


def test_a_batched_product_stays():
    after = raised(lambda x, w: jnp.einsum("bhd,hdk->bhk", x, w), "f32", (B, H, D), (H, D, K))
    assert named(after) == {}


def test_an_outer_product_stays():
    after = raised(lambda x, w: jnp.einsum("b,n->bn", x, w), "f32", (B,), (N,))
    assert named(after) == {}


def test_slices_of_stacked_parameters_inside_a_scan_are_weights():
    def f(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, m: (jnp.tanh(h @ m), None), x, w)[0]

    assert named(raised(f, "f32", (B, D), (4, D, D))) == {"scan": 1, "linear": 1}


def test_a_matrix_that_a_loop_carries_is_no_weight():
    def f(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda m, _: (jnp.tanh(m @ x), None), w, None, length=3)[0]

    assert named(raised(f, "f32", (D, D), (D, D))) == {"scan": 1}


_AXES = "abcde"


@settings(max_examples=10)
@given(data=st.data())
def test_any_einsum_with_a_weight(data):
    axes = data.draw(st.permutations(_AXES))
    summed = data.draw(st.integers(1, 2))
    own, outputs = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
    depth, lead = axes[:summed], axes[summed : summed + own]
    out = axes[summed + own : summed + own + outputs]
    x = "".join(data.draw(st.permutations([*depth, *lead])))
    w = "".join(data.draw(st.permutations([*depth, *out])))
    y = "".join(data.draw(st.permutations([*lead, *out])))
    size = dict(zip(_AXES, (2, 3, 4, 5, 1), strict=True))
    after = raised(
        lambda x_, w_: jnp.einsum(f"{x},{w}->{y}", x_, w_),
        "f32",
        tuple(size[a] for a in x),
        tuple(size[a] for a in w),
    )
    assert ops(after) == {"linear": 1}
