"""Robust summaries, replicate-level intervals and interleaving."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import PhaselineError
from phaseline.lab.stats import bootstrap_interval, interleave, median, spread

figures = st.floats(-1e6, 1e6)


def test_one_outlier_moves_neither_median_nor_spread_far() -> None:
    assert median([1.0, 2.0, 3.0, 4.0, 1000.0]) == 3.0
    assert spread([1.0, 2.0, 3.0, 4.0, 1000.0]) == 1.0
    assert median([1.0, 2.0]) == 1.5
    assert spread([7.0]) == 0.0


def test_no_samples_are_refused() -> None:
    with pytest.raises(PhaselineError, match="no samples"):
        median([])


@given(st.lists(figures, min_size=2, max_size=12), st.integers(0, 2**32))
def test_the_interval_is_seeded_and_holds_the_median(replicates: list[float], seed: int) -> None:
    interval = bootstrap_interval(replicates, resamples=200, seed=seed)
    assert interval is not None
    low, high = interval
    assert min(replicates) <= low <= median(replicates) <= high <= max(replicates)
    assert bootstrap_interval(replicates, resamples=200, seed=seed) == interval


def test_one_replicate_has_no_interval() -> None:
    assert bootstrap_interval([1.0]) is None


def test_more_confidence_is_wider_and_more_replicates_are_narrower() -> None:
    runs = np.random.default_rng(7).normal(100.0, 5.0, 64).tolist()
    width = {
        (count, confidence): high - low
        for count in (8, 64)
        for confidence in (0.5, 0.95)
        for low, high in [bootstrap_interval(runs[:count], confidence) or (0.0, 0.0)]
    }
    assert width[8, 0.95] > width[8, 0.5] > 0
    assert width[8, 0.95] > width[64, 0.95] > 0


def test_the_interval_leaves_out_half_of_the_doubt_at_each_end() -> None:
    # three draws from {0, 1, 2} have the median 0 (and likewise 2) with probability 7/27 = 0.26
    assert bootstrap_interval([0.0, 1.0, 2.0], confidence=0.6) == (0.0, 2.0)  # 0.20 at each end
    assert bootstrap_interval([0.0, 1.0, 2.0], confidence=0.4) == (1.0, 1.0)  # 0.30 at each end


@given(st.lists(st.integers(), max_size=10), st.integers(0, 6), st.integers(0, 2**32))
def test_each_round_has_each_cell_once(cells: list[int], repeats: int, seed: int) -> None:
    rounds = list(interleave(cells, repeats, seed))
    assert len(rounds) == repeats
    assert all(Counter(one) == Counter(cells) for one in rounds)
    assert list(interleave(cells, repeats, seed)) == rounds


def test_rounds_differ_in_order() -> None:
    rounds = list(interleave(range(20), repeats=5, seed=0))
    assert len({tuple(one) for one in rounds}) == 5
