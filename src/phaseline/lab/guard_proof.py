"""Whether the guard does its work here: nothing is injected, then a slowdown into each phase, and it is watched."""

from collections.abc import Callable, Mapping
from typing import Any

from phaseline.errors import PhaselineError
from phaseline.lab.contenders import PHASES, Contender
from phaseline.lab.experiments.base import Progress
from phaseline.lab.guard import Check, Replicates, Work
from phaseline.lab.guard_stats import Rules

_NOTHING = "nothing"


class Proof:
    """Whole checks of one thing against itself slowed down. An experiment; `status` as that of a check.

    `make` opens the thing anew, slowed by the given shares of its phases.
    """

    name = "guard-prove"

    def __init__(
        self,
        make: Callable[[Mapping[str, float]], Contender],
        work: Work,
        floors: Mapping[str, float],
        rules: Rules,
        *,
        slowdown: float,
        trials: int = 1,
    ) -> None:
        self._make, self._work, self._floors, self._rules = make, work, floors, rules
        self._slowdown, self._trials = slowdown, trials
        self._rows: list[dict[str, Any]] = []
        self._checks: list[dict[str, Any]] = []

    async def run(self, progress: Progress) -> None:
        for trial in range(self._trials):
            for injected in (_NOTHING, *PHASES):
                await self._try(trial, injected, progress)

    async def _try(self, trial: int, injected: str, progress: Progress) -> None:
        done, total = len(self._rows), self._trials * (1 + len(PHASES))

        def tell(made: int, wanted: int, state: str) -> None:
            progress(done, total, f"slowed: {injected}; replicate {made + 1}; {state}")

        slow = {} if injected == _NOTHING else {injected: self._slowdown}
        contenders: dict[str, Contender] = {}
        try:
            contenders["base"] = self._make({})
            contenders["head"] = self._make(slow)
            # No prompt is used twice, by whichever trial: a server would know it.
            work = Work(
                **{name: getattr(self._work, name) for name in Work.__slots__} | {"seed": self._work.seed + done}
            )
            check = Check(Replicates(contenders, work), self._floors, self._rules)
            await check.run(tell)
        finally:
            for contender in contenders.values():
                await contender.close()
        record = check.record()
        if check.status == Check.DIFFERENT:
            raise PhaselineError(
                f"the guard cannot be proved on what answers differently each time: {record['finding']}"
            )
        self._checks.append(record)
        wanted = [] if injected == _NOTHING else [injected]
        self._rows.append(
            {
                "trial": trial,
                "injected": injected,
                "by": self._slowdown if wanted else 0.0,
                "status": check.status,
                "slower": check.slower(),
                "as_expected": check.status == (Check.SLOWER if wanted else Check.PASSED) and check.slower() == wanted,
                "replicates": len(record["replicates"]),
                "losses": {row["phase"]: row["loss"] for row in record["results"]},
            }
        )

    @property
    def status(self) -> int:
        """Passed if the guard did as it should in every trial; slower if it ever failed to; else unknown."""
        if not self._rows:
            return Check.UNKNOWN
        if all(row["as_expected"] for row in self._rows):
            return Check.PASSED
        wrong = [row for row in self._rows if not row["as_expected"] and row["status"] != Check.UNKNOWN]
        return Check.SLOWER if wrong else Check.UNKNOWN

    def record(self) -> dict[str, Any]:
        return {
            "finding": self._finding(),
            "status": self.status,
            "results": self._rows,
            "rates": self._rates(),
            "checks": self._checks,
        }

    def _rates(self) -> list[dict[str, Any]]:
        """By what was injected: in how many trials the guard did what."""
        rates = []
        for injected in (_NOTHING, *PHASES):
            rows = [row for row in self._rows if row["injected"] == injected]
            rates.append(
                {
                    "injected": injected,
                    "trials": len(rows),
                    "refused": sum(row["status"] == Check.SLOWER for row in rows),
                    "undecided": sum(row["status"] == Check.UNKNOWN for row in rows),
                    "as_expected": sum(row["as_expected"] for row in rows),
                }
            )
        return rates

    def _finding(self) -> str:
        told = []
        for rate in self._rates():
            what = f"of {rate['trials']} checks with {rate['injected']} slowed by {self._slowdown:.0%}"
            if rate["injected"] == _NOTHING:
                what = f"of {rate['trials']} checks with nothing slowed"
            undecided = f" ({rate['undecided']} undecided)" if rate["undecided"] else ""
            told.append(f"{what}, {rate['refused']} were refused{undecided}")
        works = {
            Check.PASSED: "the guard works here",
            Check.SLOWER: "THE GUARD FAILED HERE",
            Check.UNKNOWN: "this machine is too noisy for the guard: it could not decide each time",
        }
        return f"{works[self.status]}: {'; '.join(told)}"
