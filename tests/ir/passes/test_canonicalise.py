"""Canonical spelling changes no bit of any result."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.rules.raising import inputs_for, plain, run, struct
from tests.tolerances import assert_identical
from tkcc.ir.graph import Module
from tkcc.ir.passes.canonicalise import canonicalise


def same_bits(before: Module, given: Any = None) -> Module:
    after = canonicalise(before)
    inputs = inputs_for(before.function(), given or {})
    for old, new in zip(run(before.function(), inputs), run(after.function(), inputs), strict=True):
        assert_identical(new, old)
    return after


def op_names(module: Module) -> list[str]:
    return [n.op.removeprefix("lax.") for n in module.function().nodes]


# name -> (function of x f32[4, 6], the ops that are left)
STEPS: dict[str, tuple[Any, list[str]]] = {
    "square": (lambda x: jnp.square(x), ["mul"]),
    "power of two": (lambda x: x**2, ["mul"]),
    "product": (lambda x: x * x, ["mul"]),
    "cube": (lambda x: x**3, ["integer_pow"]),
    "times one": (lambda x: jnp.sin(x) * 1.0, ["sin"]),
    "over one": (lambda x: jnp.sin(x) / 1.0, ["sin"]),
    "minus zero": (lambda x: jnp.sin(x) - 0.0, ["sin"]),
    "stop gradient": (lambda x: jax.lax.stop_gradient(jnp.sin(x)), ["sin"]),
    "copy": (lambda x: jnp.copy(jnp.sin(x)), ["sin"]),
    "same dtype": (lambda x: jnp.sin(x).astype(jnp.float32), ["sin"]),
    "wider and back": (
        lambda x: jnp.sin(x.astype(jnp.bfloat16)).astype(jnp.float32).astype(jnp.bfloat16),
        ["convert_element_type", "sin"],
    ),
    "narrower and back": (
        lambda x: jnp.sin(x).astype(jnp.bfloat16).astype(jnp.float32),
        ["sin", "convert_element_type", "convert_element_type"],
    ),
    "maximum of minus infinity": (lambda x: jnp.maximum(-jnp.inf, jnp.sin(x)), ["sin"]),
    "and true": (lambda x: (x > 1) & True, ["constant", "gt"]),
    "known choice": (lambda x: jnp.where(True, jnp.sin(x), x), ["sin"]),
    "equal choices": (lambda x: jax.lax.select(x > 0, x, x), []),
    "two transposes": (lambda x: jnp.sin(x.T).T.T.T, ["transpose", "sin", "transpose"]),
    "transposes that cancel": (lambda x: x.T.T, []),
    "two reshapes": (lambda x: x.reshape(2, 12).reshape(3, 8), ["reshape"]),
    "reshapes that cancel": (lambda x: x.reshape(2, 12).reshape(4, 6), []),
    "dimensions of size 1": (lambda x: x[:, None][..., None].squeeze(1), ["reshape"]),
    "moved dimension of size 1": (lambda x: x[None].transpose(1, 0, 2), ["reshape"]),
    "reshape between transposes": (
        lambda x: x.reshape(1, 4, 6).transpose(2, 1, 0).reshape(6, 4),
        ["transpose"],
    ),
    "two broadcasts": (
        lambda x: jnp.broadcast_to(jnp.broadcast_to(x[:, None], (4, 3, 6))[None], (2, 4, 3, 6)),
        ["broadcast_in_dim"],
    ),
    "broadcast of a reshape": (
        lambda x: jnp.broadcast_to(x.reshape(4, 1, 6), (4, 5, 6)),
        ["broadcast_in_dim"],
    ),
    "index of counts": (
        lambda x: jnp.where(jnp.arange(4) < 0, jnp.arange(4) + 4, jnp.arange(4)),
        ["iota"],
    ),
    "arithmetic of constants": (
        lambda x: x * jnp.float32(np.float32(2) * 3 - jnp.float32(1) / 8),
        ["constant", "mul"],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(name):
    f, wanted = STEPS[name]
    after = same_bits(plain(lambda x: f(x), struct("f32", 4, 6)))
    assert op_names(after) == wanted


def test_a_float_plus_zero_keeps_its_addition():
    """-0.0 + 0.0 is 0.0."""
    after = same_bits(plain(lambda x: x + 0.0, struct("f32", 2)), {"x": [-0.0, 1.0]})
    assert "add" in op_names(after)


def test_an_integer_and_one_is_no_identity():
    after = same_bits(plain(lambda x: x & 1, struct("i32", 3)), {"x": [1, 2, 7]})
    assert "and" in op_names(after)


def test_constants_of_more_elements_keep_their_arithmetic():
    after = same_bits(plain(lambda x: x + 2 * np.arange(4.0, dtype=np.float32), struct("f32", 4)))
    assert "add" in op_names(after)


def test_dead_and_equal_nodes_are_dropped():
    def f(x: Any) -> Any:
        jnp.cos(x)
        return jnp.sin(x) + jnp.sin(x)

    assert op_names(same_bits(plain(f, struct("f32", 4)))) == ["sin", "add"]


def test_bodies_of_loops_are_written_alike():
    def f(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (jnp.square(c.T.T) * 1.0, None), x, None, length=2)[0]

    after = same_bits(plain(f, struct("f32", 3, 3)))
    body = after.function().nodes[-1].regions[0]
    assert [n.op for n in body.nodes] == ["lax.mul"]


def test_special_numbers_keep_their_bits():
    x = np.array([-0.0, np.inf, -np.inf, np.nan, 1e-45], np.float32)

    def f(x: Any) -> Any:
        y = jnp.maximum(-jnp.inf, x) * 1.0 - 0.0
        return y, jnp.square(x), jnp.minimum(jnp.inf, x) / 1.0

    same_bits(plain(f, struct("f32", 5)), {"x": x})


@settings(max_examples=12)
@given(data=st.data())
def test_any_chain_of_layout_ops(data):
    shape = [1, 2, 3, 1, 4]
    steps = []
    for _ in range(data.draw(st.integers(1, 6))):
        kind = data.draw(st.sampled_from(["transpose", "reshape", "broadcast", "squeeze"]))
        if kind == "transpose":
            order = data.draw(st.permutations(range(len(shape))))
            steps.append(lambda x, order=order: x.transpose(order))
            shape = [shape[i] for i in order]
        elif kind == "reshape":
            size = int(np.prod(shape))
            shape = data.draw(
                st.sampled_from([[size], [size // 2, 2], [2, 1, size // 2, 1], shape])
            )
            steps.append(lambda x, shape=tuple(shape): x.reshape(shape))
        elif kind == "broadcast" and len(shape) < 6:
            place = data.draw(st.integers(0, len(shape)))
            times = data.draw(st.integers(1, 2))
            shape = [*shape[:place], times, *shape[place:]]
            steps.append(
                lambda x, p=place, s=tuple(shape): jnp.broadcast_to(jnp.expand_dims(x, p), s)
            )
        else:
            steps.append(jnp.squeeze)
            shape = [n for n in shape if n != 1]

    def f(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    before = plain(f, struct("f32", 1, 2, 3, 1, 4))
    after = same_bits(before)
    assert len(after.function().nodes) <= len(before.function().nodes)
