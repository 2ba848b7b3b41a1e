"""Whole models in plain code come out as named ops, with the same results."""

from __future__ import annotations

from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.ir.passes import untagged_llamas as llamas
from tests.ir.rules.raising import check, named, ops, plain, struct
from tkcc.frontends.lowering import Call, lower, lower_functions
from tkcc.ir.graph import Module
from tkcc.ir.passes.recognise import recognise
from tkcc.ir.rewrite.driver import Log

BATCH = 2
DTYPES = ("f32", "bf16")


def values_of(tree: Any, prefix: str) -> dict[str, Any]:
    """The arrays of an argument by the names that `lower` gives them."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        prefix + "".join(f".{getattr(k, 'key', getattr(k, 'idx', k))}" for k in p): x
        for p, x in leaves
    }


def einsum_module(dtype: str, length: int) -> tuple[Module, dict[str, Any]]:
    kind = struct(dtype).dtype
    p, caches = llamas.einsum_parameters(kind), llamas.einsum_caches(kind, BATCH)
    positions = np.array([[0], [3]]) + np.arange(length)
    tokens = np.arange(BATCH * length).reshape(BATCH, length) * 7 % llamas.VOCABULARY
    args = (p, struct("i32", BATCH, length), struct("i32", BATCH, length), caches)
    module = plain(llamas.einsum_step, *args, parameters=("p",), state=("caches",))
    return module, {**values_of(p, "p"), "tokens": tokens, "positions": positions}


def torch_module(dtype: str, length: int) -> tuple[Module, dict[str, Any]]:
    kind = struct(dtype).dtype
    p, caches = llamas.torch_parameters(kind), llamas.torch_caches(kind, BATCH)
    tokens = np.arange(BATCH * length).reshape(BATCH, length) * 7 % llamas.VOCABULARY
    args = (p, struct("i32", BATCH, length), struct("i32"), caches)
    module = plain(llamas.torch_step, *args, parameters=("p",), state=("caches",))
    return module, {**values_of(p, "p"), "tokens": tokens, "start": np.int32(3)}


PER_LAYER = {"rms_norm": 2, "linear": 7, "rope": 2, "update_cache": 2, "attention": 1, "swiglu": 1}


@pytest.mark.parametrize("length", [5, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_einsum_llama_becomes_named_ops(dtype, length):
    before, given = einsum_module(dtype, length)
    after = check(before, given)
    wanted = {op: n * llamas.LAYERS for op, n in PER_LAYER.items()}
    wanted["rms_norm"] += 1
    wanted["linear"] += 1
    assert named(after) == {**wanted, "embedding": 1}
    frequencies = {"lax.mul", "lax.div", "lax.pow", "lax.slice"}
    left = {op for op in ops(after) if op.startswith("lax.")}
    assert left - frequencies == {"lax.add"}, "residual additions are all that is left"
    assert ops(after)["lax.add"] == 2 * llamas.LAYERS


@pytest.mark.parametrize("length", [5, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_port_of_pytorch_code_with_one_scan_becomes_named_ops(dtype, length):
    before, given = torch_module(dtype, length)
    after = check(before, given)
    wanted = {**PER_LAYER, "embedding": 1, "scan": 1}
    wanted["rms_norm"] += 1
    wanted["linear"] += 1
    assert named(after) == wanted
    body = next(n for n in after.function().nodes if n.op == "scan").regions[0]
    inside = {n.op for n in body.nodes}
    assert inside - set(PER_LAYER) == {"lax.add", "lax.reshape"}


def test_prefill_and_decode_share_parameters_by_name():
    kind = jnp.float32
    p, caches = llamas.einsum_parameters(kind), llamas.einsum_caches(kind, BATCH)

    def call(length: int) -> Call:
        args = (p, struct("i32", BATCH, length), struct("i32", BATCH, length), caches)
        return Call(llamas.einsum_step, args, ("p",), ("caches",))

    calls = {"prefill": call(5), "decode": call(1)}
    before = lower_functions(calls, recognise=False)
    after = lower_functions(calls)
    assert after.parameters == before.parameters
    assert after.state == before.state
    assert named(after)["attention"] == 2 * llamas.LAYERS
    assert [f.aliases for f in after.functions.values()] == [
        f.aliases for f in before.functions.values()
    ]


class NnxBlock(nnx.Module):
    """A pre-norm transformer block with a gelu MLP, of Flax nnx layers."""

    def __init__(self, dtype: Any) -> None:
        rngs = nnx.Rngs(0)
        options: dict[str, Any] = {"rngs": rngs, "dtype": dtype, "param_dtype": dtype}
        self.embedding = nnx.Embed(20, 16, **options)
        self.norm1 = nnx.LayerNorm(16, **options)
        self.attention = nnx.MultiHeadAttention(4, 16, decode=False, **options)
        self.norm2 = nnx.RMSNorm(16, **options)
        self.up, self.down = nnx.Linear(16, 40, **options), nnx.Linear(40, 16, **options)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens)
        mask = nnx.make_causal_mask(tokens)
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


class LinenBlock(flax.linen.Module):
    """The same of Flax linen layers."""

    dtype: Any

    @flax.linen.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        linen, options = flax.linen, {"dtype": self.dtype, "param_dtype": self.dtype}
        x = linen.Embed(20, 16, **options)(tokens)
        mask = linen.make_causal_mask(tokens)
        h = linen.LayerNorm(**options)(x)
        x = x + linen.MultiHeadDotProductAttention(4, **options)(h, mask=mask)
        h = linen.Dense(40, **options)(linen.RMSNorm(**options)(x))
        return x + linen.Dense(16, **options)(linen.gelu(h))


FLAX_BLOCK = {
    "activation": 1,
    "attention": 1,
    "embedding": 1,
    "layer_norm": 1,
    "linear": 6,
    "rms_norm": 1,
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_nnx_layers_becomes_named_ops(dtype):
    before = lower(NnxBlock(struct(dtype).dtype), struct("i32", 2, 6), recognise=False)
    after = check(before, {"tokens": np.arange(12).reshape(2, 6)})
    assert named(after) == FLAX_BLOCK
    assert {op for op in ops(after) if op.startswith("lax.")} == {"lax.add"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_linen_layers_becomes_named_ops(dtype):
    block = LinenBlock(struct(dtype).dtype)
    tokens = struct("i32", 2, 6)
    variables = jax.eval_shape(lambda t: block.init(jax.random.key(0), t), tokens)
    before = lower(block, variables, tokens, recognise=False)
    after = check(before, {"arg1": np.arange(12).reshape(2, 6)})
    assert named(after) == FLAX_BLOCK
    assert {op for op in ops(after) if op.startswith("lax.")} == {"lax.add"}


def test_a_linen_attention_with_a_cache_becomes_cache_updates_and_attention():
    layer = flax.linen.MultiHeadDotProductAttention(num_heads=4, decode=True)
    variables = jax.eval_shape(lambda: layer.init(jax.random.key(0), jnp.ones((2, 10, 16))))

    def decode(params: Any, cache: Any, x: Any) -> Any:
        y, new = layer.apply({"params": params, "cache": cache}, x, mutable=["cache"])
        return y, new["cache"]

    args = (variables["params"], variables["cache"], struct("f32", 2, 1, 16))
    before = plain(decode, *args, parameters=("params",), state=("cache",))
    after = check(before, {"cache.cache_index": np.int32(4)})
    assert named(after) == {"attention": 1, "linear": 4, "update_cache": 2}


def test_nothing_to_raise_gives_the_same_bits():
    def f(x: Any, y: Any) -> Any:
        z = jnp.sin(x) * y + jnp.square(x).sum(axis=0, keepdims=True)
        return jnp.where(z > 0, z, -z).T.reshape(-1, 2), jnp.cumsum(y)

    before = plain(f, struct("f32", 6, 4), struct("f32", 6, 4))
    after = check(before)
    assert named(after) == {}


def test_recognising_twice_changes_nothing():
    before, _ = torch_module("f32", 5)
    once = recognise(before)
    log = Log()
    twice = recognise(once, log)
    assert log.events == []
    assert ops(twice) == ops(once)


def test_the_log_names_the_rules_that_fired():
    before, _ = einsum_module("f32", 1)
    log = Log()
    recognise(before, log)
    fired = {event.rule for event in log.events}
    assert {"raise_attention", "raise_rope", "raise_norm", "raise_linear"} <= fired


def test_a_limited_log_stops_after_that_many_rewrites():
    before, given = einsum_module("f32", 1)
    log = Log(limit=7)
    after = recognise(before, log)
    assert len(log.events) == 7
    assert len(after.function().nodes) > len(recognise(before).function().nodes)
