"""What a step costs, learnt from the steps that ran. Seconds are given, never taken: no clock is needed to test it."""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaseline.program.step import Step

_REMEMBERED = 64  # steps of each kind
_PRIOR_ROW_S = 0.1  # what a prefill row costs before anything is known: far more than it will
_CARE = 0.9  # quantile of the mixed steps that a cautious estimate covers
_MOST_CAUTION = 4.0  # however noisy the machine is, an estimate is not raised by more than this factor

Rows = tuple[float, ...]


def step_rows(step: Step) -> Rows:
    """What a step's time depends on: 1, decode rows, the positions they read, prefill rows, those of them that get
    logits, and the pairs of positions that they attend over. A segment of one row is decode, whoever asked for it."""
    rows = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    for segment in step.segments:
        count = len(segment.tokens)
        if count == 1:
            rows[1] += 1
            rows[2] += segment.start + 1
        else:
            rows[3] += count
            rows[4] += segment.wanted
            rows[5] += count * (segment.start + (count + 1) / 2)
    return tuple(rows)


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step, linear in `step_rows`, none of whose costs is negative; raised by `caution` for its noise."""

    costs: Rows
    caution: float

    def seconds(self, rows: Rows) -> float:
        """Seconds that a step is expected to stay below."""
        return self.caution * math.fsum(cost * amount for cost, amount in zip(self.costs, rows, strict=True))

    def rows_within(self, seconds: float, start: int, scored: bool = False) -> float:
        """Most prefill rows, of a prompt read up to `start`, that add no more than so many seconds to a step.

        n rows cost n * row + pair * n * (start + (n + 1) / 2): the root of that in the form that does not cancel.
        """
        pair = self.caution * self.costs[5]
        row = self.caution * (self.costs[3] + self.costs[4] * scored) + pair * (start + 0.5)
        if seconds <= 0:
            return 0.0
        slowness = row + math.sqrt(row * row + 2 * pair * seconds)
        return 2 * seconds / slowness if slowness else math.inf


class StepCost:
    """Remembers the last steps of each kind (decode only, prefill only, mixed), and fits their cost when asked.

    The errors that the fit makes least are relative ones: short steps count like long ones, and a step that was held
    up hardly counts, since no estimate is further off than all of it.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[bool, bool], deque[Rows]] = {}  # each divided by the seconds it took

    def observe(self, step: Step, seconds: float) -> None:
        """A step took so many seconds."""
        rows = step_rows(step)
        kind = bool(rows[1]), bool(rows[3])
        if seconds > 0:
            self._steps.setdefault(kind, deque(maxlen=_REMEMBERED)).append(tuple(amount / seconds for amount in rows))

    def estimate(self) -> Estimate:
        """The cost as far as it is known. Before anything is, a prefill row costs far more than it will."""
        prior = (0.0, 0.0, 0.0, 1 / _PRIOR_ROW_S, 0.0, 0.0)  # a step of one row took that long
        seen = np.array([prior, *(rows for steps in self._steps.values() for rows in steps)])  # (steps, 6)
        costs = _fit(seen)
        mixed = self._steps.get((True, True))
        caution = 1.0
        if mixed:
            estimated = np.quantile(np.array(mixed) @ costs, 1 - _CARE)  # over measured: low where a step was slow
            caution = min(max(1.0, 1 / max(float(estimated), 1 / _MOST_CAUTION)), _MOST_CAUTION)
        return Estimate(tuple(costs.tolist()), caution)


def _fit(seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Costs, none negative, for which seen @ costs is near 1: least squares, without those that would be negative.

    What has never been seen, or can't be told apart, is left at as little as explains the rest.
    """
    scale = np.sqrt((seen**2).sum(axis=0))
    scale[scale == 0] = 1.0
    unit = seen / scale  # so that all columns weigh alike
    gram, moment = unit.T @ unit + 1e-6 * np.eye(len(scale)), unit.sum(axis=0)
    kept = list(range(len(scale)))
    while True:
        part = np.linalg.solve(gram[np.ix_(kept, kept)], moment[kept])
        lowest = int(part.argmin())
        if part[lowest] >= 0:
            costs: NDArray[np.float64] = np.zeros(len(scale))
            costs[kept] = part / scale[kept]
            return costs
        del kept[lowest]
