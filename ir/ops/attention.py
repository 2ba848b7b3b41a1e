"""Attention over keys and values, caches included, and its split form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from tkcc.ir.factors import WHOLE, Factors
from tkcc.ir.graph import Function, Node
from tkcc.ir.op import REQUIRED, Attributes, Op, register, require
from tkcc.ir.types import TensorType

LAYOUTS = ("bshd", "bhsd")


def _require_layout(layout: str) -> None:
    require(layout in LAYOUTS, f"unknown layout {layout!r}", f"use one of {LAYOUTS}")


def cache_dims(type_: TensorType, layout: str) -> tuple[int, int, int, int]:
    """(batch, positions, heads, channels) of keys or values in that layout."""
    b, x, y, d = type_.shape
    return (b, x, y, d) if layout == "bshd" else (b, y, x, d)


@register
class UpdateCache(Op):
    """Write `new` [b, t, h, d] into `cache` at position `start` [b] of each row.

    cache is [b, s, h, d] (or [b, h, s, d]); a start outside 0 .. s - t is moved inside, so that
    all t fit. `new` is converted to the cache's dtype.
    """

    name = "update_cache"
    operands = ("cache", "new", "start")
    attributes: ClassVar[dict[str, Any]] = {"layout": "bshd"}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        cache, new, start = types
        _require_layout(attributes["layout"])
        require(
            cache.rank == 4 and new.rank == 4,
            f"cache {cache} and new {new} need rank 4",
            "split into heads",
        )
        b, s, h, d = cache_dims(cache, attributes["layout"])
        fits = (new.shape[0], new.shape[2], new.shape[3]) == (b, h, d) and new.shape[1] <= s
        require(fits, f"new is {new}, but the cache is {cache}", "new is [b, t, h, d] with t <= s")
        fits = start.shape == (b,) and start.dtype[0] == "i"
        require(fits, f"start is {start}, not i32[{b}]", "one position per row")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        cache, new, start = operands
        new = new.astype(cache.dtype)
        if attributes["layout"] == "bhsd":
            new = jnp.swapaxes(new, 1, 2)

        def write(row: Any, piece: Any, position: Any) -> Any:
            zero = jnp.zeros_like(position)
            at = (
                (position, zero, zero) if attributes["layout"] == "bshd" else (zero, position, zero)
            )
            return lax.dynamic_update_slice(row, piece, at, allow_negative_indices=False)

        if cache.shape[0] == 1:
            return write(cache[0], new[0], start[0])[None]
        return jax.vmap(write)(cache, new, start)

    def factors(self, node: Node) -> Factors:
        s, t = f"s{WHOLE}", f"t{WHOLE}"
        cache = ("b", s, "h", "d") if node.attribute("layout") == "bshd" else ("b", "h", s, "d")
        return Factors((cache, ("b", t, "h", "d"), ("b",)), (cache,))

    def flops(self, node: Node) -> int:
        return 0


@register
class UpdateStackedCache(Op):
    """update_cache on row `index` (an i32 scalar, clamped) of stacked caches [l, b, s, h, d].

    Only the new piece is written, so a donated stack changes in place.
    """

    name = "update_stacked_cache"
    operands = ("cache", "new", "start", "index")
    attributes: ClassVar[dict[str, Any]] = {"layout": "bshd"}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        cache, new, start, index = types
        require(cache.rank == 5, f"cache is {cache}, not [l, b, s, h, d]", "stack the caches")
        UpdateCache().check([cache.with_shape(cache.shape[1:]), new, start], attributes)
        require(index == TensorType("i32", ()), f"index is {index}, not i32[]", "convert it")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        cache, new, start, index = operands
        new = new.astype(cache.dtype)
        if attributes["layout"] == "bhsd":
            new = jnp.swapaxes(new, 1, 2)
        # One scatter of whole pieces: it compiles in the same time for any batch.
        place = 2 if attributes["layout"] == "bshd" else 3
        room = cache.shape[place] - new.shape[place - 1]
        rows = jnp.arange(new.shape[0], dtype=start.dtype)
        layer = jnp.clip(index, 0, cache.shape[0] - 1).astype(start.dtype)
        where = jnp.stack([jnp.broadcast_to(layer, rows.shape), rows, jnp.clip(start, 0, room)], 1)
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=(1, 2, 3),
            inserted_window_dims=(0, 1),
            scatter_dims_to_operand_dims=(0, 1, place),
        )
        mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
        return lax.scatter(cache, where, new, numbers, unique_indices=True, mode=mode)

    def factors(self, node: Node) -> Factors:
        s, t, row = f"s{WHOLE}", f"t{WHOLE}", f"l{WHOLE}"
        layout = node.attribute("layout")
        cache = (row, "b", s, "h", "d") if layout == "bshd" else (row, "b", "h", s, "d")
        return Factors((cache, ("b", t, "h", "d"), ("b",), ()), (cache,))

    def flops(self, node: Node) -> int:
        return 0


class _AttentionBase(Op):
    """What attention and its split form share.

    q [b, t, h, d]; k [b, s, g, d], v [b, s, g, e] in `layout` order, h a multiple of g: query head
    i reads key head i // (h / g). Scores are q . k * scale in float32, then soft-capped
    (c * tanh(x / c)) if `softcap`, plus `bias`. Key j is visible to the query at position p if
    j <= p (`causal`), j > p - window (`window`), j < lengths[b] (if given) and mask (if given,
    bool). mask and bias broadcast to [b, h, t, s]. `positions` [b, t] defaults to the last t of the
    s keys.
    `sinks` [h] add one logit per head to the softmax's denominator. A query that sees no key
    gives zeros.
    """

    operands = ("q", "k", "v")
    optional: ClassVar[tuple[str, ...]] = ("positions", "lengths", "mask", "bias", "sinks")
    attributes: ClassVar[dict[str, Any]] = {
        "scale": REQUIRED,
        "causal": True,
        "window": None,
        "softcap": None,
        "layout": "bshd",
    }

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        q, k, v = types[:3]
        _require_layout(attributes["layout"])
        require(
            q.rank == k.rank == v.rank == 4, f"q {q}, k {k}, v {v} need rank 4", "split into heads"
        )
        b, s, g, d = cache_dims(k, attributes["layout"])
        require((q.shape[0], q.shape[3]) == (b, d), f"q is {q}, but k is {k}", "batch and d agree")
        require(q.shape[2] % g == 0, f"{q.shape[2]} query heads for {g} key heads", "a multiple")
        require(
            cache_dims(v, attributes["layout"])[:3] == (b, s, g),
            f"v is {v}, but k is {k}",
            "they agree",
        )

    def infer(
        self,
        types: Sequence[TensorType],
        keys: tuple[str, ...],
        attributes: Attributes,
        regions: tuple[Function, ...],
    ) -> tuple[TensorType, ...]:
        (b, t, h, _), s = types[0].shape, cache_dims(types[1], attributes["layout"])[1]
        wanted = {"positions": (b, t), "lengths": (b,), "sinks": (h,)}
        for key, given in zip(keys, types[3:], strict=True):
            if key in wanted:
                fits = given.shape == wanted[key]
                require(fits, f"{key} is {given}, not {list(wanted[key])}", "see the op's text")
            else:
                _require_broadcastable(key, given, (b, h, t, s))
        return super().infer(types, keys, attributes, regions)

    def scores(self, q: Any, k: Any, attributes: Any) -> Any:
        """Visible scores in float32 [b, g, h / g, t, s] (-inf where hidden)."""
        layout = attributes["layout"]
        k_axes = "bsgd" if layout == "bshd" else "bgsd"
        b, t, h, d = q.shape
        g, s = (k.shape[2], k.shape[1]) if layout == "bshd" else (k.shape[1], k.shape[2])
        split = q.reshape(b, t, g, h // g, d)
        x = _product(f"btgrd,{k_axes}->bgrts", split, k.astype(q.dtype))
        x = x * attributes["scale"]
        if attributes["softcap"] is not None:
            x = attributes["softcap"] * jnp.tanh(x / attributes["softcap"])
        if attributes.get("bias") is not None:
            x = x + _grouped(attributes["bias"].astype(x.dtype), (b, h, t, s), g)
        return jnp.where(self.visible((b, t, h, s), g, attributes), x, -jnp.inf)

    def visible(self, sizes: tuple[int, int, int, int], groups: int, attributes: Any) -> Any:
        b, t, h, s = sizes
        positions = attributes.get("positions")
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(s - t, s, dtype=jnp.int32), (b, t))
        at = positions[:, None, None, :, None]
        key = lax.broadcasted_iota(jnp.int32, (1, 1, 1, 1, s), 4)
        seen = jnp.ones((1, 1, 1, 1, s), dtype=bool)
        if attributes["causal"]:
            seen = seen & (key <= at)
        if attributes["window"] is not None:
            seen = seen & (key > at - attributes["window"])
        if attributes.get("lengths") is not None:
            seen = seen & (key < attributes["lengths"][:, None, None, None, None])
        if attributes.get("mask") is not None:
            seen = seen & _grouped(attributes["mask"], (b, h, t, s), groups)
        return seen

    def flops(self, node: Node) -> int:
        q, k, v = (value.type for value in node.operands[:3])
        keys = cache_dims(k, node.attribute("layout"))[1]
        rows = q.shape[0] * q.shape[1] * q.shape[2] * keys
        return rows * (2 * q.shape[3] + 2 * v.shape[-1] + 5)


def _require_broadcastable(key: str, given: TensorType, sizes: tuple[int, ...]) -> None:
    fits = given.rank <= 4 and all(
        size in (1, wanted) for size, wanted in zip(given.shape[::-1], sizes[::-1], strict=False)
    )
    require(fits, f"{key} is {given}, which does not broadcast to {list(sizes)}", "[b, h, t, s]")
    dtypes = given.dtype == "bool" if key == "mask" else given.is_float
    require(dtypes, f"{key} is {given}", "mask is bool, bias is floating")


def _grouped(x: Any, sizes: tuple[int, int, int, int], groups: int) -> Any:
    """Broadcast to [b, h, t, s] and split the heads: [b, g, h / g, t, s]."""
    b, h, t, s = sizes
    x = jnp.broadcast_to(x.reshape((1,) * (4 - x.ndim) + x.shape), sizes)
    return x.reshape(b, groups, h // groups, t, s)


def _weighted(weights: Any, v: Any, layout: str) -> Any:
    v_axes = "bsge" if layout == "bshd" else "bgse"
    return _product(f"bgrts,{v_axes}->btgre", weights, v)


def _product(subscripts: str, left: Any, right: Any) -> Any:
    """einsum accumulated in float32 (or wider).

    On the CPU the operands are widened first: the products are the same, and XLA's CPU compiler
    refuses some shapes of batched bfloat16 products ("Unsupported element type for DotThunk").
    """
    wide = jnp.promote_types(left.dtype, jnp.float32)
    if left.dtype == right.dtype == wide:
        return jnp.einsum(subscripts, left, right)

    def widened(a: Any, b: Any) -> Any:
        return jnp.einsum(subscripts, a.astype(wide), b.astype(wide))

    def native(a: Any, b: Any) -> Any:
        return jnp.einsum(subscripts, a, b, preferred_element_type=wide)

    return lax.platform_dependent(left, right, cpu=widened, default=native)


@register
class Attention(_AttentionBase):
    """softmax(visible scores) @ v -> [b, t, h, e] in q's dtype; softmax in float32."""

    name = "attention"
    __doc__ = f"{__doc__}\n\n{_AttentionBase.__doc__}"

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        q, k, v = operands
        x = self.scores(q, k, attributes)
        top = jnp.max(x, axis=-1, keepdims=True)
        sinks = attributes.get("sinks")
        sink = None
        if sinks is not None:
            sink = sinks.astype(x.dtype).reshape(1, x.shape[1], x.shape[2], 1, 1)
            top = jnp.maximum(top, sink)
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        weights = jnp.exp(x - top)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        if sink is not None:
            total = total + jnp.exp(sink - top)
        weights = weights / jnp.where(total == 0, 1.0, total)
        out = _weighted(weights.astype(v.dtype), v, attributes["layout"])
        return out.reshape(*q.shape[:3], v.shape[-1]).astype(q.dtype)

    def factors(self, node: Node) -> Factors:
        """Batch and key-head groups split freely; keys and channels do not.

        Query positions split too, unless a query's position follows from its place.
        """
        d, e, s = f"d{WHOLE}", f"e{WHOLE}", f"s{WHOLE}"
        placed = node.attribute("causal") or node.attribute("window") is not None
        t = f"t{WHOLE}" if placed and "positions" not in node.keys else "t"
        k = ("b", s, "h", d) if node.attribute("layout") == "bshd" else ("b", "h", s, d)
        known = {"positions": ("b", t), "lengths": ("b",), "sinks": ("h",)}
        split = len(node.operands) - len(node.keys)
        optional = [
            known.get(key) or _broadcast_factors(key, value.type, ("b", "h", t, s))
            for key, value in zip(node.keys, node.operands[split:], strict=True)
        ]
        return Factors((("b", t, "h", d), k, (*k[:3], e), *optional), (("b", t, "h", e),))


