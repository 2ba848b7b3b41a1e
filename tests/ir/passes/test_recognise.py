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
