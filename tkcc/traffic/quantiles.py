"""Distributions as tables of quantiles, and rank correlations between them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pydantic

# Dense in the upper tail, which decides means of bursty gaps and memory for long prompts.
GRID = np.array(
    [0.0, 0.001, 0.005, *(i / 100 for i in range(1, 100)), 0.995]
    + [0.998, 0.999, 0.9995, 0.9998, 0.9999, 1.0]
)
_NORMALS = np.linspace(-4.5, 4.5, 9001)
_SHARES = np.array([statistics.NormalDist().cdf(z) for z in _NORMALS])


class Quantiles(pydantic.BaseModel):
    """A distribution of numbers that are not negative, by its values at `GRID`, and its mean."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    mean: float = pydantic.Field(ge=0, allow_inf_nan=False)
    values: tuple[float, ...] = pydantic.Field(min_length=len(GRID), max_length=len(GRID))

    @pydantic.field_validator("values")
    @classmethod
    def _rising(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if not np.isfinite(values).all() or values[0] < 0 or (np.diff(values) < 0).any():
            raise ValueError("quantiles must be finite, not negative, and rise")
        return values

    @classmethod
    def of(cls, sample: Sequence[float] | np.ndarray) -> Quantiles:
        """Of a sample that is not empty."""
        array = np.asarray(sample, np.float64)
        assert array.size
        return cls(mean=_short(array.mean()), values=tuple(map(_short, np.quantile(array, GRID))))

    @classmethod
    def from_pairs(cls, mean: float, pairs: Sequence[tuple[float, float]]) -> Quantiles:
        """From (probability, value) pairs in rising order; beyond the last, the last value."""
        at, values = zip(*pairs, strict=True)
        return cls(mean=mean, values=tuple(map(float, np.interp(GRID, at, values))))

    def at(self, probability: float) -> float:
        """The value below which that share of the distribution lies."""
        return float(np.interp(probability, GRID, self.values))

    def draw(self, uniforms: np.ndarray) -> np.ndarray:
        """Values for uniform numbers in 0..1, linear between the quantiles."""
        return np.asarray(np.interp(uniforms, GRID, self.values))

    def counts(self, uniforms: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """Whole numbers of at least 1, times `scale`."""
        return np.maximum(1, np.rint(self.draw(uniforms) * scale)).astype(np.int64)

    def rank(self, value: float) -> float:
        """The share of the distribution below `value`; the middle of a step."""
        low = np.searchsorted(self.values, value, side="left")
        high = np.searchsorted(self.values, value, side="right")
        if high > low:
            return float(GRID[low] + GRID[high - 1]) / 2
        return float(np.interp(value, self.values, GRID))


def _short(value: Any) -> float:
    return float(f"{float(value):.6g}")


def probits(uniforms: np.ndarray) -> np.ndarray:
    """Standard normal quantiles, cut off at 4.5 standard deviations."""
    return np.asarray(np.interp(uniforms, _SHARES, _NORMALS))


def uniforms_of(normals: np.ndarray) -> np.ndarray:
    """The inverse of `probits`."""
    return np.asarray(np.interp(normals, _NORMALS, _SHARES))


def correlated(normals: np.ndarray, correlation: float, rng: np.random.Generator) -> np.ndarray:
    """Uniform numbers whose normal scores have `correlation` with `normals` (a Gaussian copula)."""
    noise = rng.standard_normal(normals.shape)
    return uniforms_of(correlation * normals + (1 - correlation**2) ** 0.5 * noise)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: Pearson's correlation of the ranks, ties sharing theirs; 0 if one is constant."""
    if len(a) < 2:
        return 0.0
    first, second = _ranks(a), _ranks(b)
    if not first.std() or not second.std():
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - counts / 2)[inverse]
