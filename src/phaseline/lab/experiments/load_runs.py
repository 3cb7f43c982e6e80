"""How requests are paced, and a run of them as it was."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from phaseline.errors import RequestError
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.stats import median
from phaseline.lab.summary import Objectives, summarise
from phaseline.lab.summary_checks import client_lags
from phaseline.lab.systems.base import Ask
from phaseline.lab.trace import Trace
from phaseline.lab.workload import Asked, Ramp, arrival_times, asked

_LEAST = 6  # completed requests, from which a trend can be told


@dataclass(frozen=True, slots=True)
class Pace:
    """When the requests of a run are sent.

    rate         requests per second, or a ramp; None: at the times of the log. An infinite rate is a closed loop
                 under a concurrency (the next is sent when one has ended), and without one all requests at once
    concurrency  most streams at once
    burstiness   of the gaps, see `arrival_times`
    """

    rate: float | Ramp | None
    concurrency: int | None = None
    burstiness: float = 1.0

    @property
    def closed(self) -> bool:
        return self.rate == math.inf and self.concurrency is not None

    @property
    def label(self) -> str:
        cap = f"{self.concurrency} stream{'s' * (self.concurrency > 1)}" if self.concurrency else ""
        if self.closed:
            return cap
        if isinstance(self.rate, Ramp):
            rate = f"{self.rate.start:g} to {self.rate.end:g} requests/s"
        else:
            rate = "the log's pace" if self.rate is None else f"{self.rate:.4g} requests/s"
        rate = "all at once" if self.rate == math.inf else rate
        return f"{rate}, at most {cap}" if cap else rate

    def at(self, rate: float) -> Self:
        """The same at another rate."""
        return replace(self, rate=rate)

    def due(self, count: int, logged: Sequence[float] | None, seed: int) -> list[float] | None:
        """When `count` requests are due (seconds); None in a closed loop. RequestError if no times were logged."""
        if self.closed:
            return None
        if self.rate is not None:
            return arrival_times(count, self.rate, burstiness=self.burstiness, seed=seed)
        if logged is None:
            raise RequestError("there are no times to replay: give a request rate or a max concurrency")
        return list(logged[:count])

    def facts(self) -> dict[str, Any]:
        """For a record; what is not finite is told in words."""
        told: dict[str, Any] = {"request_rate": self.rate, "burstiness": self.burstiness}
        if isinstance(self.rate, Ramp):
            told["request_rate"] = {"start": self.rate.start, "end": self.rate.end, "duration_s": self.rate.duration_s}
        told = {name: "inf" if value == math.inf else value for name, value in told.items()}
        return told | {"max_concurrency": self.concurrency, "label": self.label}


@dataclass
class Run:
    """One run: its requests, and the traces of those that have ended, by their index."""

    pace: Pace
    asks: Sequence[Ask]
    ended: dict[int, Trace] = field(default_factory=dict)

    @property
    def traces(self) -> list[Trace]:
        return [self.ended[index] for index in sorted(self.ended)]

    @property
    def asked(self) -> list[Asked]:
        return [asked(self.asks[index]) for index in sorted(self.ended)]

    @property
    def duration(self) -> float:
        """Seconds from the first moment that a request was due or sent to the last end; 0 if none has ended."""
        starts = [t.sent_ns if t.due_ns is None else min(t.due_ns, t.sent_ns) for t in self.ended.values()]
        return (max(t.end_ns for t in self.ended.values()) - min(starts)) / 10**9 if starts else 0.0

    def served_rate(self, in_process: bool) -> float | None:
        """Requests per second that the server can be seen to serve: those that were due, unless it falls behind.

        If it serves fewer than are due, the time from being due to the end grows steadily, by due / served - 1 seconds
        a second. That slope is taken between the medians of the first and the last third of the completed requests
        (Tukey's resistant line): a few slow ones do not make it. The client's own delay is not the server's, unless it
        is the server that runs `in_process`. None in a closed loop, and for too few requests.
        """
        traces = sorted(self.ended.values(), key=lambda trace: trace.sent_ns)
        own = [0.0] * len(traces) if in_process else client_lags(traces, self.pace.concurrency)
        spans = [
            (trace.due_ns / 1e9, (trace.end_ns - trace.due_ns) / 1e9 - lag)
            for trace, lag in zip(traces, own, strict=False)
            if trace.due_ns is not None and trace_metrics(trace).ttft is not None
        ]
        if len(spans) < _LEAST:
            return None
        third = len(spans) // 3
        first, last = ([median(one) for one in zip(*part, strict=True)] for part in (spans[:third], spans[-third:]))
        if last[0] <= first[0]:
            return None
        slope = max(0.0, (last[1] - first[1]) / (last[0] - first[0]))
        return (len(spans) - 1) / (spans[-1][0] - spans[0][0]) / (1 + slope)


@dataclass(frozen=True)
class Measured:
    """A run of which at least one request has ended: the field's summary of it, and `Run.served_rate`."""

    run: Run
    summary: dict[str, Any]
    served_rate: float | None


def measured(runs: Sequence[Run], objectives: Objectives | None, in_process: bool) -> list[Measured]:
    """Those of the runs that have anything to tell."""
    return [
        Measured(
            run,
            summarise(
                run.traces,
                run.duration,
                asked=run.asked,
                objectives=objectives,
                max_concurrency=run.pace.concurrency,
                in_process=in_process,
            ),
            run.served_rate(in_process),
        )
        for run in runs
        if run.ended
    ]
