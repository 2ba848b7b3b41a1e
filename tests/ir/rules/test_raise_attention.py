"""Plain attention in many spellings becomes the named op, with the same results."""

from __future__ import annotations

import itertools
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.rules.raising import attributes, check, named, node, ops, plain, struct

B, T, S, H, G, D, E = 2, 5, 7, 4, 2, 8, 6
DTYPES = ("f32", "bf16")
BTHD = ((B, T, H, D), (B, S, H, D), (B, S, H, E))
BHTD = ((B, H, T, D), (B, H, S, D), (B, H, S, E))
GROUPED = ((B, T, H, D), (B, S, G, D), (B, S, G, E))
GROUPED_BHTD = ((B, H, T, D), (B, G, S, D), (B, G, S, E))
SCALE = D**-0.5


def scores_bthd(q: Any, k: Any) -> Any:
    return jnp.einsum("bthd,bshd->bhts", q, k)


def einsum_bthd(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(scores_bthd(q, k) * SCALE)
    return jnp.einsum("bhts,bshe->bthe", weights, v)


def scaled_query(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(scores_bthd(q / jnp.sqrt(D).astype(q.dtype), k))
    return jnp.einsum("bhts,bshe->bthe", weights, v)


def scaled_key(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(scores_bthd(q, k * SCALE))
    return jnp.einsum("bhts,bshe->bthe", weights, v)


def both_scaled(q: Any, k: Any, v: Any) -> Any:
    root = D**-0.25
    weights = jax.nn.softmax(scores_bthd(q * root, k * root))
    return jnp.einsum("bhts,bshe->bthe", weights, v)


def divided_scores(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(scores_bthd(q, k) / np.sqrt(D))
    return jnp.einsum("bhts,bshe->bthe", weights, v)


def softmax_in_float32(q: Any, k: Any, v: Any) -> Any:
    scores = scores_bthd(q, k).astype(jnp.float32) * SCALE
    return jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores).astype(v.dtype), v)


def float32_throughout(q: Any, k: Any, v: Any) -> Any:
    wide = [x.astype(jnp.float32) for x in (q, k, v)]
    return einsum_bthd(*wide).astype(q.dtype)


def scores_kept_in_float32(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32) * SCALE
    return jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores).astype(v.dtype), v)


def own_softmax(q: Any, k: Any, v: Any) -> Any:
    scores = scores_bthd(q, k) * SCALE
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return jnp.einsum("bhts,bshe->bthe", weights / weights.sum(-1, keepdims=True), v)


def by_matmul(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.swapaxes(-1, -2) * SCALE) @ v


