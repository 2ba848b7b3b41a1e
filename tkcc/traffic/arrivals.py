"""When requests arrive: what was measured, fitted distributions, and times drawn from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pydantic

from tkcc.ir.errors import TkccError
from tkcc.traffic.quantiles import Quantiles, uniforms_of

WINDOW = 10.0  # seconds, of the dispersion index
_LONG_WINDOW = 60.0
_SPELLS = (10.0, 30.0, 100.0, 300.0)  # seconds
_COARSE = 0.5  # seconds; rounding to steps this long makes bursts that were none


class Fit(pydantic.BaseModel):
    """The distribution of gaps, of three, that is nearest to the measured ones.

    `scale` is in seconds. `distance` is Kolmogorov-Smirnov's: the largest difference of the
    cumulative shares; above 0.1, the gaps have no such simple form.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    family: Literal["poisson", "gamma", "weibull"]
    shape: float = pydantic.Field(gt=0)
    scale: float = pydantic.Field(gt=0)
    distance: float = pydantic.Field(ge=0, le=1)


class Arrivals(pydantic.BaseModel):
    """An arrival process.

    `cv` is the standard deviation of the gaps over their mean (1 is Poisson's). `dispersion` is
    the variance of the counts in windows of 10 s over their mean (1 is Poisson's), None for a
    stretch of less than 5 windows. `swing` (0..1) and `spell` (s) say how the generator groups
    short and long gaps to reach that dispersion. `rounded_to` is the step (s) of the trace's times,
    over which they were spread.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    rate: float = pydantic.Field(gt=0)
    cv: float = pydantic.Field(ge=0)
    dispersion: float | None = pydantic.Field(default=None, ge=0)
    gaps: Quantiles
    fit: Fit
    swing: float = pydantic.Field(default=0.0, ge=0, lt=1)
    spell: float = pydantic.Field(default=WINDOW, gt=0)
    rounded_to: float = pydantic.Field(default=0.0, ge=0)

    @classmethod
    def of(cls, times: Sequence[float] | np.ndarray, *, seed: int = 0) -> Arrivals:
        """Of at least three arrival times in seconds, not all equal. Raises TkccError."""
        times = np.sort(np.asarray(times, np.float64))
        if len(times) < 3 or times[-1] == times[0]:
            raise TkccError(
                f"{len(times)} requests over 0 s have no arrival process",
                remedy="give at least three requests at different times",
            )
        step = rounding(times)
        times = spread_steps(times, step, seed)
        gaps = np.diff(times)
        found = cls(
            rate=1 / gaps.mean(),
            cv=gaps.std() / gaps.mean(),
            dispersion=dispersion(times),
            gaps=Quantiles.of(gaps),
            fit=fit(gaps),
            rounded_to=step,
        )
        return found._grouped(times)

    def _grouped(self, times: np.ndarray) -> Arrivals:
        """With the swing and spell whose drawn times have this dispersion, in long windows too."""
        wanted, far = self.dispersion, dispersion(times, _LONG_WINDOW)
        if wanted is None:
            return self
        # the standard error of a dispersion from n windows is about sqrt(2 / n) of it
        doubt = 2 * wanted * math.sqrt(2 * WINDOW / (times[-1] - times[0]))
        if abs(_trial(self, WINDOW) - wanted) <= doubt:
            return self
        tries = [self.model_copy(update=_calibrate(self, spell, wanted)) for spell in _SPELLS]
        if far is None:
            return tries[0]
        return min(tries, key=lambda t: _distance(t, wanted, far))

    def draw(
        self, count: int, rng: np.random.Generator, *, rate: float | None = None
    ) -> np.ndarray:
        """`count` arrival times (s) from 0 on, at `rate` instead of the measured one if given.

        Each gap follows the measured distribution. Gaps of one spell lean the same way, which is
        what makes some windows busier than others.
        """
        spells = max(1, round(self.rate * self.spell))  # arrivals that share a leaning
        shared = np.repeat(rng.standard_normal(count // spells + 1), spells)[:count]
        own = rng.standard_normal(count)
        normals = self.swing * shared + math.sqrt(1 - self.swing**2) * own
        gaps = self.gaps.draw(uniforms_of(normals))
        times = np.cumsum(gaps) - gaps[0]
        table = float(self.gaps.draw(np.linspace(0.00005, 0.99995, 10000)).mean())
        return np.asarray(times / (table * (self.rate if rate is None else rate)))


def dispersion(times: np.ndarray, window: float = WINDOW) -> float | None:
    """Variance over mean of the counts in whole windows; None for less than 5 windows."""
    times = times - times.min()
    windows = int(times.max() // window)
    if windows < 5:
        return None
    counts = np.bincount((times // window).astype(np.int64), minlength=windows)[:windows]
    return float(counts.var() / counts.mean())


def rounding(times: np.ndarray) -> float:
    """The step (s) to which times are rounded, if it is long enough to distort gaps, else 0.

    Most times must lie within 1 % of a step of its multiples, and most gaps must be 0.
    """
    gaps = np.diff(times)
    if (gaps <= 0.01).mean() < 0.5:
        return 0.0
    step = float(np.median(gaps[gaps > 0.01])) if (gaps > 0.01).any() else 0.0
    if step < _COARSE:
        return 0.0
    off = np.abs(times / step - np.rint(times / step))
    return step if (off < 0.01).mean() > 0.9 else 0.0


def spread_steps(times: np.ndarray, step: float, seed: int = 0) -> np.ndarray:
    """Sorted times, each moved to a random place in its step: the rounding's bursts vanish."""
    if not step:
        return times
    rng = np.random.default_rng(seed)
    base = np.rint(times / step) * step
    return np.sort(base + rng.uniform(0, step, len(times)))


