"""Plain rotary embeddings become the named op."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.rules.raising import attributes, check, named, node, ops, plain, struct

B, T, H, D = 2, 5, 3, 8
DTYPES = ("f32", "bf16")
POSITIONS = np.array([[0, 1, 2, 3, 4], [7, 8, 3, 100, 11]])


def frequencies(d: int = D) -> Any:
    return 1.0 / (10000.0 ** (jnp.arange(0, d, 2, dtype=jnp.float32) / d))


def angles(positions: Any, d: int = D) -> Any:
    return positions[..., None].astype(jnp.float32) * frequencies(d)


def rotate_half(x: Any) -> Any:
    half = x.shape[-1] // 2
    return jnp.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def transformers(x: Any, positions: Any) -> Any:
    a = angles(positions)
    both = jnp.concatenate([a, a], axis=-1)[:, :, None]
    cos, sin = jnp.cos(both).astype(x.dtype), jnp.sin(both).astype(x.dtype)
    return x * cos + rotate_half(x) * sin


def doubled_after(x: Any, positions: Any) -> Any:
    cos, sin = jnp.cos(angles(positions))[:, :, None], jnp.sin(angles(positions))[:, :, None]
    cos, sin = (jnp.concatenate([y, y], axis=-1).astype(x.dtype) for y in (cos, sin))
    return x * cos + rotate_half(x) * sin


def tiled(x: Any, positions: Any) -> Any:
    cos = jnp.tile(jnp.cos(angles(positions)), (1, 1, 2))[:, :, None].astype(x.dtype)
    sin = jnp.tile(jnp.sin(angles(positions)), (1, 1, 2))[:, :, None].astype(x.dtype)
    return rotate_half(x) * sin + cos * x


def split(x: Any, positions: Any) -> Any:
    a = jnp.einsum("bt,f->btf", positions, frequencies())[:, :, None]
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(a).astype(x.dtype), jnp.sin(a).astype(x.dtype)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def sliced_in_float32(x: Any, positions: Any) -> Any:
    h, a = x.astype(jnp.float32), angles(positions)[:, :, None]
    first, second = h[..., : D // 2], h[..., D // 2 :]
    return jnp.concatenate(
        [
            first * jnp.cos(a) - second * jnp.sin(a),
            first * jnp.sin(a) + second * jnp.cos(a),
        ],
        axis=-1,
    ).astype(x.dtype)


def by_timescale(x: Any, positions: Any) -> Any:
    timescale = 10000.0 ** (2 * jnp.arange(D // 2) / D)
    a = (positions[:, :, None] / timescale)[:, :, None, :]
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(a).astype(x.dtype), jnp.sin(a).astype(x.dtype)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def by_matmul(x: Any, positions: Any) -> Any:
    expanded = jnp.broadcast_to(frequencies()[None, :, None], (B, D // 2, 1))
    a = jnp.swapaxes(expanded @ positions[:, None, :].astype(jnp.float32), 1, 2)
    both = jnp.concatenate([a, a], axis=-1)[:, :, None]
    return x * jnp.cos(both).astype(x.dtype) + rotate_half(x) * jnp.sin(both).astype(x.dtype)


def from_a_table(x: Any, positions: Any) -> Any:
    table = jnp.outer(jnp.arange(128), frequencies())
    cos, sin = (f(table)[positions][:, :, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def heads_first(x: Any, positions: Any) -> Any:
    h = x.transpose(0, 2, 1, 3)
    a = angles(positions)
    both = jnp.concatenate([a, a], axis=-1)[:, None]
    h = h * jnp.cos(both).astype(x.dtype) + rotate_half(h) * jnp.sin(both).astype(x.dtype)
    return h.transpose(0, 2, 1, 3)


HALVES = [
    transformers,
    doubled_after,
    tiled,
    split,
    sliced_in_float32,
    by_timescale,
    by_matmul,
    from_a_table,
    heads_first,
]


def strided(x: Any, positions: Any) -> Any:
    a = angles(positions)[:, :, None]
    cos, sin = jnp.cos(a).astype(x.dtype), jnp.sin(a).astype(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(x.shape)


def pairs(x: Any, positions: Any) -> Any:
    a = angles(positions)[:, :, None]
    cos, sin = jnp.cos(a).astype(x.dtype), jnp.sin(a).astype(x.dtype)
    r = x.reshape(*x.shape[:-1], -1, 2)
    even, odd = r[..., 0], r[..., 1]
    joined = jnp.concatenate(
        [(even * cos - odd * sin)[..., None], (odd * cos + even * sin)[..., None]], -1
    )
    return joined.reshape(x.shape)


def gpt_j(x: Any, positions: Any) -> Any:
    cos = jnp.repeat(jnp.cos(angles(positions)), 2, axis=-1)[:, :, None].astype(x.dtype)
    sin = jnp.repeat(jnp.sin(angles(positions)), 2, axis=-1)[:, :, None].astype(x.dtype)
    turned = jnp.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    return x * cos + turned * sin


def complex_product(x: Any, positions: Any) -> Any:
    h = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    z = jax.lax.complex(h[..., 0], h[..., 1]) * jnp.exp(1j * angles(positions)[:, :, None])
    return jnp.stack([z.real, z.imag], axis=-1).reshape(x.shape).astype(x.dtype)


def complex_polar(x: Any, positions: Any) -> Any:
    a = angles(positions)[:, :, None]
    h = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    z = jax.lax.complex(h[..., 0], h[..., 1]) * jax.lax.complex(jnp.cos(a), jnp.sin(a))
    return jnp.stack([jnp.real(z), jnp.imag(z)], axis=-1).reshape(x.shape).astype(x.dtype)


INTERLEAVED = [strided, pairs, gpt_j, complex_product, complex_polar]
LEFT = {"lax.mul", "lax.div", "lax.pow", "lax.add", "lax.slice"}  # the frequencies


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [*HALVES, *INTERLEAVED])
def test_spellings_of_rope(f, dtype):
    before = plain(f, struct(dtype, B, T, H, D), struct("i32", B, T))
    after = check(before, {"positions": POSITIONS})
    assert named(after) == {"rope": 1}
    assert set(ops(after)) - LEFT == {"rope"}
    assert attributes(after, "rope") == {"interleaved": f in INTERLEAVED, "scale": 1.0}
    assert node(after, "rope").operands[:2] == after.function().inputs


def test_queries_and_keys_share_positions_and_frequencies():
    def f(q: Any, k: Any, positions: Any) -> Any:
        return transformers(q, positions), transformers(k, positions)

    args = struct("bf16", B, T, H, D), struct("bf16", B, T, 1, D), struct("i32", B, T)
    after = check(plain(f, *args), {"positions": POSITIONS})
    q, k = (n for n in after.function().nodes if n.op == "rope")
    assert q.operands[1:] == k.operands[1:]


@pytest.mark.parametrize("rotary", [4, 6])
@pytest.mark.parametrize("f", [transformers, split, strided])
def test_only_the_first_channels_are_turned(f, rotary):
    def partial(x: Any, positions: Any) -> Any:
        turned = {
            transformers: lambda x: (
                x * jnp.cos(doubled(positions)) + rotate_half(x) * jnp.sin(doubled(positions))
            ),
            split: lambda x: by_halves(x, positions),
            strided: lambda x: by_pairs(x, positions),
        }[f](x[..., :rotary])
        return jnp.concatenate([turned, x[..., rotary:]], axis=-1)

    def doubled(positions: Any) -> Any:
        a = angles(positions, rotary)
        return jnp.concatenate([a, a], -1)[:, :, None]

    def by_halves(x: Any, positions: Any) -> Any:
        a = angles(positions, rotary)[:, :, None]
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [first * jnp.cos(a) - second * jnp.sin(a), second * jnp.cos(a) + first * jnp.sin(a)], -1
        )

    def by_pairs(x: Any, positions: Any) -> Any:
        a = angles(positions, rotary)[:, :, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        both = [even * jnp.cos(a) - odd * jnp.sin(a), odd * jnp.cos(a) + even * jnp.sin(a)]
        return jnp.stack(both, -1).reshape(x.shape)

    before = plain(partial, struct("f32", B, T, H, D), struct("i32", B, T))
    after = check(before, {"positions": POSITIONS})
    assert named(after) == {"rope": 1}
    assert node(after, "rope").operands[0] is after.function().inputs[0]
    assert node(after, "rope").operands[2].type.shape == (rotary // 2,)


def test_a_scaled_cos_and_sin_give_the_scale():
    def yarn(x: Any, positions: Any) -> Any:
        a = angles(positions)[:, :, None]
        cos, sin = jnp.cos(a) * 1.25, jnp.sin(a) * 1.25
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    before = plain(yarn, struct("f32", B, T, H, D), struct("i32", B, T))
    after = check(before, {"positions": POSITIONS})
    assert attributes(after, "rope")["scale"] == 1.25


def test_scaled_positions_scale_the_frequencies():
    def linear_scaling(x: Any, positions: Any) -> Any:
        a = (positions.astype(jnp.float32) / 4.0)[:, :, None, None] * frequencies()
        first, second = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(a), jnp.sin(a)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    before = plain(linear_scaling, struct("f32", B, T, H, D), struct("i32", B, T))
    after = check(before, {"positions": POSITIONS})
    assert named(after) == {"rope": 1}


@pytest.mark.parametrize("shape", [(1, 1, H, D), (B, 1, H, D), (1, T, H, D), (B, T, H, D)])
@pytest.mark.parametrize("kind", ["counted", "offset", "rows", "both"])
def test_positions_of_every_kind(shape, kind):
    b, t = shape[:2]

    def f(x: Any, start: Any) -> Any:
        positions = {
            "counted": jnp.arange(t)[None],
            "offset": start[:1, None] + jnp.arange(t)[None],
            "rows": start[:, None],
            "both": start[:, None] + jnp.arange(t)[None],
        }[kind]
        a = (positions[:, :, None].astype(jnp.float32) * frequencies())[:, :, None]
        first, second = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(a), jnp.sin(a)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    if (kind, t) in (("counted", 1), ("rows", T)):
        return  # all angles are zero; one position for all queries of a row
    after = check(plain(f, struct("f32", *shape), struct("i32", b)), {"start": np.arange(b) + 3})
    assert named(after) == {"rope": 1}
    assert node(after, "rope").operands[0].type.shape == shape


def test_without_heads_and_without_a_batch():
    def f(x: Any, positions: Any) -> Any:
        a = angles(positions)
        first, second = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(a), jnp.sin(a)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    after = check(plain(f, struct("f32", B, T, D), struct("i32", B, T)), {"positions": POSITIONS})
    assert node(after, "rope").operands[0].type.shape == (B, T, 1, D)
    after = check(plain(f, struct("f32", T, D), struct("i32", T)), {"positions": POSITIONS[1]})
    assert named(after) == {"rope": 1}


def test_frequencies_that_are_parameters():
    def f(w: Any, x: Any, positions: Any) -> Any:
        a = (positions[:, :, None] * w)[:, :, None]
        first, second = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(a), jnp.sin(a)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    args = struct("f32", D // 2), struct("f32", B, T, H, D), struct("i32", B, T)
    after = check(plain(f, *args, parameters=("w",)), {"positions": POSITIONS})
    assert [n.op for n in after.function().nodes] == ["rope"]


# --- what must not be raised ----------------------------------------------------------------------


def turned(x: Any, cos: Any, sin: Any, signs: tuple[int, int, int, int] = (1, -1, 1, 1)) -> Any:
    first, second = jnp.split(x, 2, axis=-1)
    a, b, c, d = signs
    return jnp.concatenate(
        [a * first * cos + b * second * sin, c * second * cos + d * first * sin], axis=-1
    )


def cos_sin(positions: Any) -> tuple[Any, Any]:
    a = angles(positions)[:, :, None]
    return jnp.cos(a), jnp.sin(a)


NEAR_MISSES = {
    "both_plus": lambda x, p: turned(x, *cos_sin(p), (1, 1, 1, 1)),
    "backwards": lambda x, p: turned(x, *cos_sin(p), (1, 1, 1, -1)),
    "cos_twice": lambda x, p: turned(x, cos_sin(p)[0], cos_sin(p)[0]),
    "sin_for_cos": lambda x, p: turned(x, *cos_sin(p)[::-1]),
    "two_angles": lambda x, p: turned(x, cos_sin(p)[0], cos_sin(p + 1)[1]),
    "two_scales": lambda x, p: turned(x, cos_sin(p)[0] * 2, cos_sin(p)[1]),
    "halves_swapped": lambda x, p: turned(jnp.roll(x, D // 2, axis=-1), *cos_sin(p))[..., ::-1],
    "squared_angle": lambda x, p: turned(
        x, *(f(angles(p)[:, :, None] ** 2) for f in (jnp.cos, jnp.sin))
    ),
    "angle_by_head": lambda x, p: turned(
        x,
        *(f(angles(p)[:, :, None] * jnp.arange(1.0, H + 1)[:, None]) for f in (jnp.cos, jnp.sin)),
    ),
    "float_positions": lambda x, p: turned(
        x, *(f((p + 0.5)[:, :, None, None] * frequencies()) for f in (jnp.cos, jnp.sin))
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name):
    before = plain(
        lambda x, positions: NEAR_MISSES[name](x, positions),
        struct("f32", B, T, H, D),
        struct("i32", B, T),
    )
    after = check(before, {"positions": POSITIONS})
    assert "rope" not in named(after) or name == "halves_swapped"


def test_two_different_operands_are_no_rotation():
    def f(x: Any, y: Any, positions: Any) -> Any:
        cos, sin = cos_sin(positions)
        first, second = x[..., : D // 2], y[..., D // 2 :]
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    args = struct("f32", B, T, H, D), struct("f32", B, T, H, D), struct("i32", B, T)
    assert named(check(plain(f, *args), {"positions": POSITIONS})) == {}


def test_tables_that_are_inputs_stay():
    def f(x: Any, cos: Any, sin: Any) -> Any:
        return turned(x, cos[None, :, None], sin[None, :, None])

    args = struct("f32", B, T, H, D), struct("f32", T, D // 2), struct("f32", T, D // 2)
    assert named(check(plain(f, *args))) == {}


def test_angles_in_bfloat16_stay():
    """Their positions are rounded; the op's would not be."""

    def f(x: Any, positions: Any) -> Any:
        a = positions[:, :, None, None].astype(x.dtype) * frequencies().astype(x.dtype)
        return turned(x, jnp.cos(a), jnp.sin(a))

    before = plain(f, struct("bf16", B, T, H, D), struct("i32", B, T))
    assert named(check(before, {"positions": POSITIONS})) == {}


