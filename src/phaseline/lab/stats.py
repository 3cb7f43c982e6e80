"""Robust summaries, intervals on the replicate level, and the order in which cells are measured."""

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from phaseline.errors import PhaselineError

T = TypeVar("T")


def median(samples: Sequence[float]) -> float:
    """Middle of the samples. Raises PhaselineError if there are none."""
    if len(samples) == 0:
        raise PhaselineError("no samples: their median does not exist")
    return float(np.median(samples))


def spread(samples: Sequence[float]) -> float:
    """Median absolute deviation from the median, unscaled, in the unit of the samples."""
    centre = median(samples)
    return median([abs(sample - centre) for sample in samples])


def bootstrap_interval(
    replicates: Sequence[float], confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile bootstrap interval (low, high) of the median over replicates.

    Give one figure per whole run (its median, or the ratio of two systems in one round): samples inside a run are
    autocorrelated, so resampling them would promise too much. One replicate has no interval: None.
    """
    if len(replicates) < 2:
        return None
    drawn = np.random.default_rng(seed).choice(np.asarray(replicates, np.float64), (resamples, len(replicates)))
    tail = 50 * (1 - confidence)
    low, high = np.percentile(np.median(drawn, axis=1), [tail, 100 - tail])
    return float(low), float(high)


def interleave(cells: Sequence[T], repeats: int, seed: int) -> Iterator[list[T]]:
    """`repeats` rounds, each with every cell once in a fresh random order, so that drift falls on all cells alike."""
    order = random.Random(seed)
    for _ in range(repeats):
        yield order.sample(cells, len(cells))