def _broadcast_factors(key: str, given: TensorType, names: tuple[str, ...]) -> tuple[str, ...]:
    """Indices of an operand that broadcasts to `names`; its dimensions of size 1 stay whole."""
    last = names[len(names) - given.rank :]
    return tuple(
        f"{key}{i}{WHOLE}" if size == 1 else name
        for i, (size, name) in enumerate(zip(given.shape, last, strict=True))
    )


@register
class AttentionPartial(_AttentionBase):
    """Attention over `splits` equal parts of the keys, not yet merged.

    Gives (weighted sums [n, b, t, h, e] f32, maxima [n, b, t, h] f32, denominators [n, b, t, h]
    f32), each part relative to its own maximum (-inf where a part sees no key).
    """

    name = "attention_partial"
    optional = ("positions", "lengths", "mask", "bias")
    attributes: ClassVar[dict[str, Any]] = {**_AttentionBase.attributes, "splits": REQUIRED}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        super().check(types, attributes)
        keys = cache_dims(types[1], attributes["layout"])[1]
        require(
            attributes["splits"] > 0 and keys % attributes["splits"] == 0,
            f"{keys} keys do not split into {attributes['splits']} equal parts",
            "choose a divisor",
        )

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        q, k, v = operands
        n, (b, t, h, _) = attributes["splits"], q.shape
        x = self.scores(q, k, attributes)
        parts = jnp.moveaxis(x.reshape(*x.shape[:-1], n, x.shape[-1] // n), -2, 0)
        top = jnp.max(parts, axis=-1)
        safe = jnp.where(jnp.isfinite(top), top, 0.0)
        weights = jnp.exp(parts - safe[..., None])
        axis = 1 if attributes["layout"] == "bshd" else 2
        pieces = jnp.stack(jnp.split(v, n, axis=axis))
        sums = jax.vmap(lambda w, p: _weighted(w.astype(v.dtype), p, attributes["layout"]))(
            weights, pieces
        )
        rows = lambda y: jnp.moveaxis(y, -1, 2).reshape(n, b, t, h)  # noqa: E731
        return sums.reshape(n, b, t, h, v.shape[-1]), rows(top), rows(jnp.sum(weights, axis=-1))


@register
class AttentionMerge(Op):
    """Join the parts of attention_partial: [n, b, t, h, e], [n, b, t, h] twice -> [b, t, h, e]."""

    name = "attention_merge"
    operands = ("sums", "maxima", "denominators")
    attributes: ClassVar[dict[str, Any]] = {"dtype": REQUIRED}

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        sums, maxima, denominators = types
        require(
            sums.rank == 5 and maxima == denominators and maxima.shape == sums.shape[:-1],
            f"parts do not fit: {sums}, {maxima}, {denominators}",
            "pass the three results of one attention_partial",
        )

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        sums, maxima, denominators = operands
        top = jnp.max(maxima, axis=0)
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        factor = jnp.exp(maxima - top)
        total = jnp.sum(factor * denominators, axis=0)
        out = jnp.sum(sums * factor[..., None], axis=0)
        return (out / jnp.where(total == 0, 1.0, total)[..., None]).astype(attributes["dtype"])

    def factors(self, node: Node) -> Factors:
        n, rows = f"n{WHOLE}", ("b", "t", "h")
        return Factors(((n, *rows, "e"), (n, *rows), (n, *rows)), ((*rows, "e"),))

    def flops(self, node: Node) -> int:
        return 3 * node.operands[0].type.size


@register
class LinearAttention(Op):
    """Gated linear attention: state_t = decay_t * state + k_t v_t^T; out_t = q_t state_t.

    q, k [b, t, h, d], v [b, t, h, e], decay [b, t, h] (in (0, 1]), state [b, h, d, e] f32 ->
    (out [b, t, h, e] in v's dtype, state f32). Computed in float32, one position after the other.
    """

    name = "linear_attention"
    operands = ("q", "k", "v", "decay", "state")

    def check(self, types: Sequence[TensorType], attributes: Attributes) -> None:
        q, k, v, decay, state = types
        require(q == k, f"q is {q}, but k is {k}", "use equal types")
        b, t, h, d = q.shape if q.rank == 4 else (0, 0, 0, 0)
        fits = q.rank == 4 and v.rank == 4 and v.shape[:3] == (b, t, h)
        require(fits, f"q is {q}, but v is {v}", "q is [b, t, h, d], v is [b, t, h, e]")
        wanted_decay = f"[{b}, {t}, {h}]"
        fits = decay.shape == (b, t, h)
        require(fits, f"decay is {decay}, not {wanted_decay}", "one decay per position and head")
        wanted = TensorType("f32", (b, h, d, v.shape[3]))
        require(state == wanted, f"state is {state}, not {wanted}", "keep the state in float32")

    def reference(self, *operands: Any, **attributes: Any) -> Any:
        q, k, v, decay, state = operands

        def step(s: Any, x: Any) -> Any:
            qt, kt, vt, gt = (item.astype(jnp.float32) for item in x)
            s = gt[..., None, None] * s + kt[..., :, None] * vt[..., None, :]
            return s, jnp.einsum("bhd,bhde->bhe", qt, s)

        state, out = lax.scan(step, state, tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, decay)))
        return jnp.moveaxis(out, 0, 1).astype(v.dtype), state

    def factors(self, node: Node) -> Factors:
        t, d, e = f"t{WHOLE}", f"d{WHOLE}", "e"
        q, v, state = ("b", t, "h", d), ("b", t, "h", e), ("b", "h", d, e)
        return Factors((q, q, v, ("b", t, "h"), state), (v, state))

    def flops(self, node: Node) -> int:
        return 5 * node.operands[0].type.size * node.operands[2].type.shape[3]
