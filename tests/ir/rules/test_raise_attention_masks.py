"""Masks of plain attention become causal, window and length bounds, a mask or a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.rules.raising import (
    attributes,
    check,
    inputs_for,
    named,
    node,
    ops,
    plain,
    run,
    struct,
)
from tkcc.ir.passes.recognise import recognise

B, T, S, H, D = 2, 6, 6, 2, 4
LEAST = float(np.finfo(np.float32).min)
Hide = Callable[..., Any]


def attend(hide: Hide, t: int = T, s: int = S) -> tuple[Callable[..., Any], list[Any]]:
    """Attention with `hide(scores, *rest)`, and the types of q, k, v."""

    def f(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        scores = hide(jnp.einsum("bthd,bshd->bhts", q, k) * D**-0.5, *rest)
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)

    return f, [struct("f32", B, n, H, D) for n in (t, s, s)]


def after(hide: Hide, *rest: Any, given: Any = None, t: int = T, s: int = S) -> Any:
    f, args = attend(hide, t, s)
    named_args = _with_names(f, len(rest))
    return check(plain(named_args, *args, *rest), given)


def _with_names(f: Callable[..., Any], count: int) -> Callable[..., Any]:
    """f with parameters named q, k, v, a, b (so that tests can give them by name)."""
    return {
        0: lambda q, k, v: f(q, k, v),
        1: lambda q, k, v, a: f(q, k, v, a),
        2: lambda q, k, v, a, b: f(q, k, v, a, b),
    }[count]


ROWS, COLUMNS = np.arange(T)[:, None], np.arange(S)[None, :]
CAUSAL = {
    "tril": lambda x: jnp.where(jnp.tril(jnp.ones((T, S), bool)), x, -jnp.inf),
    "tril_finite": lambda x: jnp.where(jnp.tril(jnp.ones((T, S), bool)), x, LEAST),
    "tril_is_zero": lambda x: jnp.where(jnp.tril(jnp.ones((T, S))) == 0, -1e9, x),
    "triu_added": lambda x: x + jnp.triu(jnp.full((T, S), -jnp.inf), 1),
    "triu_times": lambda x: x + jnp.triu(jnp.ones((T, S)), k=1) * -1e10,
    "one_minus": lambda x: x + (1.0 - jnp.tril(jnp.ones((T, S)))) * LEAST,
    "subtracted": lambda x: x - 1e9 * (1.0 - jnp.tril(jnp.ones((T, S)))),
    "iota": lambda x: jnp.where(jnp.arange(T)[:, None] >= jnp.arange(S), x, LEAST),
    "broadcasted_iota": lambda x: jnp.where(
        jax.lax.broadcasted_iota(jnp.int32, (T, S), 0)
        < jax.lax.broadcasted_iota(jnp.int32, (T, S), 1),
        -1e30,
        x,
    ),
    "negated": lambda x: jnp.where(~(jnp.arange(S)[None] > jnp.arange(T)[:, None]), x, -jnp.inf),
    "integers": lambda x: jnp.where(jnp.tril(jnp.ones((T, S), jnp.int32)) > 0, x, -jnp.inf),
    "before_scale": lambda x: 0.5 * jnp.where(jnp.tril(jnp.ones((T, S), bool)), x, -jnp.inf),
    "cut_from_a_larger_one": lambda x: jnp.where(
        jnp.tril(jnp.ones((64, 64), bool))[None, None, :T, :S], x, LEAST
    ),
    "linen": lambda x: jnp.where(flax.linen.make_causal_mask(jnp.ones((B, T))) > 0, x, LEAST),
    "float_counts": lambda x: jnp.where(
        jnp.arange(T, dtype=jnp.float32)[:, None] >= jnp.arange(S, dtype=jnp.float32), x, LEAST
    ),
    "twice": lambda x: jnp.where(
        jnp.tril(jnp.ones((T, S), bool)) & (jnp.arange(S) < S + 3), x, -jnp.inf
    ),
}


@pytest.mark.parametrize("hide", CAUSAL.values(), ids=CAUSAL.keys())
def test_causal_masks(hide):
    raised = after(hide)
    assert [n.op for n in raised.function().nodes] == ["attention"]
    found = attributes(raised, "attention")
    assert (found["causal"], found["window"], node(raised, "attention").keys) == (True, None, ())


def test_queries_that_are_the_last_of_the_keys_need_no_positions():
    def hide(x: Any) -> Any:
        return jnp.where(jnp.arange(3, S)[:, None] >= jnp.arange(S), x, LEAST)

    raised = after(hide, t=3)
    assert attributes(raised, "attention")["causal"] is True
    assert node(raised, "attention").keys == ()


# --- positions that are data ----------------------------------------------------------------------


def by_position(fill: float) -> Hide:
    def hide(x: Any, positions: Any) -> Any:
        seen = jnp.arange(x.shape[-1])[None, None, :] <= positions[:, :, None]
        return jnp.where(seen[:, None], x, fill)

    return hide


@pytest.mark.parametrize("fill", [-np.inf, LEAST, -1e9])
def test_positions_of_queries(fill):
    positions = np.array([[0, 2, 4], [3, 1, 5]])
    raised = after(by_position(fill), struct("i32", B, 3), given={"a": positions}, t=3)
    found = node(raised, "attention")
    assert attributes(raised, "attention")["causal"] is True
    assert found.optional("positions") is raised.function().inputs[3]


def test_one_position_per_row_while_decoding():
    def hide(x: Any, positions: Any) -> Any:
        return jnp.where(jnp.arange(S) <= positions[:, None, None, None], x, LEAST)

    raised = after(hide, struct("i32", B), given={"a": [2, 5]}, t=1)
    assert node(raised, "attention").keys == ("positions",)
    assert node(raised, "attention").optional("positions").type.shape == (B, 1)


def test_one_position_for_all_rows():
    def hide(x: Any, start: Any) -> Any:
        rows = start + jnp.arange(3)
        return jnp.where(jnp.arange(S)[None] <= rows[:, None], x, LEAST)

    raised = after(hide, struct("i32"), given={"a": 2}, t=3)
    assert node(raised, "attention").keys == ("positions",)
    assert attributes(raised, "attention")["causal"] is True


def test_a_causal_mask_that_is_cut_at_a_position():
    def hide(x: Any, start: Any) -> Any:
        whole = jnp.tril(jnp.ones((16, 16), bool))
        cut = jax.lax.dynamic_slice(whole, (start, 0), (3, S))
        return jnp.where(cut, x, LEAST)

    raised = after(hide, struct("i32"), given={"a": 2}, t=3)
    assert node(raised, "attention").keys == ("positions",)


@pytest.mark.parametrize("fill", [-np.inf, LEAST])
def test_lengths(fill):
    def hide(x: Any, lengths: Any) -> Any:
        return jnp.where(jnp.arange(S) < lengths[:, None, None, None], x, fill)

    raised = after(hide, struct("i32", B), given={"a": [1, 4]})
    found = node(raised, "attention")
    assert attributes(raised, "attention")["causal"] is False
    assert found.optional("lengths") is raised.function().inputs[3]


def test_causal_and_lengths_together():
    def hide(x: Any, lengths: Any) -> Any:
        seen = jnp.tril(jnp.ones((T, S), bool)) & (jnp.arange(S) < lengths[:, None, None, None])
        return jnp.where(seen, x, LEAST)

    raised = after(hide, struct("i32", B), given={"a": [2, 6]})
    assert attributes(raised, "attention")["causal"] is True
    assert node(raised, "attention").keys == ("lengths",)


# --- windows --------------------------------------------------------------------------------------

WINDOWS = {
    "below_diagonal": (
        lambda: jnp.tril(jnp.ones((T, S), bool)) & ~jnp.tril(jnp.ones((T, S), bool), -3),
        3,
    ),
    "distance": (lambda: (ROWS - COLUMNS >= 0) & (ROWS - COLUMNS < 2), None),
    "compared": (
        lambda: (
            (jnp.arange(S) <= jnp.arange(T)[:, None]) & (jnp.arange(S) > jnp.arange(T)[:, None] - 4)
        ),
        4,
    ),
    "both_sides": (
        lambda: (
            (jnp.arange(T)[:, None] - jnp.arange(S) <= 1)
            & (jnp.arange(S) - jnp.arange(T)[:, None] <= 1)
        ),
        3,
    ),
    "only_below": (lambda: jnp.arange(S) > jnp.arange(T)[:, None] - 2, 2),
}


@pytest.mark.parametrize("name", [n for n, (_, w) in WINDOWS.items() if w is not None])
@pytest.mark.parametrize("fill", [-np.inf, LEAST])
def test_windows(name, fill):
    seen, width = WINDOWS[name]
    raised = after(lambda x: jnp.where(seen(), x, fill))
    found = attributes(raised, "attention")
    assert found["window"] == width
    assert found["causal"] is (name != "only_below")
    assert "mask" not in node(raised, "attention").keys
    assert "bias" not in node(raised, "attention").keys


def test_a_window_around_positions_that_are_data():
    def hide(x: Any, positions: Any) -> Any:
        distance = positions[:, None, :, None] - jnp.arange(S)
        return jnp.where((distance >= 0) & (distance < 3), x, LEAST)

    raised = after(hide, struct("i32", B, T), given={"a": [[0, 1, 2, 3, 4, 5]] * 2})
    assert attributes(raised, "attention")["window"] == 3
    assert node(raised, "attention").keys == ("positions",)


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"is_causal": True}, ()),
        ({"is_causal": True, "local_window_size": (2, 0)}, ()),
        ({"local_window_size": (1, 1)}, ("positions",)),
    ],
)
def test_options_of_jax_nn(options, keys):
    def f(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, **options)

    raised = check(plain(f, *[struct("bf16", B, T, H, D)] * 3))
    assert {op for op in ops(raised) if not op.startswith("lax.")} == {"attention"}
    assert node(raised, "attention").keys == keys
    sizes = options.get("local_window_size")
    assert attributes(raised, "attention")["window"] == (sizes and sum(sizes) + 1)


def test_lengths_of_jax_nn():
    def f(q: Any, k: Any, v: Any, a: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=a)

    args = [struct("bf16", B, T, H, D)] * 3
    raised = check(plain(f, *args, struct("i32", B)), {"a": [2, 5]})
    assert node(raised, "attention").keys == ("lengths",)


# --- masks that are data --------------------------------------------------------------------------

LIBRARIES = {
    "jax": lambda q, k, v, a: jax.nn.dot_product_attention(q, k, v, mask=a),
    "nnx": lambda q, k, v, a: nnx.dot_product_attention(q, k, v, mask=a),
    "linen": lambda q, k, v, a: flax.linen.dot_product_attention(q, k, v, mask=a),
    "where": lambda q, k, v, a: attend(lambda x: jnp.where(a, x, jnp.finfo(x.dtype).min))[0](
        q, k, v
    ),
}


def row_without_keys() -> np.ndarray[Any, Any]:
    mask = np.random.default_rng(0).random((B, 1, T, S)) > 0.4
    mask[:, :, 2] = False
    mask[..., 0, 0] = True
    return mask


@pytest.mark.parametrize("f", LIBRARIES.values(), ids=LIBRARIES.keys())
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_given_mask_stays_right_for_queries_that_see_no_key(f, dtype):
    """There, a large negative number gives the mean of all values, and the op would give zeros."""
    args = [struct(dtype, B, T, H, D)] * 3
    raised = check(plain(f, *args, struct("bool", B, 1, T, S)), {"a": row_without_keys()})
    assert named(raised) == {"attention": 1}
    assert node(raised, "attention").keys == ("bias",)


def test_a_mask_hidden_with_infinity_is_an_operand():
    mask = row_without_keys()
    mask[:, :, 2, 1] = True
    raised = after(
        lambda x, a: jnp.where(a, x, -jnp.inf), struct("bool", B, 1, T, S), given={"a": mask}
    )
    found = node(raised, "attention")
    assert found.optional("mask") is raised.function().inputs[3]


def test_a_query_that_sees_no_key_gives_zeros_instead_of_nan():
    f, args = attend(lambda x, a: jnp.where(a, x, -jnp.inf))
    before = plain(_with_names(f, 1), *args, struct("bool", B, 1, T, S))
    inputs = inputs_for(before.function(), {"a": row_without_keys()})
    (old,), (new,) = run(before.function(), inputs), run(recognise(before).function(), inputs)
    assert np.isnan(old[:, 2]).all()
    assert (new[:, 2] == 0).all()
    seen = row_without_keys().any(-1)[:, 0]
    np.testing.assert_allclose(new[seen], old[seen], rtol=1e-5, atol=1e-6)


def test_causal_and_a_given_mask_with_infinity_are_told_apart():
    def hide(x: Any, a: Any) -> Any:
        seen = jnp.tril(jnp.ones((T, S), bool)) & a[:, None, None, :]
        return jnp.where(seen, x, -jnp.inf)

    padding = np.ones((B, S), bool)
    padding[0, 4:] = False
    raised = after(hide, struct("bool", B, S), given={"a": padding})
    assert attributes(raised, "attention")["causal"] is True
    assert node(raised, "attention").keys == ("mask",)
    assert node(raised, "attention").optional("mask").type.shape == (B, 1, 1, S)


@pytest.mark.parametrize("left", [True, False])
def test_causal_and_padding_with_a_finite_number_become_a_bias(left):
    """Rows of padding on the left see no key at all."""

    def hide(x: Any, a: Any) -> Any:
        seen = jnp.tril(jnp.ones((T, S), bool))[None, None] & (a[:, None, None, :] > 0)
        return jnp.where(seen, x, LEAST)

    padding = np.ones((B, S), np.int32)
    padding[0, : 3 if left else None] = 0 if left else 1
    raised = after(hide, struct("i32", B, S), given={"a": padding})
    assert node(raised, "attention").keys == ("bias",)


def test_an_additive_mask_of_integers_is_a_bias():
    def hide(x: Any, a: Any) -> Any:
        return x + (1.0 - a[:, None, None, :].astype(jnp.float32)) * LEAST

    raised = after(hide, struct("i32", B, S), given={"a": [[1, 1, 1, 0, 0, 0], [0] * 6]})
    assert node(raised, "attention").keys == ("bias",)


def test_a_causal_mask_beside_an_additive_one_that_is_data():
    """A key may be hidden by either: one bias holds both."""

    def hide(x: Any, a: Any) -> Any:
        x = x + (1.0 - a[:, None, None, :]) * LEAST
        return jnp.where(jnp.tril(jnp.ones((T, S), bool)), x, LEAST)

    raised = after(hide, struct("f32", B, S), given={"a": [[0, 0, 1, 1, 1, 1], [1] * 6]})
    assert attributes(raised, "attention")["causal"] is False
    assert node(raised, "attention").keys == ("bias",)


def test_segments_hidden_with_infinity_are_a_mask():
    def hide(x: Any, a: Any) -> Any:
        return jnp.where(a[:, None, :, None] == a[:, None, None, :], x, -jnp.inf)

    raised = after(hide, struct("i32", B, S), given={"a": [[0, 0, 1, 1, 2, 2]] * 2})
    assert node(raised, "attention").keys == ("mask",)


# --- near misses ----------------------------------------------------------------------------------


def test_a_strictly_causal_mask_is_no_causal_mask():
    """The first query sees no key; with a finite number it gives the mean of all values."""
    raised = after(lambda x: jnp.where(jnp.tril(jnp.ones((T, S), bool), -1), x, LEAST))
    assert attributes(raised, "attention")["causal"] is False
    assert node(raised, "attention").keys == ("bias",)


def test_a_mask_that_certainly_gives_nan_is_left_alone():
    f, args = attend(lambda x: jnp.where(jnp.tril(jnp.ones((T, S), bool), -1), x, -jnp.inf))
    assert "attention" not in named(recognise(plain(f, *args)))


def test_a_mask_that_lets_one_future_key_be_seen_moves_the_positions():
    raised = after(lambda x: jnp.where(jnp.tril(jnp.ones((T, S), bool), 1), x, LEAST))
    assert attributes(raised, "attention")["causal"] is True
    assert node(raised, "attention").keys == ("positions",)


def test_an_anti_causal_mask_is_not_causal():
    raised = after(lambda x: jnp.where(jnp.triu(jnp.ones((T, S), bool)), x, -jnp.inf))
    found = attributes(raised, "attention")
    assert (found["causal"], found["window"]) == (False, 1)


def test_a_mask_by_head_is_an_operand():
    def hide(x: Any) -> Any:
        seen = (
            jnp.arange(S)[None, None, :]
            <= jnp.arange(T)[None, :, None] + jnp.arange(H)[:, None, None]
        )
        return jnp.where(seen, x, -jnp.inf)

    raised = after(hide)
    assert node(raised, "attention").keys == ("mask",)


def test_every_second_key_is_no_bound():
    raised = after(lambda x: jnp.where(2 * jnp.arange(S) <= jnp.arange(T)[:, None], x, -jnp.inf))
    assert node(raised, "attention").keys == ("mask",)


# --- any combination ------------------------------------------------------------------------------


@settings(max_examples=8)
@given(
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 3]),
    lengths=st.booleans(),
    mask=st.booleans(),
    fill=st.sampled_from([-np.inf, LEAST, -1e9]),
    additive=st.booleans(),
    data=st.integers(0, 5),
)
def test_any_combination_of_bounds(causal, window, lengths, mask, fill, additive, data):
    def hide(x: Any, a: Any, b: Any) -> Any:
        key, query = jnp.arange(S), jnp.arange(T)[:, None]
        seen = jnp.ones((1, 1, T, S), bool)
        seen = seen & (key <= query) if causal else seen
        seen = seen & (key > query - window) if window else seen
        seen = seen & (key < a[:, None, None, None]) if lengths else seen
        seen = seen & b[:, None] if mask else seen
        return x + jnp.where(seen, 0.0, fill) if additive else jnp.where(seen, x, fill)

    lengths_given = np.array([S, S - data % 3])
    shown = np.random.default_rng(data).random((B, T, S)) > 0.3
    shown |= np.eye(T, S, dtype=bool) if fill == -np.inf else False
    if fill == -np.inf and lengths and window:
        lengths_given[:] = S  # else a query sees no key, and the plain code gives NaN
    raised = after(
        hide, struct("i32", B), struct("bool", B, T, S), given={"a": lengths_given, "b": shown}
    )
    assert named(raised) == {"attention": 1}
