"""Look-ups of rows of a parameter table become embedding."""

from __future__ import annotations

from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.ir.rules.raising import check, named, node, ops, plain, struct
from tkcc.frontends.lowering import lower

ROWS, WIDTH = 11, 6
IDS = np.array([[0, 3, 10], [5, 5, 1]])
SPELLINGS: dict[str, Any] = {
    "index": lambda w, ids: w[ids],
    "take": lambda w, ids: jnp.take(w, ids, axis=0),
    "take clip": lambda w, ids: jnp.take(w, ids, axis=0, mode="clip"),
    "take fill": lambda w, ids: jnp.take(w, ids, axis=0, mode="fill"),
    "at get": lambda w, ids: w.at[ids].get(mode="promise_in_bounds"),
    "vmap": lambda w, ids: jax.vmap(lambda i: w[i])(ids),
    "one hot": lambda w, ids: jax.nn.one_hot(ids, ROWS, dtype=w.dtype) @ w,
    "one hot einsum": lambda w, ids: jnp.einsum(
        "vd,btv->btd", w, (ids[..., None] == jnp.arange(ROWS)).astype(w.dtype)
    ),
    "eye": lambda w, ids: jnp.einsum("btv,vd->btd", jax.nn.one_hot(ids, ROWS).astype(w.dtype), w),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name, dtype):
    args = struct(dtype, ROWS, WIDTH), struct("i32", 2, 3)
    f = SPELLINGS[name]
    after = check(plain(lambda w, ids: f(w, ids), *args, parameters=("w",)), {"ids": IDS})
    assert [n.op for n in after.function().nodes] == ["embedding"]
    assert node(after, "embedding").operands == after.function().inputs


@pytest.mark.parametrize("shape", [(4,), (2, 1), (2, 2, 3)])
@pytest.mark.parametrize("name", ["index", "take", "one hot"])
def test_ids_of_any_rank(name, shape):
    args = struct("f32", ROWS, WIDTH), struct("i32", *shape)
    f = SPELLINGS[name]
    after = check(
        plain(lambda w, ids: f(w, ids), *args, parameters=("w",)), {"ids": np.full(shape, 7)}
    )
    assert ops(after) == {"embedding": 1}


def test_other_integers_as_ids():
    for dtype in ("i8", "u8", "u32"):
        args = struct("f32", ROWS, WIDTH), struct(dtype, 2, 3)
        after = check(plain(lambda w, ids: w[ids], *args, parameters=("w",)), {"ids": IDS})
        assert "embedding" in ops(after)


def test_layers_of_flax():
    after = check(
        lower(nnx.Embed(ROWS, WIDTH, rngs=nnx.Rngs(0)), struct("i32", 2, 3), recognise=False),
        {"inputs": IDS},
    )
    assert ops(after) == {"embedding": 1}
    layer, ids = flax.linen.Embed(ROWS, WIDTH), struct("i32", 2, 3)
    variables = jax.eval_shape(lambda i: layer.init(jax.random.key(0), i), ids)
    after = check(lower(layer, variables, ids, recognise=False), {"arg1": IDS})
    assert ops(after) == {"embedding": 1}


NEAR_MISSES: dict[str, Any] = {
    "columns": lambda w, ids: jnp.take(w, ids % WIDTH, axis=1),
    "elements": lambda w, ids: w[ids, ids % WIDTH],
    "part of a row": lambda w, ids: w[ids, :3],
    "two rows at once": lambda w, ids: jax.vmap(
        lambda i: jax.lax.dynamic_slice(w, (i, 0), (2, WIDTH))
    )(ids[0]),
    "not one hot": lambda w, ids: (ids[..., None] >= jnp.arange(ROWS)).astype(w.dtype) @ w,
    "shifted": lambda w, ids: (ids[..., None] == jnp.arange(1, ROWS + 1)).astype(w.dtype) @ w,
    "weighted": lambda w, ids: (2 * jax.nn.one_hot(ids, ROWS)) @ w,
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name):
    args = struct("f32", ROWS, WIDTH), struct("i32", 2, 3)
    f = NEAR_MISSES[name]
    after = check(plain(lambda w, ids: f(w, ids), *args, parameters=("w",)), {"ids": IDS})
    assert "embedding" not in named(after)


def test_rows_of_activations_are_no_embedding():
    args = struct("f32", ROWS, WIDTH), struct("i32", 2, 3)
    assert named(check(plain(lambda x, ids: x[ids], *args), {"ids": IDS})) == {}
