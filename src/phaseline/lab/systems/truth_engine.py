"""A simulated engine with chunked prefill, whose timeline is known beforehand. Pure: times are given, never taken.

It runs one step at a time. A step holds one row for each stream that decodes and at most `chunk` prompt tokens of the
others, first come first served; what it yields comes out at its end. So a long prompt's chunks delay every stream.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from phaseline.errors import RequestError

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Costs:
    """The engine's chunk (tokens) and the seconds that it spends."""

    chunk: int
    prompt_s: float  # per prompt token
    decode_s: float  # per step in which some stream decodes
    row_s: float = 0.0  # per stream that decodes
    floor_s: float = 0.0  # the least that a step takes

    def __post_init__(self) -> None:
        if self.chunk < 1 or min(self.prompt_s, self.decode_s, self.row_s, self.floor_s) < 0:
            raise RequestError(f"an engine needs a chunk of at least 1 and costs of at least 0: {self}")

    def step_s(self, prompt_rows: int, decode_rows: int) -> float:
        """Seconds of one step."""
        decode = self.decode_s + self.row_s * decode_rows if decode_rows else 0.0
        return max(self.floor_s, self.prompt_s * prompt_rows + decode)


@dataclass(frozen=True, slots=True)
class Demand:
    """A request: when it comes (seconds), the tokens of its prompt, and those it wants."""

    at: float
    prompt: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Step(Generic[K]):
    """`yields`: the streams that get a token at its end."""

    start: float
    end: float
    prompt_rows: int
    yields: tuple[K, ...]


@dataclass(slots=True)
class _Stream:
    at: float
    unread: int
    unwritten: int


class Simulation(Generic[K]):
    """Plans one step after another; streams may come and go between them."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._streams: dict[K, _Stream] = {}  # in order of arrival

    def admit(self, key: K, demand: Demand) -> None:
        """A stream joins the first step that starts when it has come, or later."""
        if demand.prompt < 1 or demand.tokens < 1:
            raise RequestError(f"a stream reads at least 1 token and writes at least 1: {demand}")
        self._streams[key] = _Stream(demand.at, demand.prompt, demand.tokens)

    def drop(self, key: K) -> None:
        """A stream is given up, if it is not over."""
        self._streams.pop(key, None)

    def step(self, now: float) -> Step[K] | None:
        """The next step: it starts now, or when the next stream comes. None if there is no stream."""
        if not self._streams:
            return None
        start = max(now, min(stream.at for stream in self._streams.values()))
        present = {key: stream for key, stream in self._streams.items() if stream.at <= start}
        decoding = [key for key, stream in present.items() if not stream.unread]
        room = self._costs.chunk
        for stream in present.values():
            read = min(stream.unread, room)
            stream.unread -= read
            room -= read
        ready = [key for key, stream in present.items() if not stream.unread]
        for key in ready:
            self._streams[key].unwritten -= 1
            if not self._streams[key].unwritten:
                del self._streams[key]
        rows = self._costs.chunk - room
        return Step(start, start + self._costs.step_s(rows, len(decoding)), rows, tuple(ready))


def timeline(costs: Costs, demands: Sequence[Demand]) -> list[list[float]]:
    """When each token of each request comes out (seconds), the requests in order of arrival."""
    simulation: Simulation[int] = Simulation(costs)
    for key, demand in enumerate(demands):
        simulation.admit(key, demand)
    times: list[list[float]] = [[] for _ in demands]
    now = 0.0
    while step := simulation.step(now):
        now = step.end
        for key in step.yields:
            times[key].append(now)
    return times