def by_matmul_of_transposed(q: Any, k: Any, v: Any) -> Any:
    """From and to [b, t, h, d]."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    return by_matmul(q, k, v).transpose(0, 2, 1, 3)


def by_vmap_over_heads(q: Any, k: Any, v: Any) -> Any:
    def one(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T * SCALE) @ v

    return jax.vmap(jax.vmap(one, in_axes=1, out_axes=1))(q, k, v)


def repeated(q: Any, k: Any, v: Any) -> Any:
    k, v = (jnp.repeat(x, H // G, axis=2) for x in (k, v))
    return einsum_bthd(q, k, v)


def repeated_bhtd(q: Any, k: Any, v: Any) -> Any:
    def wide(x: Any) -> Any:
        b, g, s, d = x.shape
        return jnp.broadcast_to(x[:, :, None], (b, g, H // g, s, d)).reshape(b, H, s, d)

    return by_matmul(q, wide(k), wide(v))


def tiled(q: Any, k: Any, v: Any) -> Any:
    """Head i reads key head i % g (not i // (h / g))."""
    k, v = (jnp.tile(x, (1, 1, H // G, 1)) for x in (k, v))
    return einsum_bthd(q, k, v)


def grouped(order: str) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        q = q.reshape(B, T, G, H // G, D)
        weights = jax.nn.softmax(jnp.einsum(f"btgrd,bsgd->{order}s", q, k) * SCALE)
        return jnp.einsum(f"{order}s,bsge->btgre", weights, v).reshape(B, T, H, E)

    f.__name__ = f"grouped_{order}"
    return f


def jax_nn(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v)


def flax_nnx(q: Any, k: Any, v: Any) -> Any:
    return nnx.dot_product_attention(q, k, v)


def flax_linen(q: Any, k: Any, v: Any) -> Any:
    return flax.linen.dot_product_attention(q, k, v)


def flax_linen_float32_softmax(q: Any, k: Any, v: Any) -> Any:
    return flax.linen.dot_product_attention(q, k, v, force_fp32_for_softmax=True)


SAME_WIDTH = ((B, T, H, D), (B, S, H, D), (B, S, H, D))
SAME_WIDTH_GROUPED = ((B, T, H, D), (B, S, G, D), (B, S, G, D))
STYLES = [
    (einsum_bthd, BTHD),
    (scaled_query, BTHD),
    (scaled_key, BTHD),
    (both_scaled, BTHD),
    (divided_scores, BTHD),
    (softmax_in_float32, BTHD),
    (float32_throughout, BTHD),
    (scores_kept_in_float32, BTHD),
    (own_softmax, BTHD),
    (by_matmul, BHTD),
    (by_matmul_of_transposed, BTHD),
    (by_vmap_over_heads, BTHD),
    (repeated, GROUPED),
    (repeated_bhtd, GROUPED_BHTD),
    (tiled, GROUPED),
    *[(grouped(order), GROUPED) for order in ("bgrt", "bgtr", "brgt", "tbgr")],
    (jax_nn, SAME_WIDTH),
    (jax_nn, SAME_WIDTH_GROUPED),
    (flax_nnx, SAME_WIDTH),
    (flax_linen, SAME_WIDTH),
    (flax_linen_float32_softmax, SAME_WIDTH),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("style", "shapes"), STYLES, ids=lambda x: getattr(x, "__name__", ""))
def test_every_style_becomes_attention(style, shapes, dtype):
    after = check(plain(style, *(struct(dtype, *shape) for shape in shapes)))
    assert set(ops(after)) == {"attention"}
    found = attributes(after, "attention")
    assert found["causal"] is False
    assert found["scale"] == pytest.approx(SCALE, rel=5e-3)
    k = node(after, "attention").operands[1].type
    assert k.shape in {shapes[1], (B, S, G, D)}, "key heads are not repeated"


@pytest.mark.parametrize("style", [einsum_bthd, by_matmul_of_transposed, repeated, grouped("bgrt")])
def test_values_in_their_own_layout_are_read_where_they_lie(style):
    shapes = GROUPED if style.__name__ in ("repeated", "grouped_bgrt") else BTHD
    after = check(plain(style, *(struct("f32", *shape) for shape in shapes)))
    assert [n.op for n in after.function().nodes] == ["attention"]
    assert node(after, "attention").operands == after.function().inputs


def test_a_cache_with_heads_before_positions_keeps_its_layout():
    after = check(plain(repeated_bhtd, *(struct("bf16", *shape) for shape in GROUPED_BHTD)))
    found = node(after, "attention")
    assert attributes(after, "attention")["layout"] == "bhsd"
    assert found.operands[1:3] == after.function().inputs[1:3]


def test_one_key_head_without_an_axis_of_its_own():
    def f(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("bthd,bsd->bhts", q, k) * SCALE)
        return jnp.einsum("bhts,bsd->bthd", weights, v)

    args = struct("f32", B, T, H, D), struct("f32", B, S, D), struct("f32", B, S, D)
    after = check(plain(f, *args))
    assert node(after, "attention").operands[0].type.shape == (B, T, H, D)
    assert node(after, "attention").operands[1].type.shape == (B, S, 1, D)


def test_attention_without_a_batch():
    def f(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("thd,shd->hts", q, k) * SCALE)
        return jnp.einsum("hts,shd->thd", weights, v)

    after = check(plain(f, struct("f32", T, H, D), *[struct("f32", S, H, D)] * 2))
    assert node(after, "attention").operands[0].type.shape == (1, T, H, D)


def test_one_query_of_one_row_attends_in_heads():
    """Dimensions of size 1 say nothing about what they are; ranks do."""
    args = struct("f32", 1, 1, H, D), *[struct("f32", 1, S, G, D)] * 2
    after = check(plain(repeated, *args))
    assert node(after, "attention").operands[0].type.shape == (1, 1, H, D)
    assert node(after, "attention").operands[1].type.shape == (1, S, G, D)


def test_soft_capped_scores():
    def f(q: Any, k: Any, v: Any) -> Any:
        scores = scores_bthd(q, k) * SCALE
        weights = jax.nn.softmax(20.0 * jnp.tanh(scores / 20.0))
        return jnp.einsum("bhts,bshe->bthe", weights, v)

    after = check(plain(f, *(struct("f32", *s) for s in BTHD)), scale=4.0)
    found = attributes(after, "attention")
    assert found["softcap"] == pytest.approx(20.0)
    assert found["scale"] == pytest.approx(SCALE)


def test_a_learned_bias_is_an_operand():
    def f(w: Any, q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(scores_bthd(q, k) + w[None])
        return jnp.einsum("bhts,bshe->bthe", weights, v)

    args = struct("f32", H, T, S), *(struct("f32", *s) for s in BTHD)
    after = check(plain(f, *args, parameters=("w",)))
    assert node(after, "attention").keys == ("bias",)
    assert attributes(after, "attention")["scale"] == 1.0


def test_a_bias_that_is_scaled_with_the_scores():
    def f(bias: Any, q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax((scores_bthd(q, k) - bias[:, None]) * 0.5)
        return jnp.einsum("bhts,bshe->bthe", weights, v)

    args = struct("f32", B, T, S), *(struct("f32", *s) for s in BTHD)
    after = check(plain(f, *args))
    assert node(after, "attention").keys == ("bias",)


def linear_bias(q: Any, k: Any, v: Any) -> Any:
    """ALiBi (Press et al., arXiv 2108.12409) with a causal mask."""
    slopes = 2.0 ** -jnp.arange(1, H + 1)
    distance = jnp.arange(T)[None, :] - jnp.arange(T)[:, None]
    scores = scores_bthd(q, k) * SCALE + slopes[:, None, None] * distance
    scores = jnp.where(jnp.tril(jnp.ones((T, T), bool)), scores, jnp.finfo(q.dtype).min)
    return jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v)


def test_a_bias_made_of_counts_leaves_the_causal_mask_a_bound():
    after = check(plain(linear_bias, *[struct("f32", B, T, H, D)] * 3))
    assert node(after, "attention").keys == ("bias",)
    assert attributes(after, "attention")["causal"] is True


def test_queries_that_all_rows_share_are_repeated():
    def f(w: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("thd,bshd->bhts", w, k) * SCALE)
        return jnp.einsum("bhts,bshe->bthe", weights, v)

    args = struct("f32", T, H, D), struct("f32", B, S, H, D), struct("f32", B, S, H, E)
    after = check(plain(f, *args, parameters=("w",)))
    assert node(after, "attention").operands[0].type.shape == (B, T, H, D)


def test_a_number_added_to_all_scores_changes_nothing():
    def f(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(scores_bthd(q, k) + 1.5)
        return jnp.einsum("bhts,bshe->bthe", weights, v)

    assert named(check(plain(f, *(struct("f32", *s) for s in BTHD)))) == {"attention": 1}


# --- what must not be raised ----------------------------------------------------------------------


def wrong_axis(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(scores_bthd(q, k), axis=2)
    return jnp.einsum("bhts,bshe->bthe", weights, v)


def weights_returned(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(scores_bthd(q, k))
    return jnp.einsum("bhts,bshe->bthe", weights, v), weights


def scores_returned(q: Any, k: Any, v: Any) -> Any:
    scores = scores_bthd(q, k)
    return jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v), scores


def weights_changed(q: Any, k: Any, v: Any) -> Any:
    weights = jnp.square(jax.nn.softmax(scores_bthd(q, k)))
    return jnp.einsum("bhts,bshe->bthe", weights, v)


def bias_in_the_cap(q: Any, k: Any, v: Any) -> Any:
    scores = 5.0 * jnp.tanh((scores_bthd(q, k) + jnp.arange(S)) / 5.0)
    return jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v)


def mildly_hidden(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.where(jnp.arange(S) < 4, scores_bthd(q, k), -100.0)
    return jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v)


def highest_precision(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bthd,bshd->bhts", q, k, precision="highest")
    return jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v)


def no_softmax(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("bhts,bshe->bthe", scores_bthd(q, k), v)


def per_query_temperature(q: Any, k: Any, v: Any) -> Any:
    scores = scores_bthd(q, k) * jnp.arange(1, T + 1)[:, None]
    return jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v)


@pytest.mark.parametrize(
    "f",
    [
        wrong_axis,
        weights_returned,
        scores_returned,
        weights_changed,
        bias_in_the_cap,
        mildly_hidden,
        highest_precision,
        no_softmax,
        per_query_temperature,
    ],
)
def test_near_misses_are_not_attention(f):
    after = check(plain(f, *(struct("f32", *s) for s in BTHD)))
    assert "attention" not in named(after)


def test_bfloat16_products_meet_every_precision():
    after = check(plain(highest_precision, *(struct("bf16", *s) for s in BTHD)))
    assert named(after) == {"attention": 1}


def test_a_float32_result_of_bfloat16_operands_is_not_rounded():
    def f(q: Any, k: Any, v: Any) -> Any:
        return einsum_bthd(*(x.astype(jnp.float32) for x in (q, k, v)))

    after = check(plain(f, *(struct("bf16", *s) for s in BTHD)))
    dtypes = [v.type.dtype for v in node(after, "attention").operands]
    assert node(after, "attention").result.type.dtype == "f32"
    assert dtypes[0] == dtypes[2] == "f32"


def test_probabilities_in_float32_are_not_rounded_to_the_values_dtype():
    def f(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(scores_bthd(q, k).astype(jnp.float32))
        out = jnp.einsum("bhts,bshe->bthe", weights, v.astype(jnp.float32))
        return out.astype(q.dtype)

    after = check(plain(f, *(struct("bf16", *s) for s in BTHD)))
    dtypes = [v.type.dtype for v in node(after, "attention").operands]
    assert dtypes == ["bf16", "bf16", "f32"]


# --- any combination ------------------------------------------------------------------------------

_ORDERS = ["".join(p) for p in itertools.permutations("bth")]


@settings(max_examples=8)
@given(
    q_order=st.sampled_from(_ORDERS),
    k_order=st.sampled_from(_ORDERS),
    v_order=st.sampled_from(_ORDERS),
    scores_order=st.sampled_from(["bht", "hbt", "tbh"]),
    sizes=st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 3]), st.sampled_from([1, 4])),
    scaled=st.sampled_from(["q", "k", "scores", "none"]),
    dtype=st.sampled_from(DTYPES),
)
def test_any_order_of_dimensions(q_order, k_order, v_order, scores_order, sizes, scaled, dtype):
    size = dict(zip("bth", sizes, strict=True), s=S, d=D)
    names = [q_order + "d", k_order.replace("t", "s") + "d", v_order.replace("t", "s") + "d"]

    def f(q: Any, k: Any, v: Any) -> Any:
        q = q * 0.5 if scaled == "q" else q
        k = k * 0.5 if scaled == "k" else k
        scores = jnp.einsum(f"{names[0]},{names[1]}->{scores_order}s", q, k)
        scores = scores * 0.5 if scaled == "scores" else scores
        weights = jax.nn.softmax(scores)
        return jnp.einsum(f"{scores_order}s,{names[2]}->{q_order}d", weights, v)

    args = [struct(dtype, *(size[a] for a in name)) for name in names]
    after = check(plain(f, *args))
    assert set(ops(after)) == {"attention"}
    assert attributes(after, "attention")["scale"] == (1.0 if scaled == "none" else 0.5)
