"""Whether a phase got slower, from paired replicates: bounded chances of error, whatever the noise looks like.

Within a pair, which of the two runs first is drawn by lot. So, if both are equal, the difference of their logarithms is
as likely to be positive as negative, each pair for itself, however the noise is distributed and however long it lasts.
That is all that Wilcoxon's signed-rank test asks for; its confidence bounds are exact (Hollander, Wolfe, Chicken 2014,
3.1 to 3.3). The replicates are looked at a few times, and each look spends an equal part of the allowed chances.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import RequestError


@dataclass(frozen=True, slots=True)
class Rules:
    """When to refuse, when to pass, and how often to look. Losses are shares of the time: 0.05 is 1.05 times as long.

    catch        a loss that must not pass
    false_alarm  most chance that a check refuses where no phase lost more than its floor: over all looks and phases
    miss         most chance that a check passes a phase that lost `catch`, over all looks
    least, most  replicates at the first look and at the last; each look has half as many again as the one before
    """

    catch: float = 0.05
    false_alarm: float = 0.01
    miss: float = 0.02
    least: int = 12
    most: int = 140

    def __post_init__(self) -> None:
        if not (0 < self.catch < 1 and 0 < self.false_alarm < 0.5 and 0 < self.miss < 0.5):
            raise RequestError(f"{self}: catch must lie between 0 and 1, the chances of error between 0 and 0.5")
        if not 1 <= self.least <= self.most:
            raise RequestError(f"replicates from {self.least} to {self.most}: there must be at least 1, in this order")

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of replicates at which to decide."""
        sizes = [self.least]
        while sizes[-1] < self.most:
            sizes.append(min(self.most, math.ceil(sizes[-1] * 1.5)))
        return tuple(sizes)


class Verdict(Enum):
    """What is known of one phase against one reference."""

    SLOWER = "slower"  # it lost more than its floor
    KEPT = "kept"  # it did not lose `catch`, and seems to have lost no more than its floor
    DOUBTFUL = "doubtful"  # it did not lose `catch`, and may have lost more than its floor
    UNKNOWN = "unknown"  # too noisy to tell


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of time as a share. Each bound holds by itself: the truth is hardly below `low`, or above `high`."""

    estimate: float
    low: float
    high: float

    @property
    def bounded(self) -> bool:
        """There were enough replicates for both bounds."""
        return self.low > -1 and self.high < math.inf

    def verdict(self, floor: float, catch: float) -> Verdict:
        if self.low > floor:
            return Verdict.SLOWER
        if self.high >= catch:
            return Verdict.UNKNOWN
        return Verdict.KEPT if self.estimate <= floor else Verdict.DOUBTFUL


def loss(log_ratios: Sequence[float], low_risk: float, high_risk: float) -> Loss:
    """The loss that the replicates show, each the logarithm of head's time over base's.

    The estimate is Hodges and Lehmann's: the median of the averages of all pairs of replicates, each with itself too.
    `low_risk` and `high_risk` bound the chances that the truth lies below `low`, and above `high`. Too few replicates
    for such a bound give an infinite one.
    """
    averages = _walsh(np.asarray(log_ratios, np.float64))
    low = _rank(len(log_ratios), low_risk)
    high = _rank(len(log_ratios), high_risk)
    return Loss(
        estimate=math.expm1(float(np.median(averages))),
        low=-1.0 if low is None else math.expm1(float(averages[low])),
        high=math.inf if high is None else math.expm1(float(averages[-1 - high])),
    )


def _walsh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    rows, columns = np.triu_indices(len(x))
    averages: NDArray[np.float64] = np.sort((x[rows] + x[columns]) / 2)
    return averages


@lru_cache
def _rank(n: int, risk: float) -> int | None:
    """The largest c with P(W <= c) <= risk, W the signed-rank statistic of n replicates; None if there is none."""
    chances = np.zeros(n * (n + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, n + 1):  # each rank counts, or does not, by the toss of a coin
        chances[rank:] += chances[:-rank].copy()
        chances /= 2
    c = int(np.searchsorted(np.cumsum(chances), risk, side="right")) - 1
    return c if c >= 0 else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One phase against one reference: what it may lose, and the replicates so far (log of head's time over its)."""

    phase: str
    reference: str
    floor: float
    log_ratios: Sequence[float]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at a comparison says."""

    comparison: Comparison
    loss: Loss
    verdict: Verdict

    def row(self) -> dict[str, Any]:
        """Plain data for a record."""
        one = self.comparison
        return {
            "phase": one.phase,
            "reference": one.reference,
            "loss": self.loss.estimate,
            "low": self.loss.low,
            "high": self.loss.high,
            "floor": one.floor,
            "replicates": len(one.log_ratios),
            "verdict": self.verdict.value,
        }


def look(comparisons: Sequence[Comparison], rules: Rules) -> list[Finding]:
    """One of the looks that the rules allow, at all comparisons of a check."""
    looks = len(rules.looks)
    low_risk, high_risk = rules.false_alarm / looks / len(comparisons), rules.miss / looks
    losses = [loss(one.log_ratios, low_risk, high_risk) for one in comparisons]
    return [Finding(c, x, x.verdict(c.floor, rules.catch)) for c, x in zip(comparisons, losses, strict=True)]


def decided(findings: Sequence[Finding]) -> bool:
    """No further replicate is needed: a phase is slower, or all have kept their speed."""
    verdicts = {finding.verdict for finding in findings}
    return Verdict.SLOWER in verdicts or verdicts == {Verdict.KEPT}
