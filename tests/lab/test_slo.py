"""The search for the highest rate: exact without noise, near the truth with it, and honest about what it saw."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.slo import RateSearch


def cliff(edge: float) -> Callable[[float], float]:
    return lambda rate: 1.0 if rate <= edge else 0.1


def queue(knee: float, requests: int, seed: int) -> Callable[[float], float]:
    """A synthetic server: the share that meets its objectives is 90% at the knee, seen through `requests` draws."""
    rng = np.random.default_rng(seed)
    return lambda rate: float(rng.binomial(requests, 1 / (1 + (rate / knee) ** 6 / 9)) / requests)


@given(st.floats(0.1, 1000), st.floats(0.2, 0.99), st.floats(0.01, 0.5))
def test_a_cliff_is_found_to_the_resolution(edge: float, target: float, resolution: float) -> None:
    search = RateSearch(target, 0.1, 4000.0, requests=10_000, resolution=resolution, budget=1000)
    found = search.run(cliff(edge))
    assert found.rate is not None and found.failed_rate is not None and found.confirmed
    assert found.rate <= edge < found.failed_rate <= found.rate * (1 + resolution)


@given(st.floats(0.1, 1000), st.floats(0.2, 0.99))
def test_the_probes_bear_the_answer_out(edge: float, target: float) -> None:
    found = RateSearch(target, 0.1, 4000.0, requests=100).run(cliff(edge))
    assert max(probe.rate for probe in found.probes if probe.passed) == found.rate
    assert min(probe.rate for probe in found.probes if not probe.passed) == found.failed_rate
    assert [probe.rate for probe in found.probes].count(found.rate) == 2
    assert all(0.1 <= probe.rate <= 4000 for probe in found.probes)


def test_the_limits_of_the_search_are_told() -> None:
    search = RateSearch(0.9, 1.0, 5.0, requests=100)
    most = search.run(cliff(100))
    assert (most.rate, most.failed_rate, most.confirmed) == (5.0, None, True)
    assert [probe.rate for probe in most.probes] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert "5 requests/s keeps 90%" in most.finding and "no higher rate was allowed" in most.finding
    least = search.run(cliff(0.5))
    assert (least.rate, least.failed_rate, len(least.probes)) == (None, 1.0, 1)
    assert "not even 1 requests/s" in least.finding


def test_noise_is_seen_through() -> None:
    found = [RateSearch(0.9, 1.0, 100.0, requests=100).run(queue(10.0, 100, seed)).rate for seed in range(40)]
    assert all(rate is not None and 7.5 < rate < 12.0 for rate in found)
    assert np.median([rate for rate in found if rate is not None]) == pytest.approx(10.0, rel=0.1)


def test_runs_are_repeated_only_where_noise_could_turn_the_verdict() -> None:
    found = RateSearch(0.9, 1.0, 100.0, requests=100).run(queue(10.0, 100, 1))
    runs = {probe.rate: len(probe.attainments) for probe in found.probes}
    assert runs[1.0] == 2  # far from the target
    assert max(runs.values()) == 6  # at it
    assert all(probe.sure or len(probe.attainments) == 6 for probe in found.probes)


def test_equal_runs_near_the_target_are_not_taken_for_certain() -> None:
    search = RateSearch(0.9, 1.0, 1.0, requests=100)
    assert [len(probe.attainments) for probe in search.run(lambda rate: 0.92).probes] == [6, 6]
    assert [len(probe.attainments) for probe in search.run(lambda rate: 0.98).probes] == [2, 2]


def test_the_gap_is_halved_in_the_logarithm() -> None:
    found = RateSearch(0.9, 1.0, 100.0, requests=100, resolution=0.5).run(cliff(3.0))
    assert [probe.rate for probe in found.probes] == pytest.approx([1, 2, 4, math.sqrt(8), math.sqrt(8)])


def test_a_lucky_pass_is_not_the_answer() -> None:
    seen: list[float] = []

    def lucky_once(rate: float) -> float:
        """Fails above 4/s, but for the first two runs at 5/s."""
        seen.append(rate)
        return 1.0 if rate <= 4 or (rate == 5 and seen.count(5) <= 2) else 0.0

    found = RateSearch(0.9, 1.0, 5.0, requests=100).run(lucky_once)
    assert found.rate is not None and found.rate <= 4
    assert found.confirmed and found.failed_rate is not None and found.failed_rate < 5


def test_all_requests_can_be_the_target() -> None:
    found = RateSearch(1.0, 1.0, 64.0, requests=50, resolution=0.01).run(lambda rate: 1.0 if rate <= 10 else 0.98)
    assert found.rate == pytest.approx(10, rel=0.01) and found.rate <= 10


def test_a_small_budget_gives_what_is_known_and_says_so() -> None:
    found = RateSearch(0.9, 1.0, 100.0, requests=100, budget=5).run(cliff(10))
    assert (found.rate, found.failed_rate, found.confirmed) == (4.0, None, False)
    assert "not confirmed" in found.finding and "nothing above it was tried" in found.finding
    assert sum(len(probe.attainments) for probe in found.probes) <= 5 + 5


@given(st.data(), st.integers(1, 60))
def test_any_answers_end_the_search_within_its_budget(data: st.DataObject, budget: int) -> None:
    runs = 0

    def anything(rate: float) -> float:
        nonlocal runs
        runs += 1
        return data.draw(st.sampled_from([0.0, 0.85, 0.9, 0.95, 1.0]))

    found = RateSearch(0.9, 1.0, 64.0, requests=100, budget=budget).run(anything)
    assert runs == sum(len(probe.attainments) for probe in found.probes) < budget + 6
    assert found.rate is None or found.failed_rate is None or found.rate < found.failed_rate


def test_the_steps_can_be_driven_from_outside() -> None:
    steps = RateSearch(0.9, 1.0, 1.0, requests=100).steps()
    assert [next(steps), steps.send(1.0), steps.send(1.0), steps.send(1.0)] == [1.0] * 4
    with pytest.raises(StopIteration) as end:
        steps.send(1.0)
    assert end.value.value.rate == 1.0


@pytest.mark.parametrize("attainment", [-0.1, 1.1, math.nan])
def test_what_is_no_fraction_is_refused(attainment: float) -> None:
    with pytest.raises(PhaselineError, match="fraction"):
        RateSearch(0.9, 1.0, 2.0, requests=1).run(lambda rate: attainment)


@pytest.mark.parametrize(
    "change",
    [
        *({"target": 0.0}, {"target": 1.1}, {"low": 0.0}, {"high": 0.5}, {"high": math.inf}, {"resolution": 0.0}),
        *({"requests": 0}, {"least": 0}, {"most": 1}, {"margin": -1.0}, {"budget": 0}),
    ],
)
def test_settings_that_make_no_search_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="needed"):
        RateSearch(**{"target": 0.9, "low": 1.0, "high": 2.0, "requests": 100, **change})
