"""Fits of time over size: a floor and a slope (two segments), and a plain line; pure functions.

Noise on a shared machine is in proportion to the time itself, so residuals are relative. Repeated sizes are replicates:
the fit runs through their medians, and intervals come from resampling whole rounds, the k-th sample of every size
being of round k.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import PhaselineError

Floats = NDArray[np.float64]
Interval = tuple[float, float]

_KNEES = 128  # places between the smallest and the largest size where the knee is tried
_RESAMPLES = 200
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Floor:
    """seconds(size) = floor_s + slope_s * max(0, size - knee): what a size costs at least, and what more of it costs.

    knee       size from which cost leaves the floor; None if it never does within the sizes measured
    slope_s    seconds per unit of size beyond the knee; 0 without a knee
    residual   root mean square of (measured median - fit) / measured median
    sizes      smallest and largest size measured: what lies outside is extrapolated
    seen       at least two sizes lie on the floor; else the smallest still pays for its size, and `floor_s` is no more
               than the cost of the smallest size
    intervals  95%, over rounds; None where fewer than two rounds were made, or where no knee was found
    """

    floor_s: float
    slope_s: float
    knee: float | None
    residual: float
    sizes: Interval
    seen: bool
    floor_interval: Interval | None = None
    slope_interval: Interval | None = None
    knee_interval: Interval | None = None

    @property
    def marginal_rate(self) -> float | None:
        """Size per second beyond the knee."""
        return 1 / self.slope_s if self.slope_s else None

    def seconds(self, size: float) -> float:
        """The fit at a size."""
        return self.floor_s + (0.0 if self.knee is None else self.slope_s * max(0.0, size - self.knee))


@dataclass(frozen=True, slots=True)
class Line:
    """seconds(size) = base_s + slope_s * size, and how far from it the medians are. Intervals as in `Floor`."""

    base_s: float
    slope_s: float
    residual: float
    base_interval: Interval | None = None
    slope_interval: Interval | None = None

    def seconds(self, size: float) -> float:
        """The fit at a size."""
        return self.base_s + self.slope_s * size


def fit_floor_slope(sizes: Sequence[float], seconds: Sequence[float]) -> Floor:
    """Fit a floor and a slope to samples (sizes[i], seconds[i]), in any order of sizes.

    Raises PhaselineError for fewer than three different sizes, or for sizes and times that are not finite and over 0.
    """
    distinct, rounds = _by_round(sizes, seconds, least=3)
    knees = np.unique(np.concatenate([np.geomspace(distinct[0], distinct[-2], _KNEES), distinct[:-1]]))
    floor_s, slope_s, knee, residual = _two_segments(distinct, _medians(distinct, sizes, seconds), knees)
    drawn = _resampled(rounds, lambda medians: _two_segments(distinct, medians, knees)[:3])
    bent = slope_s > 0
    return Floor(
        floor_s,
        slope_s,
        knee if bent else None,
        residual,
        (float(distinct[0]), float(distinct[-1])),
        seen=not bent or knee >= float(distinct[1]),
        floor_interval=_interval(drawn, 0),
        slope_interval=_interval(drawn, 1) if bent else None,
        knee_interval=_interval(drawn, 2) if bent else None,
    )


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> Line:
    """Fit base + slope * size. Raises PhaselineError as `fit_floor_slope`, for fewer than two different sizes."""
    distinct, rounds = _by_round(sizes, seconds, least=2)
    base_s, slope_s, residual = _line(distinct, _medians(distinct, sizes, seconds))
    drawn = _resampled(rounds, lambda medians: _line(distinct, medians)[:2])
    return Line(base_s, slope_s, residual, _interval(drawn, 0), _interval(drawn, 1))


def _two_segments(sizes: Floats, seconds: Floats, knees: Floats) -> tuple[float, float, float, float]:
    """(floor, slope, knee, residual) of the best knee: for each, weighted least squares in closed form."""
    above = np.maximum(0.0, sizes - knees[:, None])  # (knees, sizes)
    weight = seconds**-2.0  # relative residuals
    floors, slopes = _least_squares(above, seconds, weight)
    flat = slopes * sizes[-1] <= _EPSILON * floors  # a rise of rounding alone is none
    floors[flat], slopes[flat] = np.sum(weight * seconds) / np.sum(weight), 0.0
    squares = np.mean((1 - (floors[:, None] + slopes[:, None] * above) / seconds) ** 2, axis=1)
    best = int(np.argmin(squares))
    return float(floors[best]), float(slopes[best]), float(knees[best]), float(np.sqrt(squares[best]))


def _line(sizes: Floats, seconds: Floats) -> tuple[float, float, float]:
    """(base, slope, residual)."""
    base, slope = _least_squares(sizes[None, :], seconds, seconds**-2.0)
    residual = np.sqrt(np.mean((1 - (base + slope * sizes) / seconds) ** 2))
    return float(base[0]), float(slope[0]), float(residual)


def _least_squares(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Intercepts and slopes of weighted lines through (x[i], y), each row of x, shape (lines, points), by itself."""
    w = weight / np.sum(weight)
    mean_x, mean_y = x @ w, y @ w
    deviation = x - mean_x[:, None]
    slope = (deviation * (y - mean_y)) @ w / (deviation**2 @ w)
    return mean_y - slope * mean_x, slope


def _medians(distinct: Floats, sizes: Sequence[float], seconds: Sequence[float]) -> Floats:
    at, times = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    return np.array([np.median(times[at == size]) for size in distinct])


def _by_round(sizes: Sequence[float], seconds: Sequence[float], least: int) -> tuple[Floats, Floats]:
    """The different sizes, rising, and the samples of complete rounds, shape (rounds, sizes)."""
    at, times = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    if at.shape != times.shape or at.ndim != 1:
        raise PhaselineError(f"a fit needs a time for each size: {at.size} sizes, {times.size} times")
    if not (np.all(np.isfinite(at) & (at > 0)) and np.all(np.isfinite(times) & (times > 0))):
        raise PhaselineError("a fit needs sizes and times that are finite and over 0")
    distinct = np.unique(at)
    if len(distinct) < least:
        raise PhaselineError(f"a fit needs at least {least} different sizes, not {len(distinct)}")
    complete = min(int(np.sum(at == size)) for size in distinct)
    return distinct, np.stack([times[at == size][:complete] for size in distinct], axis=1)


def _resampled(rounds: Floats, fit: Callable[[Floats], tuple[float, ...]]) -> Floats | None:
    """The fit's figures over resampled rounds, shape (resamples, figures)."""
    if len(rounds) < 2:
        return None
    draws = np.random.default_rng(0).integers(len(rounds), size=(_RESAMPLES, len(rounds)))
    return np.array([fit(np.median(rounds[draw], axis=0)) for draw in draws])


def _interval(drawn: Floats | None, figure: int) -> Interval | None:
    if drawn is None:
        return None
    low, high = np.percentile(drawn[:, figure], [2.5, 97.5])
    return float(low), float(high)
