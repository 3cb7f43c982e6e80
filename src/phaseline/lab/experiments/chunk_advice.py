"""What chunks cost and which one keeps a stated gap, from clashes over chunk sizes. Pure.

`samples` are the clashes of each size in order of rounds: the k-th of every size was made in round k.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import PhaselineError
from phaseline.lab.experiments.clash import Clash, tolls
from phaseline.lab.fit import Floor, fit_floor_slope
from phaseline.lab.metrics import chunk_schedule
from phaseline.lab.stats import median, spread

Samples = Mapping[int, Sequence[Clash]]
Interval = tuple[float, float]

_FLAT = 0.01  # a rise of less, or of less than the noise, does not leave the floor
_RESAMPLES = 1000
_TILE = 8  # rows: recommended chunks are whole multiples, where they are not smaller


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """Seconds of a step over the prompt tokens in it, beside the decode rows.

    base_s        a step of decode rows alone
    floor_s, slope_s, knee  of the fit over rows of all kinds, `knee` less the decode rows: so many prompt tokens join
                  a step for nothing, each beyond them costs slope_s. None where cost never leaves the floor
    noise         between rounds: median over sizes of deviation / median
    sizes         smallest and largest chunk measured
    """

    base_s: float
    floor_s: float
    slope_s: float
    knee: float | None
    residual: float
    noise: float | None
    sizes: Interval
    floor_interval_s: Interval | None
    slope_interval_s: Interval | None
    knee_interval: Interval | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Advice:
    """The chunk for a budget: the low end of the interval, in whole tiles; None if no size that was measured keeps it.

    estimate      the chunk up to which worst gaps, between the sizes measured, are within the budget; 0 if even the
                  smallest's is not, and the largest size measured if all are: `limited` then
    interval      95%, over rounds; None for a single one
    worst_gap_s   what the chunk's worst gap is expected to be
    base_s        the worst gap of a budget that allows no prompt at all is at least this: a step of decode rows alone
    """

    budget_ms: float
    chunk: int | None
    estimate: float
    interval: Interval | None
    limited: bool
    worst_gap_s: float | None
    base_s: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def piece_seconds(clash: Clash, size: int, *, chunked: bool) -> float | None:
    """What a full chunk cost, in the middle of the prompt: the median of the victims' gaps that held one.

    Not `chunked`: the prompt was read as the system likes; its longest gap.
    """
    during = max((toll.during for toll in tolls(clash)), key=len)
    prompt = clash.intruder.prompt_tokens
    if not during or not chunked or prompt is None:
        return max(during, default=None)
    pieces = during[-len(chunk_schedule(prompt, size)) :]  # before them the intruder was not being read yet
    return median(pieces[: max(1, prompt // size)])


def worst_gap(clash: Clash) -> float | None:
    """The longest gap of any victim while the intruder's prompt was read."""
    return max((gap for toll in tolls(clash) for gap in toll.during), default=None)


def base_gap(clash: Clash) -> float | None:
    """The victims' median gap before the arrival: a step of decode rows alone."""
    before = [gap for toll in tolls(clash) for gap in toll.before]
    return median(before) if before else None


def chunk_cost(samples: Samples, victims: int, *, chunked: bool) -> ChunkCost | None:
    """Fit the cost of chunks; None if there are too few to fit."""
    costs = {size: _known(piece_seconds(c, size, chunked=chunked) for c in runs) for size, runs in samples.items()}
    bases = [median(found) for runs in _rounds(samples) if (found := _known(map(base_gap, runs)))]
    points = [(victims, base) for base in bases]
    points += [(victims + size, seconds) for size, found in costs.items() for seconds in found]
    try:
        fit = fit_floor_slope([size for size, _ in points], [seconds for _, seconds in points])
    except PhaselineError:
        return None
    deviations = [spread(found) / median(found) for found in costs.values() if len(found) > 1]
    noise = median(deviations) if deviations else None
    bent = fit.seconds(fit.sizes[1]) > fit.floor_s * (1 + max(_FLAT, noise or 0))
    return ChunkCost(
        base_s=median(bases) if bases else fit.floor_s,
        floor_s=fit.floor_s,
        slope_s=fit.slope_s,
        knee=_prompt_rows(fit.knee, victims) if bent else None,
        residual=fit.residual,
        noise=noise,
        sizes=(min(costs), max(costs)),
        floor_interval_s=fit.floor_interval,
        slope_interval_s=fit.slope_interval,
        knee_interval=_prompt_interval(fit, victims) if bent else None,
    )


def advise(samples: Samples, budget_ms: float | None) -> Advice | None:
    """The chunk for a budget. None without a budget, or where not even one round was made of all sizes."""
    rounds = _rounds(samples)
    worst = [[worst_gap(clash) for clash in runs] for runs in rounds]
    table = np.array([row for row in worst if None not in row], np.float64)  # (rounds, sizes)
    if budget_ms is None or not len(table):
        return None
    sizes = np.array(sorted(samples), np.float64)
    typical = np.median(table, axis=0)
    estimate = _largest(sizes, typical, budget_ms / 1e3)
    interval = None
    if len(table) > 1:
        draws = np.random.default_rng(0).integers(len(table), size=(_RESAMPLES, len(table)))
        medians = np.median(table[draws], axis=1)  # (resamples, sizes)
        low, high = np.percentile([_largest(sizes, one, budget_ms / 1e3) for one in medians], [2.5, 97.5])
        interval = float(low), float(high)
    chunk = _whole(interval[0] if interval else estimate, int(sizes[0])) if estimate else None
    return Advice(
        budget_ms,
        chunk,
        estimate,
        interval,
        limited=bool(estimate == sizes[-1]),
        worst_gap_s=None if chunk is None else float(np.interp(chunk, sizes, typical)),
        base_s=median(_known(base_gap(clash) for runs in rounds for clash in runs)),
    )


def _largest(sizes: NDArray[np.float64], worst: NDArray[np.float64], most: float) -> float:
    """The size up to which worst gaps, on straight lines between those measured, are within `most`; 0 if none is."""
    above = np.flatnonzero(worst > most)
    if not len(above):
        return float(sizes[-1])
    at = int(above[0])
    if not at:
        return 0.0
    share = (most - worst[at - 1]) / (worst[at] - worst[at - 1])
    return float(sizes[at - 1] + share * (sizes[at] - sizes[at - 1]))


def _whole(size: float, least: int) -> int:
    return max(least, int(size) // _TILE * _TILE)


def _rounds(samples: Samples) -> list[list[Clash]]:
    """The complete rounds, each with a clash of every size, by rising size."""
    sizes = sorted(samples)
    return [[samples[size][k] for size in sizes] for k in range(min(len(samples[size]) for size in sizes))]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _prompt_rows(rows: float | None, victims: int) -> float | None:
    return None if rows is None else max(0.0, rows - victims)


def _prompt_interval(fit: Floor, victims: int) -> Interval | None:
    if fit.knee_interval is None:
        return None
    low, high = fit.knee_interval
    return max(0.0, low - victims), max(0.0, high - victims)
