from __future__ import annotations

import numpy as np
import pytest

from tkcc.ir.errors import TkccError
from tkcc.traffic.arrivals import Arrivals, dispersion, fit, rounding


def _gamma(shape: float) -> np.ndarray:
    return np.random.default_rng(1).gamma(shape, 2.0, 20_000)


def test_known_distributions_are_found_again() -> None:
    rng = np.random.default_rng(1)
    found = fit(rng.exponential(3.0, 20_000))
    assert found.family == "poisson"
    assert found.scale == pytest.approx(3.0, rel=0.03)
    found = fit(_gamma(0.25))
    assert found.family == "gamma"
    assert found.shape == pytest.approx(0.25, rel=0.03)
    assert found.scale == pytest.approx(2.0, rel=0.05)
    found = fit(5.0 * rng.weibull(0.5, 20_000))
    assert found.family == "weibull"
    assert found.shape == pytest.approx(0.5, rel=0.03)
    assert found.scale == pytest.approx(5.0, rel=0.05)
    assert found.distance < 0.01


def test_poisson_arrivals_have_cv_and_dispersion_1() -> None:
    times = np.cumsum(np.random.default_rng(2).exponential(0.2, 20_000))
    found = Arrivals.of(times)
    assert found.rate == pytest.approx(5.0, rel=0.03)
    assert found.cv == pytest.approx(1.0, abs=0.03)
    assert found.dispersion == pytest.approx(1.0, abs=0.15)
    assert found.swing == 0.0


def test_busy_and_quiet_spells_are_drawn_again() -> None:
    rng = np.random.default_rng(3)
    rates = np.repeat(rng.choice([2.0, 8.0], 40), 500)
    found = Arrivals.of(np.cumsum(rng.exponential(1, 20_000) / rates))
    assert found.dispersion is not None
    assert found.dispersion > 5
    drawn = dispersion(found.draw(40_000, np.random.default_rng(4)))
    assert drawn == pytest.approx(found.dispersion, rel=0.3)


def test_times_rounded_to_long_steps_are_spread_before_they_are_measured() -> None:
    times = np.cumsum(np.random.default_rng(5).exponential(0.3, 10_000))
    rounded = np.floor(times / 3) * 3
    assert rounding(times) == 0.0
    assert rounding(rounded) == 3.0
    gaps = np.diff(rounded)
    assert gaps.std() / gaps.mean() > 2.5, "the artefact"
    assert Arrivals.of(rounded).cv == pytest.approx(1.0, abs=0.05)
    assert Arrivals.of(rounded).rounded_to == 3.0


def test_times_rounded_to_milliseconds_stay_as_they_are() -> None:
    times = np.round(np.cumsum(np.random.default_rng(5).exponential(0.01, 10_000)), 3)
    assert Arrivals.of(times).rounded_to == 0.0


@pytest.mark.parametrize("times", [[], [1.0, 2.0], [4.0, 4.0, 4.0]])
def test_too_few_arrivals_are_refused(times: list[float]) -> None:
    with pytest.raises(TkccError, match="no arrival process"):
        Arrivals.of(times)
