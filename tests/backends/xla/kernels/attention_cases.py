"""Operands of the attention kernels, and attention in float64 numpy, one query at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tests.backends.xla.kernels.base import Operands, wide


class Case(NamedTuple):
    """Sizes and keywords of one call."""

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    width: int
    layout: str = "bshd"
    window: int | None = None
    lengths: bool = False

    @property
    def scale(self) -> float:
        return float(self.width) ** -0.5

    @property
    def keywords(self) -> dict[str, Any]:
        return {"layout": self.layout, "window": self.window, "scale": self.scale}

    def operands(self, dtype: Any) -> list[Any]:
        """q, k, v, positions, lengths or None. With lengths, the last sequence is empty."""
        made = Operands(self.keys + self.heads)
        kept = (self.batch, self.keys, self.key_heads, self.width)
        if self.layout == "bhsd":
            kept = (self.batch, self.key_heads, self.keys, self.width)
        q = made.normal((self.batch, self.queries, self.heads, self.width), dtype, 2.0)
        k, v = made.normal(kept, dtype), made.normal(kept, dtype)
        begin = made.integers((self.batch, 1), 0, self.keys - self.queries + 1)
        begin = begin.at[0].set(self.keys - self.queries)
        positions = begin + jnp.arange(self.queries, dtype=jnp.int32)
        if not self.lengths:
            return [q, k, v, positions, None]
        lengths = made.integers((self.batch,), 1, self.keys + 1).at[-1].set(0)
        return [q, k, v, positions, lengths]


def attend(case: Case, arrays: list[Any], causal: bool = True) -> np.ndarray[Any, Any]:
    """The definition, in float64: one softmax over the visible keys of each query and head."""
    q, k, v = wide(*arrays[:3])
    positions, lengths = arrays[3], arrays[4]
    if case.layout == "bhsd":
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    out = np.zeros_like(q)
    for b, t, h in np.ndindex(q.shape[:3]):
        stop = case.keys if lengths is None else int(lengths[b])
        stop = min(stop, int(positions[b, t]) + 1) if causal else stop
        first = 0 if case.window is None else max(0, int(positions[b, t]) - case.window + 1)
        if first < stop:
            head = h // (case.heads // case.key_heads)
            scores = k[b, first:stop, head] @ q[b, t, h] * case.scale
            weights = np.exp(scores - scores.max())
            out[b, t, h] = weights @ v[b, first:stop, head] / weights.sum()
    return out
