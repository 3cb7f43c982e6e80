"""What limits some work: a claim that ceilings and interventions bear together, or "unknown". Pure functions.

Each resource allows a least time (`regime.Bounds`). An intervention changes what the resources would need; the time
then follows one of them. A limit is claimed where its bound explains at least half of the time and no intervention
contradicts it. It is called inferred where no intervention tells it from the next resource.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phaseline.bounds import NEAR, Bounds

_CLOSE = math.log(1.35)  # a time follows a resource if it changes like its bound, within this factor
_NOISY = 0.1  # median deviation as a share of the time: more of it is told
_NAMES = {"compute": "arithmetic", "bandwidth": "reading", "launch": "launching"}
LIMITS = tuple(_NAMES)


@dataclass(frozen=True, slots=True)
class Timed:
    """Some work that was timed: its median, the spread of that as a share of it, and its bounds."""

    seconds: float
    bounds: Bounds
    noise: float = 0.0

    def share(self, limit: str) -> float:
        """Of the time, what a resource's bound explains."""
        return bound(self.bounds, limit) / self.seconds


@dataclass(frozen=True, slots=True)
class Intervention:
    """The same work with something changed. `arithmetic`: the same kind of it; if not, times say nothing of compute."""

    change: str
    before: Timed
    after: Timed
    arithmetic: bool = True

    @property
    def factor(self) -> float:
        """Of the time."""
        return self.after.seconds / self.before.seconds

    def expected(self, limit: str) -> float | None:
        """The factor if that resource were the limit; None where this cannot be said."""
        before, after = bound(self.before.bounds, limit), bound(self.after.bounds, limit)
        if not before or not after or (limit == "compute" and not self.arithmetic):
            return None
        return after / before

    def contradicts(self, limit: str) -> bool:
        """The time changed otherwise than that resource's bound, beyond noise."""
        expected = self.expected(limit)
        if expected is None:
            return False
        tolerance = max(_CLOSE, 2 * (self.before.noise + self.after.noise))
        return abs(math.log(self.factor / expected)) > tolerance

    def describe(self) -> str:
        """As evidence: what happened, and what each resource would have asked for."""
        told = ((name, self.expected(limit)) for limit, name in _NAMES.items())
        asked = ", ".join(f"{name} x{factor:.2f}" for name, factor in told if factor is not None)
        other = "" if self.arithmetic else " (other arithmetic, so nothing is said of it)"
        expected = f"{asked} would be in proportion{other}" if asked else "no bound would change"
        return f"{self.change}: time x{self.factor:.2f}; {expected}"


@dataclass(frozen=True, slots=True)
class Claim:
    """limit: launch, bandwidth, compute, capacity or unknown. evidence: sentences.

    fraction: of the time, what the tightest bound explains; None where no bound is known. inferred: from a signature or
    from ceilings alone.
    """

    limit: str
    fraction: float | None
    inferred: bool
    evidence: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Plain data for a record."""
        return {
            "limit": self.limit,
            "fraction": self.fraction,
            "inferred": self.inferred,
            "evidence": list(self.evidence),
        }

    @property
    def label(self) -> str:
        """For a table."""
        return f"{self.limit} (inferred)" if self.inferred else self.limit


def bound(bounds: Bounds, limit: str) -> float:
    """Least seconds by one resource."""
    return {"compute": bounds.compute, "bandwidth": bounds.bandwidth, "launch": bounds.launch}[limit]


def judge(work: Timed, interventions: Sequence[Intervention] = ()) -> Claim:
    """Name the limit of some work."""
    tightest = max(LIMITS, key=work.share)
    fraction = work.share(tightest)
    shares = ", ".join(f"{name} {work.share(limit):.0%}" for limit, name in _NAMES.items())
    evidence = [f"of the time, the ceilings explain: {shares}", *(one.describe() for one in interventions)]
    if work.noise > _NOISY:
        evidence.append(
            f"its time varies by {work.noise:.0%} between rounds, while ceilings are the best of all rounds"
        )
    if fraction < NEAR:
        evidence.append(f"no resource explains {NEAR:.0%} of it")
        return Claim("unknown", fraction, False, tuple(evidence))
    against = [one.change for one in interventions if one.contradicts(tightest)]
    if against:
        evidence.append(f"{tightest} comes nearest, but is contradicted by: {'; '.join(against)}")
        return Claim("unknown", fraction, False, tuple(evidence))
    rivals = [
        limit
        for limit in LIMITS
        if limit != tightest
        and not (limit == "launch" and work.share(limit) < NEAR)  # the empty plan has refuted it
        and bound(work.bounds, limit)
        and not any(one.contradicts(limit) for one in interventions)
    ]
    if rivals:
        evidence.append(f"nothing that was changed tells {tightest} from {' and '.join(rivals)}")
    return Claim(tightest, fraction, bool(rivals), tuple(evidence))
