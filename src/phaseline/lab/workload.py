"""What is asked of a system and when: a list of asks (`prompts`) and their times. The same seed gives the same."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate

import numpy as np

from phaseline.errors import RequestError
from phaseline.lab.prompts import ARRIVALS, seeded
from phaseline.lab.systems.base import Ask
from phaseline.lab.workload_files import Log


@dataclass(frozen=True, slots=True)
class Due:
    """One request of a workload: when it is due (seconds after the start; None in a closed loop) and what it asks."""

    at_s: float | None
    ask: Ask


@dataclass(frozen=True)
class Workload:
    """What to ask, in order, each at its time; iterating gives a `Due` at a time, made when it is reached.

    due_s            when each is due, seconds after the start, in order; None: a closed loop, each as soon as one ends
    max_concurrency  most streams at once; what is due beyond it waits, and is late. A closed loop needs one
    warmups          asked before, one after the other, and not measured
    """

    asks: Sequence[Ask]
    due_s: Sequence[float] | None = None
    max_concurrency: int | None = None
    warmups: Sequence[Ask] = ()

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise RequestError(f"max concurrency = {self.max_concurrency}: at least 1 stream must run")
        if self.due_s is None:
            if self.max_concurrency is None:
                raise RequestError("a closed loop needs a max concurrency; an open one needs times")
            return
        if len(self.due_s) != len(self.asks):
            raise RequestError(f"{len(self.due_s)} times for {len(self.asks)} requests")
        steps = zip([0.0, *self.due_s], self.due_s, strict=False)
        if not all(earlier <= later < math.inf for earlier, later in steps):
            raise RequestError("the times of a workload must be finite, in order and not negative")

    def __len__(self) -> int:
        return len(self.asks)

    def __iter__(self) -> Iterator[Due]:
        for index in range(len(self)):
            yield Due(None if self.due_s is None else self.due_s[index], self.asks[index])


@dataclass(frozen=True, slots=True)
class Asked:
    """What a summary must know of an ask, without its prompt: equal digests mean equal prompts."""

    max_tokens: int
    prompt_digest: str


def asked(ask: Ask) -> Asked:
    """The facts of an ask that a record keeps."""
    if isinstance(ask.prompt, str):
        digest = blake2b(ask.prompt.encode(), digest_size=12, person=b"text")
    else:
        digest = blake2b(np.asarray(ask.prompt, np.int64).tobytes(), digest_size=12, person=b"ids")
    return Asked(ask.max_tokens, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Ramp:
    """A request rate (per second) that goes from `start` to `end` in a straight line over `duration_s`, and stays."""

    start: float
    end: float
    duration_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.start < math.inf and 0 < self.end < math.inf and 0 < self.duration_s < math.inf):
            raise RequestError(f"{self}: rates and duration must be positive and finite (only start may be 0)")

    def time_of(self, requests: float) -> float:
        """Seconds t until so many requests have come: start t + (end - start) t^2 / (2 duration) of them by then."""
        by_end = (self.start + self.end) / 2 * self.duration_s
        if requests >= by_end:
            return self.duration_s + (requests - by_end) / self.end
        if requests == 0:
            return 0.0
        # the root in the form that neither cancels nor divides by zero when the slope does
        slope = (self.end - self.start) / self.duration_s
        return 2 * requests / (self.start + math.sqrt(max(0.0, self.start**2 + 2 * slope * requests)))


def arrival_times(count: int, rate: float | Ramp, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """When `count` requests are due, in seconds; the first at 0. An infinite rate makes all due at once.

    The gaps follow a gamma distribution of mean 1 / rate whose shape is `burstiness`, as in vLLM's benchmark: 1 is
    a Poisson process, less is burstier, more is steadier, and infinity is a fixed rate. On a ramp the same process
    runs in stretched time. Raises RequestError for a rate or burstiness that is not positive.
    """
    if count < 0 or not burstiness > 0 or (not isinstance(rate, Ramp) and not rate > 0):
        raise RequestError(f"{count} requests at rate {rate}, burstiness {burstiness}: both must be above 0")
    if math.isinf(burstiness):
        ideal = [float(i) for i in range(count)]
    else:
        gaps = seeded(seed, ARRIVALS).gamma(burstiness, 1 / burstiness, max(0, count - 1))
        ideal = [0.0, *np.cumsum(gaps).tolist()][:count]
    times = (rate.time_of(n) if isinstance(rate, Ramp) else n / rate for n in ideal)
    return list(accumulate(times, max))  # rounding must not turn time back


def logged_times(log: Log, speed: float = 1.0) -> list[float]:
    """When a log's requests were made, in seconds, `speed` times as fast. Raises RequestError if it has no times."""
    if not 0 < speed < math.inf:
        raise RequestError(f"speed {speed}: a log is replayed at a positive multiple of its pace")
    times = [one.at_s / speed for one in log.requests if one.at_s is not None]
    if len(times) < len(log.requests):
        raise RequestError("this log has no times: give a request rate or a max concurrency")
    return times
