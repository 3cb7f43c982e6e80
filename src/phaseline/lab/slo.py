"""The highest request rate at which enough requests still meet their objectives, searched through noise."""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from phaseline.errors import PhaselineError, RequestError


@dataclass(frozen=True, slots=True)
class Probe:
    """What was seen at one rate: the attainment of each run there, the verdict, and whether noise could turn it."""

    rate: float
    attainments: tuple[float, ...]
    passed: bool
    sure: bool


@dataclass(frozen=True, slots=True)
class RateFound:
    """The highest `rate` that kept the target (None: not even the lowest did) and the lowest above it that did not.

    confirmed  the rate kept it once more, in fresh runs
    probes     all that was seen, in order
    """

    rate: float | None
    failed_rate: float | None
    confirmed: bool
    probes: tuple[Probe, ...]
    finding: str


@dataclass(frozen=True, slots=True)
class RateSearch:
    """A search between `low` and `high` requests per second for the highest rate whose attainment is >= `target`.

    From `low` the rate doubles until it fails, then the gap is halved (in the logarithm) until failing over passing is
    at most 1 + `resolution`; last, the answer must pass again in fresh runs, or the search goes on below it.

    A rate is judged by the mean attainment of its runs. Runs are repeated, from `least` to `most`, while the target is
    within `margin` standard errors of the mean; the error is taken from the spread of the runs, but never below that
    of `requests` independent requests a run. No probe begins after `budget` runs.
    Raises RequestError for settings that make no search.
    """

    target: float
    low: float
    high: float
    requests: int
    resolution: float = 0.05
    least: int = 2
    most: int = 6
    margin: float = 2.0
    budget: int = 100

    def __post_init__(self) -> None:
        if not (0 < self.target <= 1 and 0 < self.low <= self.high < math.inf and self.resolution > 0):
            raise RequestError(f"{self}: 0 < target <= 1, 0 < low <= high and resolution > 0 are needed")
        if not (1 <= self.least <= self.most and self.requests >= 1 and self.margin >= 0 and self.budget >= 1):
            raise RequestError(f"{self}: 1 <= least <= most, requests >= 1, margin >= 0 and budget >= 1 are needed")

    def run(self, measure: Callable[[float], float]) -> RateFound:
        """Search with `measure`, which runs a rate and gives the fraction of its requests that met the objectives."""
        steps = self.steps()
        rate = next(steps)
        while True:
            try:
                rate = steps.send(measure(rate))
            except StopIteration as end:
                found: RateFound = end.value
                return found

    def steps(self) -> Generator[float, float, RateFound]:
        """The search itself: yields the rate to run next, takes its attainment, returns what was found."""
        probes: list[Probe] = []

        def passes(rate: float) -> Generator[float, float, bool]:
            probes.append((yield from self._probe(rate)))
            return probes[-1].passed

        def affordable() -> bool:
            return sum(len(probe.attainments) for probe in probes) < self.budget

        good: float | None = None
        bad: float | None = None
        rate, confirmed = self.low, False
        while affordable() and not confirmed:
            again = rate == good
            if (yield from passes(rate)):
                good, confirmed = rate, again
            else:
                bad = rate
                lower = [probe.rate for probe in probes if probe.passed and probe.rate < rate]
                good = max(lower, default=None)
                if good is None:
                    break
            assert good is not None
            if bad is None:
                rate = min(2 * good, self.high)
            elif bad > good * (1 + self.resolution):
                rate = math.sqrt(good * bad)
            else:
                rate = good
        return RateFound(good, bad, confirmed, tuple(probes), self._finding(good, bad, confirmed))

    def _probe(self, rate: float) -> Generator[float, float, Probe]:
        seen: list[float] = []
        floor = math.sqrt(self.target * (1 - self.target) / self.requests)
        while True:
            attainment = yield rate
            if not 0 <= attainment <= 1:
                raise PhaselineError(f"at {rate:g} requests/s the attainment was {attainment}: it is a fraction")
            seen.append(attainment)
            mean = fmean(seen)
            error = max(floor, float(np.std(seen, ddof=1)) if len(seen) > 1 else 0.0) / math.sqrt(len(seen))
            above = mean - self.margin * error >= self.target
            sure = above or mean + self.margin * error < self.target
            if len(seen) >= self.least and (sure or len(seen) == self.most):
                return Probe(rate, tuple(seen), mean >= self.target, sure)

    def _finding(self, good: float | None, bad: float | None, confirmed: bool) -> str:
        goal = f"{self.target:.0%} of requests within the objectives"
        if good is None:
            return f"not even {self.low:g} requests/s keeps {goal}"
        limit = f"{bad:.3g} does not" if bad is not None else "nothing above it was tried"
        if good == self.high:
            limit = "and no higher rate was allowed"
        sureness = "seen twice" if confirmed else "not confirmed: the runs allowed were used up"
        return f"{good:.3g} requests/s keeps {goal}, {limit} ({sureness})"
