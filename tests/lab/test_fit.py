"""Fits: figures that were put in come out again, within their intervals, and nothing is claimed of too little."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import PhaselineError
from phaseline.lab.fit import fit_floor_slope, fit_line

SIZES = (1, 4, 16, 32, 64, 128, 256, 512, 1024)


def hockey(floor: float, slope: float, knee: float) -> Callable[[float], float]:
    return lambda size: floor + slope * max(0.0, size - knee)


def noisy(
    truth: Callable[[float], float], rounds: int, noise: float, seed: int = 0, sizes: tuple[int, ...] = SIZES
) -> tuple[list[float], list[float]]:
    """Rounds of samples, each round off by a factor of its own, each sample by a smaller one."""
    rng = np.random.default_rng(seed)
    pairs = [
        (size, truth(size) * drift * rng.lognormal(0, noise / 4))
        for drift in rng.lognormal(0, noise, rounds)
        for size in sizes
    ]
    return [float(s) for s, _ in pairs], [t for _, t in pairs]


@given(st.floats(1e-4, 1.0), st.floats(0.001, 0.1), st.floats(2.0, 400.0), st.permutations(SIZES), st.integers(1, 3))
def test_an_exact_hockey_stick_is_recovered(
    floor: float, steepness: float, knee: float, sizes: list[int], rounds: int
) -> None:
    truth = hockey(floor, floor * steepness, knee)
    fit = fit_floor_slope(sizes * rounds, [truth(size) for size in sizes] * rounds)
    assert fit.floor_s == pytest.approx(floor, rel=0.05)
    assert fit.slope_s == pytest.approx(floor * steepness, rel=0.05)
    assert fit.residual < 0.03
    assert all(fit.seconds(size) == pytest.approx(truth(size), rel=0.1) for size in sizes)
    assert fit.knee == pytest.approx(knee, rel=0.25)
    assert fit.seen is (fit.knee is not None and fit.knee >= 4)
    assert (fit.floor_interval is None) == (rounds == 1)


def test_noise_stays_within_the_intervals_it_makes() -> None:
    truth, inside = hockey(3e-3, 3e-4, 20), 0
    for seed in range(40):
        fit = fit_floor_slope(*noisy(truth, rounds=7, noise=0.05, seed=seed))
        assert fit.floor_interval and fit.slope_interval and fit.knee_interval
        assert fit.slope_s == pytest.approx(3e-4, rel=0.25) and fit.knee == pytest.approx(20, rel=0.3)
        inside += fit.slope_interval[0] <= 3e-4 <= fit.slope_interval[1]
    assert inside >= 30, "a bootstrap over seven rounds is a little narrow, but not blind"


def test_flat_times_have_no_knee_and_no_rate() -> None:
    fit = fit_floor_slope(SIZES, [0.5] * len(SIZES))
    assert (fit.floor_s, fit.slope_s, fit.knee, fit.marginal_rate, fit.seen) == (0.5, 0.0, None, None, True)
    assert fit.seconds(1e6) == 0.5
    falling = fit_floor_slope([1, 10, 100], [3.0, 2.0, 1.0])
    assert falling.knee is None and falling.slope_s == 0


def test_a_line_through_all_sizes_shows_no_floor() -> None:
    fit = fit_floor_slope(SIZES, [0.01 + 0.001 * size for size in SIZES])
    assert fit.seen is False
    assert fit.slope_s == pytest.approx(0.001) and fit.marginal_rate == pytest.approx(1000)
    assert fit.seconds(300) == pytest.approx(0.31)
    assert fit.sizes == (1, 1024)


def test_one_wild_sample_does_not_move_the_medians() -> None:
    sizes, seconds = noisy(hockey(3e-3, 3e-4, 20), rounds=5, noise=0.01)
    calm = fit_floor_slope(sizes, seconds)
    wild = fit_floor_slope(sizes, [s * 50 if i == 3 else s for i, s in enumerate(seconds)])
    assert wild.slope_s == pytest.approx(calm.slope_s, rel=0.05)


def test_rounds_are_resampled_whole() -> None:
    """A slow round is slow at all sizes: the slope's interval holds both speeds, and their ratio stays."""
    sizes = [*SIZES, *SIZES]
    seconds = [hockey(1.0, 0.1, 8)(s) * factor for factor in (1, 2) for s in SIZES]
    fit = fit_floor_slope(sizes, seconds)
    assert fit.slope_interval == pytest.approx((0.1, 0.2), rel=0.05)
    assert fit.knee_interval == pytest.approx((8, 8), rel=0.1)


def test_a_line_is_recovered() -> None:
    line = fit_line([1, 2, 4, 8] * 3, [3 + 0.5 * n for n in (1, 2, 4, 8)] * 3)
    assert (line.base_s, line.slope_s, line.residual) == (pytest.approx(3), pytest.approx(0.5), pytest.approx(0))
    assert line.seconds(10) == pytest.approx(8)
    assert line.slope_interval == (pytest.approx(0.5), pytest.approx(0.5))
    assert fit_line([1, 2], [1.0, 2.0]).slope_interval is None


def test_residuals_are_relative_so_that_short_times_count() -> None:
    """In absolute terms the long ones would settle it, and the base would be lost."""
    line = fit_line([1, 2, 500, 1000], [1.0, 1.01, 30.0, 40.0])
    assert line.base_s == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("sizes", "seconds", "said"),
    [
        ([1, 2], [1.0, 1.0], "at least 3 different sizes, not 2"),
        ([1, 1, 2, 2], [1.0] * 4, "at least 3 different sizes"),
        ([], [], "at least 3"),
        ([1, 2, 3], [1.0, 2.0], "3 sizes, 2 times"),
        ([1, 2, 3], [1.0, 0.0, 1.0], "finite and over 0"),
        ([0, 2, 3], [1.0, 1.0, 1.0], "finite and over 0"),
        ([1, 2, 3], [1.0, float("nan"), 1.0], "finite and over 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(sizes: list[float], seconds: list[float], said: str) -> None:
    with pytest.raises(PhaselineError, match=said):
        fit_floor_slope(sizes, seconds)