def test_float64_code_stays():
    """The op computes cos and sin in float32."""
    with jax.enable_x64(True):

        def f(x: Any, positions: Any) -> Any:
            a = positions[:, :, None, None] * frequencies().astype(jnp.float64)
            return turned(x, jnp.cos(a), jnp.sin(a))

        before = plain(f, struct("f64", B, T, H, D), struct("i32", B, T))
        assert named(check(before, {"positions": POSITIONS})) == {}


@settings(max_examples=8)
@given(
    order=st.sampled_from(["bth", "bht", "tbh", "bt", "thb"]),
    interleaved=st.booleans(),
    doubled=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    sizes=st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 4]), st.sampled_from([1, 3])),
)
def test_any_order_of_dimensions(order, interleaved, doubled, dtype, sizes):
    size = dict(zip("bth", sizes, strict=True))
    shape = [size[a] for a in order]

    def f(x: Any, positions: Any) -> Any:
        a = positions[..., None].astype(jnp.float32) * frequencies()
        names = "".join(c for c in order if c in "bt")
        a = jnp.einsum(f"btf->{names}f", a)
        a = jnp.expand_dims(a, order.index("h")) if "h" in order else a
        cos, sin = jnp.cos(a).astype(x.dtype), jnp.sin(a).astype(x.dtype)
        one, two = (x[..., ::2], x[..., 1::2]) if interleaved else jnp.split(x, 2, -1)
        if doubled:
            join = (
                (lambda *y: jnp.stack(y, -1).reshape(x.shape))
                if interleaved
                else (lambda *y: jnp.concatenate(y, -1))
            )
            wide = jnp.repeat if interleaved else lambda y, n, axis: jnp.concatenate([y] * n, axis)
            return x * wide(cos, 2, axis=-1) + join(-two, one) * wide(sin, 2, axis=-1)
        first, second = one * cos - two * sin, two * cos + one * sin
        if interleaved:
            return jnp.stack([first, second], -1).reshape(x.shape)
        return jnp.concatenate([first, second], -1)

    given_positions = POSITIONS[: size["b"], 1 : size["t"] + 1] + 1
    before = plain(f, struct(dtype, *shape, D), struct("i32", size["b"], size["t"]))
    after = check(before, {"positions": given_positions})
    assert named(after) == {"rope": 1}
