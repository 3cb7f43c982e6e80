"""Streams that decode, and a long prompt that arrives among them: how that is run, and what it cost each of them."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from phaseline.lab.drive import follow
from phaseline.lab.stats import median
from phaseline.lab.systems.base import Ask, Piece, StreamSystem
from phaseline.lab.trace import META, Trace

STALL = 1.5  # a gap above so many of the victim's median gaps before the arrival is a stall
LEAST_STEP = 4  # tokens that a victim must have before the arrival, for its median gap to be known
_AFTER = 8  # tokens that a victim goes on for when the intruder is done


@dataclass(frozen=True, slots=True)
class Clash:
    """One run: the streams that decoded, and the intruder that arrived among them."""

    victims: tuple[Trace, ...]
    intruder: Trace

    @property
    def errors(self) -> list[str]:
        """Why streams failed, if any did."""
        return [trace.error for trace in (*self.victims, self.intruder) if trace.error is not None]

    def to_dict(self) -> dict[str, Any]:
        return {"victims": [trace.to_dict() for trace in self.victims], "intruder": self.intruder.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Clash":
        """Inverse of `to_dict`. Raises FileFormatError for what is no trace."""
        victims = tuple(Trace.from_dict(trace) for trace in data["victims"])
        return cls(victims, Trace.from_dict(data["intruder"]))


@dataclass(frozen=True, slots=True)
class Toll:
    """What an arrival cost one victim. Gaps are seconds between arrivals of its tokens, at different moments.

    before    gaps since all victims decode, that ended before the intruder was sent
    during    gaps whose middle lies between the intruder's sending and its first token
    stalls    those of `during` above STALL times the median of `before`; None where that is not known
    outlived  the victim still decoded when the intruder's first token came: else `during` is not complete
    """

    before: list[float]
    during: list[float]
    stalls: int | None
    outlived: bool


async def run_clash(system: StreamSystem, victims: Sequence[Ask], intruder: Ask, step: int) -> Clash:
    """Start the victims; when each has `step` tokens, or has ended, send the intruder. When that is done the victims
    soon end, whatever they were asked for."""
    enough = asyncio.Event()
    watched = [_Victim(system, step, enough) for _ in victims]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(follow(one, ask)) for one, ask in zip(watched, victims, strict=True)]
        for one in watched:
            await one.reached.wait()
        trace = await follow(system, intruder)
        enough.set()
    return Clash(tuple(task.result() for task in tasks), trace)


class _Victim:
    """The system as a victim has it: tells when it has reached its step, and ends when it is told that it is enough."""

    def __init__(self, system: StreamSystem, step: int, enough: asyncio.Event) -> None:
        self._system, self._step, self._enough = system, step, enough
        self.name = system.name
        self.reached = asyncio.Event()

    async def generate(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        tokens, more = 0, _AFTER
        try:
            async with aclosing(self._system.generate(ask)) as batches:
                async for batch in batches:
                    arrived = sum(1 if p.tokens is None else p.tokens for p in batch if p.channel != META)
                    tokens += arrived
                    if tokens >= self._step:
                        self.reached.set()
                    more -= arrived if self._enough.is_set() else 0
                    yield batch
                    if more <= 0:
                        return
        finally:
            self.reached.set()

    async def describe(self) -> Mapping[str, Any]:
        return await self._system.describe()

    async def close(self) -> None:
        await self._system.close()


def tolls(clash: Clash) -> list[Toll]:
    """What the arrival cost each victim."""
    times = [ticks(victim) for victim in clash.victims]
    since = max((each[0] for each in times if each), default=0)
    sent, first = clash.intruder.sent_ns, _first_token(clash.intruder)
    return [_toll(each, since, sent, first) for each in times]


def _toll(times: Sequence[int], since: int, sent: int, first: int | None) -> Toll:
    until = sent if first is None else first  # an intruder that failed stood in nobody's way
    before = [(b - a) / 1e9 for a, b in pairwise(times) if a >= since and b <= sent]
    during = [(b - a) / 1e9 for a, b in _gaps_between(times, sent, until)]
    known = before and first is not None
    stalls = sum(gap > STALL * median(before) for gap in during) if known else None
    return Toll(before, during, stalls, outlived=bool(times) and times[-1] >= until)


def timeline(clash: Clash) -> dict[str, Any]:
    """Lanes for a drawing, in seconds since the intruder was sent: the ticks of each stream's tokens, and the blocks in
    which the intruder's prompt was read.

    A block is a gap of the first victim before the intruder's first token; a `stalled` one must have had a chunk in it.
    Seen from outside, this is all that can be known of chunks.
    """
    sent, first = clash.intruder.sent_ns, _first_token(clash.intruder)

    def seconds(moments: Sequence[int]) -> list[float]:
        return [(moment - sent) / 1e9 for moment in moments]

    blocks: list[dict[str, Any]] = []
    if first is not None:
        before = tolls(clash)[0].before
        least = STALL * median(before) * 1e9 if before else None
        for a, b in _gaps_between(ticks(clash.victims[0]), sent, first):
            start, end = seconds([max(a, sent), min(b, first)])
            blocks.append({"start": start, "end": end, "stalled": least is not None and b - a > least})
    lanes = [
        {"name": f"victim {number}", "ticks": seconds(ticks(victim)), "prefill": []}
        for number, victim in enumerate(clash.victims, 1)
    ]
    lanes.append({"name": "intruder", "ticks": seconds(ticks(clash.intruder)), "prefill": blocks})
    return {"lanes": lanes, "first_token_s": None if first is None else (first - sent) / 1e9}


def _gaps_between(times: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
    """The gaps whose middle lies there: streams that get a token by the same step never have it at the same moment."""
    return [(a, b) for a, b in pairwise(times) if 2 * start < a + b < 2 * end]


def ticks(trace: Trace) -> list[int]:
    """The moments (ns) at which tokens arrived; those that arrived together are one."""
    return sorted({event.t_ns for event in trace.events if event.bears_tokens})


def _first_token(trace: Trace) -> int | None:
    return next(iter(ticks(trace)), None) if trace.error is None else None
