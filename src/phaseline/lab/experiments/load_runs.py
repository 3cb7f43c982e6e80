"""How requests are paced, and a run of them as it was."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from phaseline.errors import RequestError
from phaseline.lab.systems.base import Ask
from phaseline.lab.trace import Trace
from phaseline.lab.workload import Asked, Ramp, arrival_times, asked


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
        cap = f"{self.concurrency} streams" if self.concurrency else ""
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
        """When `count` requests are due (seconds); None in a closed loop. Raises RequestError if the log has no times."""
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
