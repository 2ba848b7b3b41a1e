"""Named ops as functions: plain JAX outside, the named op after lowering."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.ir.ops.run import normal
from tests.quick import quick_jit
from tests.tolerances import assert_same_program
from tkcc.frontends.lowering import lower
from tkcc.ir import functional as F
from tkcc.ir.errors import IRError
from tkcc.ir.evaluate import evaluate
from tkcc.ir.graph import Function
from tkcc.ir.op import named_ops

X, W = normal((2, 3, 8)), normal((8, 8), seed=1)
HEADS = normal((2, 4, 4, 8), seed=2)
KEYS, VALUES = normal((2, 6, 2, 8), seed=3), normal((2, 6, 2, 6), seed=4)
POSITIONS = np.array([[0, 1, 2, 3], [2, 3, 4, 5]], np.int32)
DECAY = np.full((2, 4, 4), 0.5, np.float32)
STATE = np.zeros((2, 4, 8, 8), np.float32)
LOGITS = normal((4, 9), seed=5)

# A call of each function: the op it means, the function, its arguments.
CALLS: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("embedding", F.embedding, (W, np.array([0, 3], np.int32))),
    ("linear", F.linear, (X, W)),
    ("linear", lambda x, w, b: F.linear(x, w, b, transposed=True), (X, W, W[0])),
    ("rms_norm", lambda x, w: F.rms_norm(x, w, eps=1e-5, plus_one=True), (X, W[0])),
    ("layer_norm", F.layer_norm, (X, W[0])),
    ("layer_norm", F.layer_norm, (X, W[0], W[1])),
    (
        "rope",
        lambda x, p, f: F.rope(x, p, f, interleaved=True, scale=1.5),
        (HEADS, POSITIONS, W[0, :2]),
    ),
    ("swiglu", lambda a, b: F.swiglu(a, b, "gelu"), (X, X)),
    ("update_cache", F.update_cache, (KEYS, KEYS[:, :2], np.array([1, 4], np.int32))),
    ("attention", lambda q, k, v: F.attention(q, k, v, scale=0.5), (HEADS, KEYS, VALUES)),
    (
        "attention",
        lambda q, k, v, p, s: F.attention(
            q, k, v, scale=0.5, sinks=s, positions=p, window=3, softcap=2.0
        ),
        (HEADS, KEYS, VALUES, POSITIONS, W[0, :4]),
    ),
    ("moe_route", lambda x, b: F.moe_route(x, 2, b, scoring="sigmoid"), (LOGITS, LOGITS[0])),
    (
        "moe_experts",
        F.moe_experts,
        (W, np.ones((8, 1), np.float32), np.zeros((8, 1), np.int32), W[None], W[None], W[None]),
    ),
    ("linear_attention", F.linear_attention, (HEADS, HEADS, HEADS, DECAY, STATE)),
    ("sample", F.sample, (LOGITS,)),
    (
        "sample",
        lambda x, t, k: F.sample(x, "categorical", k, t),
        (LOGITS, np.ones(4, np.float32), jax.random.key(0)),
    ),
    ("cast", lambda x: F.call("cast", x, dtype=jnp.bfloat16), (X,)),
    ("split", lambda x: F.call("split", x, sizes=(3, 5)), (X,)),
]


def lowered(f: Any, *args: Any) -> Function:
    return lower(f, *args, recognise=False).function()


@pytest.mark.parametrize(("op", "f", "args"), CALLS, ids=[op for op, *_ in CALLS])
def test_a_call_lowers_to_its_op_and_means_what_it_means_in_jax(op: str, f: Any, args: Any) -> None:
    function = lowered(f, *args)
    assert [node.op for node in function.nodes if node.op != "constant"] == [op]
    got = quick_jit(lambda *xs: evaluate(function, xs))(*args)
    want = jax.tree.leaves(quick_jit(f)(*args))
    for a, b in zip(got, want, strict=True):
        assert_same_program(a, b)


def test_every_function_of_the_module_is_called() -> None:
    assert set(vars(F)) & set(named_ops()) <= {op for op, *_ in CALLS}


def test_optional_operands_and_attributes_arrive_whatever_their_order() -> None:
    q, k, v = HEADS, KEYS, VALUES
    given = {"sinks": W[0, :4], "positions": POSITIONS}

    def attend(*keys: str) -> Any:
        optional = {key: given[key] for key in keys}
        return lambda q, k, v: F.call("attention", q, k, v, optional=optional, scale=0.25)

    node = lowered(attend("sinks", "positions"), q, k, v).nodes[-1]
    assert node.keys == ("positions", "sinks")
    assert node.attribute("scale") == 0.25
    a = jax.jit(attend("sinks", "positions"))(q, k, v)
    np.testing.assert_allclose(a, attend("positions", "sinks")(q, k, v), rtol=1e-5, atol=1e-6)


def test_a_composite_written_by_hand_with_numbers_is_the_op() -> None:
    tagged = lax.composite(lambda x, w, *, eps: x, name="tkcc.rms_norm")
    (node,) = lowered(lambda x, w: tagged(x, w, eps=0.25), X, W[0]).nodes
    assert (node.op, node.attribute("eps"), node.attribute("plus_one")) == ("rms_norm", 0.25, False)


def test_calls_survive_jit_scan_and_checkpoint() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return jax.checkpoint(lambda y: F.rms_norm(y, w))(c), None

        return jax.jit(lambda y: lax.scan(step, y, None, length=2)[0])(x)

    (loop,) = lowered(f, X, W[0]).nodes
    assert [node.op for node in loop.regions[0].nodes] == ["rms_norm"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.call("no_such_op", X), "unknown op 'no_such_op'"),
        (lambda: F.rms_norm(X, W[:3, 0]), "w is (3,), but the last axis of x is (8,)"),
        (lambda: lowered(lambda x: F.rms_norm(x, W[:3, 0]), X), "w is (3,)"),
        (lambda: F.call("activation", X, kind="swish"), "unknown activation 'swish'"),
        (lambda: F.call("linear", X), "takes 2 operands (x, w), got 1"),
        (lambda: F.call("softmax", X, axis=0), "no attribute ['axis']"),
    ],
)
def test_wrong_calls_are_refused_as_nodes_are(call: Any, message: str) -> None:
    with pytest.raises(IRError) as error:
        call()
    assert message in error.value.what
    assert error.value.remedy