# --- fits --------------------------------------------------------------------------------------


def fit(gaps: np.ndarray) -> Fit:
    """The nearest of the exponential, Gamma and Weibull distributions of greatest likelihood.

    Exponential unless another is nearer by more than 0.01. Gaps of 0 count as 1 microsecond.
    """
    gaps = np.sort(np.maximum(gaps, 1e-6))
    mean = float(gaps.mean())
    plain = Fit(family="poisson", shape=1.0, scale=mean, distance=0.0)
    tries = [_with_distance(f, gaps) for f in (plain, _gamma(gaps), _weibull(gaps))]
    nearest = min(tries, key=lambda f: f.distance)
    return tries[0] if tries[0].distance <= nearest.distance + 0.01 else nearest


def _gamma(gaps: np.ndarray) -> Fit:
    """Minka, Estimating a Gamma distribution (2002): the start of his iteration, within 1.5 %."""
    s = max(1e-9, math.log(gaps.mean()) - float(np.log(gaps).mean()))
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    return Fit(family="gamma", shape=shape, scale=float(gaps.mean()) / shape, distance=0.0)


def _weibull(gaps: np.ndarray) -> Fit:
    """The likelihood equation 1/k = sum(x^k ln x) / sum(x^k) - mean(ln x), by bisection."""
    logs = np.log(gaps) - np.log(gaps.max())

    def excess(k: float) -> float:
        weights = np.exp(k * logs)
        return float((weights * logs).sum() / weights.sum() - logs.mean() - 1 / k)

    shape = _bisect(excess, 0.01, 1000.0)
    scale = float(gaps.max()) * float(np.exp(shape * logs).mean()) ** (1 / shape)
    return Fit(family="weibull", shape=shape, scale=scale, distance=0.0)


def _with_distance(found: Fit, gaps: np.ndarray) -> Fit:
    expected = _cumulative(found, gaps)
    steps = np.arange(len(gaps) + 1) / len(gaps)
    distance = max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max())
    return found.model_copy(update={"distance": min(1.0, float(distance))})


def _cumulative(found: Fit, gaps: np.ndarray) -> np.ndarray:
    scaled = gaps / found.scale
    if found.family == "gamma":
        return _incomplete_gamma(found.shape, scaled)
    return 1 - np.exp(-(scaled**found.shape))


def _incomplete_gamma(shape: float, x: np.ndarray) -> np.ndarray:
    """The regularised lower incomplete gamma function, by the trapezoid rule over ln t."""
    grid = np.exp(np.linspace(math.log(1e-12), math.log(max(1e-6, float(x.max()))), 20001))
    # integrate t^(shape-1) e^-t over ln t; below the grid the integrand is t^shape alone
    integrand = np.exp(shape * np.log(grid) - grid - math.lgamma(shape))
    start = math.exp(shape * math.log(grid[0]) - math.lgamma(shape + 1))
    areas = (integrand[1:] + integrand[:-1]) / 2 * np.diff(np.log(grid))
    total = start + np.concatenate([[0.0], np.cumsum(areas)])
    return np.asarray(np.minimum(1.0, np.interp(x, grid, total)))


def _bisect(function: Callable[[float], float], low: float, high: float, steps: int = 60) -> float:
    """Where a rising function crosses 0, by halving the interval's ratio."""
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return math.sqrt(low * high)


# --- how gaps lean together ----------------------------------------------------------------------

_TRIAL, _TRIAL_SPELLS, _TRIAL_MOST = 20_000, 200, 200_000  # arrivals, spells, arrivals


def _trial(found: Arrivals, window: float) -> float:
    """The dispersion of drawn times: the mean over two draws, the same ones each time."""
    wanted = max(_TRIAL, _TRIAL_SPELLS * found.rate * max(window, found.spell))
    count = int(min(wanted, _TRIAL_MOST))
    draws = [found.draw(count, np.random.default_rng(seed)) for seed in range(2)]
    return float(np.mean([dispersion(times, window) or 0.0 for times in draws]))


def _calibrate(found: Arrivals, spell: float, wanted: float) -> dict[str, float]:
    low, high = 0.0, 0.95
    for _ in range(10):
        middle = (low + high) / 2
        tried = found.model_copy(update={"swing": middle, "spell": spell})
        low, high = (low, middle) if _trial(tried, WINDOW) > wanted else (middle, high)
    return {"swing": round((low + high) / 2, 3), "spell": spell}


def _distance(found: Arrivals, near: float, far: float) -> float:
    misses = [(_trial(found, WINDOW), near), (_trial(found, _LONG_WINDOW), far)]
    return sum(abs(math.log(max(got, 1e-6) / max(wanted, 1e-6))) for got, wanted in misses)
