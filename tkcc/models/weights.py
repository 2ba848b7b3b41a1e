"""A layer's parameters: their shapes, and the checkpoint tensors that they are read from.

Checkpoints store one matrix per layer as [out, in]; models store [layers, in, out].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from tkcc.models.errors import ModelError

Read = Callable[[str], np.ndarray]  # a checkpoint's tensor by name, any float dtype
_INITIAL_DEVIATION = 0.02  # of random weights; only untrained models use it


def _same(values: np.ndarray) -> np.ndarray:
    return values


@dataclass(frozen=True)
class Weight:
    """One parameter of one layer: `shape` in the model, `stored` in the checkpoint.

    `source` is the tensor's name after `model.layers.N.`; `take` turns the stored tensor into the
    parameter. With `experts`, there is one tensor for each ({e} in `source`), and `shape` has them
    as its first axis. `wide` keeps the parameter in float32 whatever the model's dtype.
    """

    shape: tuple[int, ...]
    source: str
    stored: tuple[int, ...]
    take: Callable[[np.ndarray], np.ndarray] = _same
    experts: int | None = None
    wide: bool = False
    ones: bool = False  # of an untrained model

    def sources(self, layer: int) -> Iterator[str]:
        """The names of the tensors of that layer."""
        name = f"model.layers.{layer}.{self.source}"
        if self.experts is None:
            yield name
        else:
            yield from (name.format(e=e) for e in range(self.experts))

    def read(self, read: Read, layer: int, dtype: np.dtype) -> np.ndarray:
        """The parameter of that layer. Raises ModelError for a tensor of another shape."""
        parts = (self.take(read_tensor(read, name, self.stored)) for name in self.sources(layer))
        if self.experts is None:
            return next(parts).astype(dtype)
        return np.stack([part.astype(dtype) for part in parts])

    def initial(self, key: jax.Array, layers: int, dtype: jax.typing.DTypeLike) -> jax.Array:
        """Untrained values, [layers, *shape]."""
        dtype, shape = jnp.float32 if self.wide else dtype, (layers, *self.shape)
        return jnp.ones(shape, dtype) if self.ones else random_normal(key, shape, dtype)


def random_normal(key: jax.Array, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.Array:
    """Small normal numbers, for untrained models."""
    return jax.random.normal(key, shape, dtype) * jnp.asarray(_INITIAL_DEVIATION, dtype)


def read_tensor(read: Read, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor whose shape is checked. Raises ModelError."""
    values = read(name)
    if values.shape != shape:
        raise ModelError(
            f"tensor {name!r} is {values.shape}, but the config asks for {shape}",
            where="checkpoint",
            remedy="use a checkpoint whose config.json belongs to its weights",
        )
    return values


def norm(width: int, source: str) -> Weight:
    """The scale of an RMS norm."""
    return Weight((width,), source, (width,), ones=True)


def vector(width: int, source: str, *, wide: bool = False) -> Weight:
    """A bias, or one number per head."""
    return Weight((width,), source, (width,), wide=wide)


def matrix(inner: int, outer: int, source: str, *, wide: bool = False) -> Weight:
    """A matrix [inner, outer], stored [outer, inner]."""
    return Weight((inner, outer), source, (outer, inner), np.transpose, wide=wide)


def expert_matrices(experts: int, inner: int, outer: int, source: str) -> Weight:
    """Matrices [experts, inner, outer], stored one by one as [outer, inner]."""
    return Weight((experts, inner, outer), source, (outer, inner), np.transpose, experts)


def part(
    shape: tuple[int, ...],
    source: str,
    stored: tuple[int, ...],
    take: Callable[[np.ndarray], np.ndarray],
) -> Weight:
    """A parameter that `take` makes from a tensor which holds more than it."""
    return Weight(shape, source, stored, take)
