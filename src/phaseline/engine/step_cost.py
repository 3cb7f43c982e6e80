"""What a step costs, learnt from the steps that ran. Seconds are given, never taken: no clock is needed to test it."""

import math
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from phaseline.program.cost import step_cost
from phaseline.program.ir import Program
from phaseline.program.ops import Attend
from phaseline.program.ops.base import Span, Work
from phaseline.program.step import Step

_REMEMBERED = 64  # steps of each kind
_PRIOR_ROW_S = 0.1  # what a prefill row costs before anything is known: far more than it will
_CARE = 0.97  # quantile of the mixed steps that a cautious estimate covers
_MOST_CAUTION = 4.0  # however noisy the machine is, an estimate is not raised by more than this factor
_FEW = 16  # mixed steps that do not yet show their noise: others that read prompts are looked at too
_LEAP = 4.0  # times the work of the largest chunk that was seen beside streams: an estimate of more is not trusted

Rows = tuple[float, ...]


@dataclass(frozen=True)
class Reach:
    """How far back a program's rows read, and what that weighs.

    `shares`: of the FLOPs of its attention, by window (None: all positions before). `pair`: FLOPs of a pair of
    positions over those of a row by itself. What carries a state instead costs a row the same at any depth.
    """

    shares: tuple[tuple[int | None, float], ...] = ((None, 1.0),)
    pair: float = 0.0

    @classmethod
    def of(cls, program: Program) -> "Reach":
        """From the costs that the program's operations state: a second position is what one pair more costs."""
        one, two = Work([Span(0, 1, 0)]), Work([Span(1, 1, 0)])
        pairs: Counter[int | None] = Counter()
        for op in program.ops:
            pairs[op.window if isinstance(op, Attend) else None] += op.cost(two).flops - op.cost(one).flops  # type: ignore[assignment]
        total = pairs.total()
        shares = tuple((window, flops / total) for window, flops in pairs.items() if flops)
        return cls(shares, total / step_cost(program, one).flops)

    def pairs(self, start: int, rows: int) -> float:
        """Pairs of positions that rows from `start` on attend over, within windows, a mean over all attention."""
        span = Span(start, rows, 0)
        return sum(share * span.pairs(window) for window, share in self.shares)

    def chunk(self, start: int, rows: int, wanted: int = 0) -> Rows:
        """A prefill chunk's part of `step_rows`."""
        pairs = self.pairs(start, rows)
        return 0.0, 0.0, 0.0, rows + self.pair * pairs, float(wanted), pairs


def step_rows(step: Step, reach: Reach) -> Rows:
    """What a step's time depends on: 1, decode rows, the positions they read, the work of prefill rows, those of them
    that get logits, and the pairs of positions that they attend over.

    Work is rows, and pairs as many as weigh the same: what pairs cost beyond that is learnt when there are many. A
    segment of one row is decode, whoever asked for it.
    """
    parts: list[Rows] = [(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)]
    for segment in step.segments:
        start, count = segment.start, len(segment.tokens)
        if count == 1:
            parts.append((0.0, 1.0, reach.pairs(start, 1), 0.0, 0.0, 0.0))
        else:
            parts.append(reach.chunk(start, count, segment.wanted))
    return tuple(map(sum, zip(*parts, strict=True)))


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step, linear in `step_rows`, none of whose costs is negative; raised by `caution` for its noise.

    `trusted`: the work up to which the cost of chunks beside streams can be told from those that were seen.
    """

    costs: Rows
    caution: float
    reach: Reach = field(default_factory=Reach)
    trusted: float = math.inf

    def seconds(self, rows: Rows) -> float:
        """Seconds that a step is expected to stay below."""
        return self.caution * math.fsum(cost * amount for cost, amount in zip(self.costs, rows, strict=True))

    def most_rows(self, seconds: float, start: int, most: int, scored: bool = False) -> int:
        """Most prefill rows, up to `most`, of a prompt read up to `start`, that are trusted to add no more than so many
        seconds to a step."""

        def too_many(rows: int) -> bool:
            chunk = self.reach.chunk(start, rows, rows * scored)
            return chunk[3] > self.trusted or self.seconds(chunk) > seconds

        return bisect_left(range(1, most + 1), True, key=too_many) if seconds > 0 else 0

    def beside(self, chunk: Rows) -> "Estimate":
        """The same for a step that has this chunk already."""
        return replace(self, trusted=max(0.0, self.trusted - chunk[3]))


class StepCost:
    """Remembers the last steps of each kind (decode only, prefill only, mixed), and fits their cost when asked.

    The errors that the fit makes least are relative ones: short steps count like long ones, and a step that was held
    up hardly counts, since no estimate is further off than all of it.
    """

    def __init__(self, reach: Reach | None = None) -> None:
        self.reach = Reach() if reach is None else reach
        self._steps: dict[tuple[bool, bool], deque[Rows]] = {}  # each divided by the seconds it took
        self._works: deque[float] = deque(maxlen=_REMEMBERED)  # of the last mixed steps
        self._unread: list[tuple[Step, float]] = []  # many are read at once: between two steps that takes far longer

    def observe(self, step: Step, seconds: float) -> None:
        """A step took so many seconds."""
        self._unread.append((step, seconds))
        if len(self._unread) >= _REMEMBERED:
            self._read()

    def _read(self) -> None:
        for step, seconds in self._unread:
            rows = step_rows(step, self.reach)
            kind = bool(rows[1]), bool(rows[3])
            if seconds > 0:
                steps = self._steps.setdefault(kind, deque(maxlen=_REMEMBERED))
                steps.append(tuple(amount / seconds for amount in rows))
                if all(kind):  # others, few, alike and large, tell a chunk's cost from a step's too badly to leap
                    self._works.append(rows[3])
        self._unread.clear()

    def estimate(self) -> Estimate:
        """The cost as far as it is known. Before anything is, a prefill row costs far more than it will."""
        self._read()
        prior = (0.0, 0.0, 0.0, 1 / _PRIOR_ROW_S, 0.0, 0.0)  # a step of one row took that long
        seen = np.array([prior, *(rows for steps in self._steps.values() for rows in steps)])  # (steps, 6)
        costs = _fit(seen)
        known = list(self._steps.get((True, True), ()))
        if len(known) < _FEW:
            known += self._steps.get((False, True), ())
        caution = 1.0
        if known:
            estimated = np.quantile(np.array(known) @ costs, 1 - _CARE)  # over measured: low where a step was slow
            caution = min(max(1.0, 1 / max(float(estimated), 1 / _MOST_CAUTION)), _MOST_CAUTION)
        return Estimate(tuple(costs.tolist()), caution, self.reach, _LEAP * max(self._works, default=0.0))


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
