"""Many requests at once or one after another: runs at one pace, sweeps over paces, and the search for the best rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phaseline.errors import RequestError
from phaseline.lab.drive import drive_streams
from phaseline.lab.experiments.base import Progress
from phaseline.lab.experiments.load_findings import describe_paces, describe_search, load_record
from phaseline.lab.experiments.load_points import ALONE
from phaseline.lab.experiments.load_runs import Pace, Run, measured
from phaseline.lab.experiments.load_source import Source
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.slo import RateFound, RateSearch
from phaseline.lab.stats import interleave, median
from phaseline.lab.summary import Objectives
from phaseline.lab.systems.base import StreamSystem
from phaseline.lab.trace import Trace
from phaseline.lab.workload import Workload

_ALONE = 3  # requests, one after another, from which a search takes the rate that it starts at
_DOUBLINGS = 10  # from there, at most


@dataclass
class Load:
    """Each pace once a round, in a random order; every run asks anew, and only the first is warmed up.

    in_process  the system runs in this process: what delays the client is the system itself
    """

    system: StreamSystem
    source: Source
    paces: Sequence[Pace]
    repeats: int = 1
    warmups: int = 1
    objectives: Objectives | None = None
    in_process: bool = False
    seed: int = 0
    runs: list[Run] = field(default_factory=list, init=False)
    name: str = field(default="load", init=False)

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.warmups < 0 or not self.paces or self.source.requests < 1:
            raise RequestError(
                f"{self.source.requests} requests, {len(self.paces)} paces, {self.repeats} repeats, "
                f"{self.warmups} warm-ups: at least one of each is needed, but for warm-ups"
            )

    async def run(self, progress: Progress) -> None:
        total = len(self.paces) * self.repeats * self.source.requests
        for order in interleave(self.paces, self.repeats, self.seed):
            for pace in order:
                ended = sum(len(run.traces) for run in self.runs)
                await self._make(pace, _counting(progress, ended, total, pace.label))

    def record(self) -> dict[str, Any]:
        runs = measured(self.runs, self.objectives, self.in_process)
        return load_record(runs, describe_paces(runs), self.source.note)

    async def _make(self, pace: Pace, on_end: Callable[[], None], most: int | None = None) -> Run:
        """One run, of which is kept what has ended, even if it is cancelled."""
        number = len(self.runs)
        asks = self.source.asks(number)[:most]
        due = pace.due(len(asks), self.source.times(), self.seed + number)
        run = Run(pace, asks)
        warmups = self.source.warmups(0 if number else self.warmups)

        def keep(index: int, trace: Trace) -> None:
            run.ended[index] = trace
            on_end()

        self.runs.append(run)
        await drive_streams(self.system, Workload(asks, due, pace.concurrency, warmups), keep)
        return run


@dataclass
class LoadSearch(Load):
    """The highest rate that keeps a share `target` of the requests within the objectives, counted from when they were
    due. `paces` holds one, whose rate is searched.

    low   where the search starts; None: half the rate of one stream alone, measured first
    high  never exceeded; None: 1,024 times that
    """

    target: float = 0.9
    low: float | None = None
    high: float | None = None
    budget: int = 40  # runs
    found: RateFound | None = field(default=None, init=False)

    async def run(self, progress: Progress) -> None:
        if self.objectives is None:
            raise RequestError("a search needs objectives to keep: give --goodput")
        low = self.low or await self._alone(progress)
        if low is None:
            return
        high = self.high or low * 2**_DOUBLINGS
        search = RateSearch(self.target, low, high, self.source.requests, budget=self.budget)
        steps = search.steps()
        rate = next(steps)
        while self.found is None:
            ended = sum(len(run.traces) for run in self.runs)
            pace = self.paces[0].at(rate)
            run = await self._make(pace, _counting(progress, ended, self.budget * self.source.requests, pace.label))
            (seen,) = measured([run], self.objectives, self.in_process)
            try:
                rate = steps.send(seen.summary["slo_attainment_from_due"])
            except StopIteration as end:
                self.found = end.value

    def record(self) -> dict[str, Any]:
        runs = measured(self.runs, self.objectives, self.in_process)
        return load_record(runs, describe_search(runs, self.found, self.target), self.source.note)

    async def _alone(self, progress: Progress) -> float | None:
        """Half the rate at which one stream alone is served; None if it is not."""
        run = await self._make(ALONE, _counting(progress, 0, _ALONE, "alone"), _ALONE)
        times = [one.e2e for one in map(trace_metrics, run.traces) if one.e2e]
        return 0.5 / median(times) if times else None


def _counting(progress: Progress, ended: int, total: int, label: str) -> Callable[[], None]:
    """Tells the progress of a run, each time a request of it has ended."""
    count = ended

    def one_more() -> None:
        nonlocal count
        count += 1
        progress(count, total, label)

    progress(ended, total, label)
    return one_more
