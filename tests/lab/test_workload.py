"""When requests are due: the processes have their rates and shapes, ramps their counts, and a workload its order."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import RequestError
from phaseline.lab.prompts import Made
from phaseline.lab.systems.base import Ask
from phaseline.lab.workload import Due, Ramp, Workload, arrival_times, asked, logged_times
from phaseline.lab.workload_files import Log, Logged

ASKS = [Ask("one", 1), Ask("two", 2), Ask([3, 3, 3], 3)]


def gaps(times: list[float]) -> np.ndarray:
    return np.diff(times)


def test_a_fixed_rate_is_even() -> None:
    assert arrival_times(4, 4.0, burstiness=math.inf) == [0.0, 0.25, 0.5, 0.75]


def test_an_infinite_rate_makes_all_due_at_once() -> None:
    assert arrival_times(3, math.inf) == [0.0, 0.0, 0.0]
    assert arrival_times(0, 1.0) == []


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_of_the_rate_and_the_shape_of_the_burstiness(burstiness: float) -> None:
    some = gaps(arrival_times(40_001, 5.0, burstiness=burstiness, seed=3))
    assert np.mean(some) == pytest.approx(1 / 5, rel=0.05)
    assert np.std(some) / np.mean(some) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)  # a gamma's, by its shape


def test_a_poisson_process_forgets() -> None:
    some = gaps(arrival_times(40_001, 1.0, seed=4))
    assert np.mean(some > 1) == pytest.approx(math.exp(-1), rel=0.05)
    assert np.mean(some[some > 1] > 2) == pytest.approx(math.exp(-1), rel=0.05)


rates = st.floats(0.01, 1000) | st.builds(Ramp, st.floats(0, 1000), st.floats(0.01, 1000), st.floats(0.01, 1000))


@given(st.integers(0, 200), rates, st.floats(0.05, 50) | st.just(math.inf), st.integers(0, 2**40))
def test_times_start_at_0_in_order_and_repeat_with_their_seed(
    count: int, rate: float | Ramp, burstiness: float, seed: int
) -> None:
    times = arrival_times(count, rate, burstiness=burstiness, seed=seed)
    assert times == arrival_times(count, rate, burstiness=burstiness, seed=seed)
    assert times[:1] == [0.0][:count] and len(times) == count
    assert all(earlier <= later for earlier, later in pairwise(times))
    Workload([ASKS[0]] * count, times)  # takes them


def test_seeds_differ() -> None:
    assert arrival_times(10, 1.0, seed=1) != arrival_times(10, 1.0, seed=2)


def test_a_ramp_brings_the_area_below_it() -> None:
    # 2/s to 6/s in 10 s: 2 t + 0.2 t^2 by t, 40 at the end, 6/s from then on
    times = arrival_times(101, Ramp(2.0, 6.0, 10.0), burstiness=math.inf)
    assert times[15] == pytest.approx(5.0)
    assert times[40] == pytest.approx(10.0)
    assert times[100] == pytest.approx(20.0)


def test_ramps_from_nothing_and_downwards() -> None:
    assert arrival_times(3, Ramp(0.0, 2.0, 2.0), burstiness=math.inf) == pytest.approx([0.0, math.sqrt(2), 2.0])
    # 6/s down to 2/s: 6 t - 0.2 t^2
    assert arrival_times(41, Ramp(6.0, 2.0, 10.0), burstiness=math.inf)[25] == pytest.approx(5.0)
    assert Ramp(3.0, 3.0, 5.0).time_of(6.0) == pytest.approx(2.0)


@given(st.builds(Ramp, st.floats(0, 100), st.floats(0.1, 100), st.floats(0.1, 100)), st.floats(0, 1))
def test_time_on_a_ramp_inverts_its_area(ramp: Ramp, share: float) -> None:
    t = share * ramp.duration_s
    area = ramp.start * t + (ramp.end - ramp.start) * t * t / (2 * ramp.duration_s)
    assert ramp.time_of(area) == pytest.approx(t, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "rate", "burstiness"), [(3, 0.0, 1.0), (3, -1.0, 1.0), (3, math.nan, 1.0), (-1, 1.0, 1.0)]
)
def test_impossible_rates_are_refused(count: int, rate: float, burstiness: float) -> None:
    with pytest.raises(RequestError, match="above 0"):
        arrival_times(count, rate, burstiness=burstiness)


def test_impossible_burstiness_seeds_and_ramps_are_refused() -> None:
    for burstiness in (0.0, -1.0, math.nan):
        with pytest.raises(RequestError, match="burstiness"):
            arrival_times(3, 1.0, burstiness=burstiness)
    with pytest.raises(RequestError, match="seed"):
        arrival_times(3, 1.0, seed=-1)
    for ramp in ((-1, 1, 1), (1, 0, 1), (1, 1, 0), (1, math.inf, 1), (math.nan, 1, 1)):
        with pytest.raises(RequestError, match="Ramp"):
            Ramp(*ramp)


def test_a_workload_gives_each_ask_its_time() -> None:
    assert list(Workload(ASKS, [0.0, 0.5, 0.5])) == [Due(0.0, ASKS[0]), Due(0.5, ASKS[1]), Due(0.5, ASKS[2])]
    assert list(Workload(ASKS, max_concurrency=2)) == [Due(None, ask) for ask in ASKS]


def test_a_workload_makes_an_ask_when_it_is_reached() -> None:
    made: list[int] = []

    def make(number: int) -> Ask:
        made.append(number)
        return ASKS[number]

    dues = iter(Workload(Made(3, make), [0.0, 1.0, 2.0]))
    assert made == []
    next(dues)
    assert made == [0]
    assert [due.ask for due in dues] == ASKS[1:]


@pytest.mark.parametrize(
    ("due_s", "cap", "reason"),
    [
        (None, None, "closed loop"),
        ([0.0, 1.0, 2.0], 0, "max concurrency"),
        ([0.0, 1.0], None, "2 times for 3"),
        ([0.0, 2.0, 1.0], None, "in order"),
        ([-1.0, 0.0, 1.0], None, "not negative"),
        ([0.0, 1.0, math.inf], None, "finite"),
        ([0.0, math.nan, 1.0], None, "finite"),
    ],
)
def test_a_workload_without_sense_is_refused(due_s: list[float] | None, cap: int | None, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        Workload(ASKS, due_s, cap)


def test_equal_prompts_have_equal_digests() -> None:
    facts = [asked(Ask(prompt, 4)) for prompt in ([1, 2], (1, 2), range(1, 3), [1, 3], [1, 2, 0], "1 2", "")]
    assert facts[0] == facts[1] == facts[2]
    assert len({fact.prompt_digest for fact in facts}) == 5
    assert asked(Ask([1], 4)) != asked(Ask("\1" + "\0" * 7, 4))  # the same bytes
    assert asked(Ask([1, 2], 5)).max_tokens == 5


def test_a_log_is_replayed_at_a_multiple_of_its_pace() -> None:
    log = Log((Logged(1, 1, 0.0), Logged(1, 1, 3.0)), 0)
    assert logged_times(log) == [0.0, 3.0]
    assert logged_times(log, speed=2) == [0.0, 1.5]
    for speed in (0, -1, math.inf, math.nan):
        with pytest.raises(RequestError, match="speed"):
            logged_times(log, speed)
    with pytest.raises(RequestError, match="no times"):
        logged_times(Log((Logged(1, 1),), 0))
