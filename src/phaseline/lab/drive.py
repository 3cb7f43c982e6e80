"""The only clock of the lab: runs a workload on a system and stamps what happens.

`drive` steps an engine in this process, with nothing between the engine and the clock. `drive_streams` serves any
system, over a network too: open and closed loops, many streams at once.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from phaseline.lab.systems.base import Ask, StreamFault, StreamSystem, System
from phaseline.lab.trace import Event, Trace
from phaseline.lab.workload import Due, Workload

TEXT = "text"


@dataclass(frozen=True, slots=True)
class Job:
    """One stream of a workload: a prompt and the number of tokens to generate."""

    prompt: Sequence[int]
    max_tokens: int


def drive(system: System, jobs: Sequence[Job]) -> list[Trace]:
    """Start all jobs at once and follow them to their ends; one trace per job, in order.

    If interrupted, the streams are cancelled and the exception goes on.
    """
    sent: list[int] = []
    ends = [0] * len(jobs)
    events: list[list[Event]] = [[] for _ in jobs]
    live = set(range(len(jobs)))
    try:
        for stream, job in enumerate(jobs):
            sent.append(time.monotonic_ns())
            system.start(stream, job.prompt, job.max_tokens)
        while live:
            arrivals = system.poll()
            now = time.monotonic_ns()
            for a in arrivals:
                if a.tokens:
                    events[a.stream].append(Event(now, TEXT, a.tokens))
                if a.last:
                    ends[a.stream] = now
                    live.discard(a.stream)
    finally:
        for stream in live:
            system.cancel(stream)
    return [
        Trace(sent_ns=s, end_ns=e, events=tuple(ev), prompt_tokens=len(j.prompt))
        for s, e, ev, j in zip(sent, ends, events, jobs, strict=True)
    ]


def timed(work: Callable[[], object]) -> float:
    """Seconds that something takes: a step run beneath the engine, which no stream sees."""
    start = time.monotonic_ns()
    work()
    return (time.monotonic_ns() - start) / 1e9


async def follow(system: StreamSystem, ask: Ask, due_ns: int | None = None) -> Trace:
    """Ask for one stream and follow it to its end. A fault is part of the trace; what came before it is kept."""
    events: list[Event] = []
    facts: dict[str, Any] = {}
    error: str | None = None
    sent = time.monotonic_ns()
    try:
        async with aclosing(system.generate(ask)) as stream:
            async for pieces in stream:
                now = time.monotonic_ns()  # before anything else is done with what arrived
                for piece in pieces:
                    events.append(Event(now, piece.channel, piece.tokens))
                    facts.update(piece.facts)
    except StreamFault as fault:
        error = str(fault)
    return Trace(sent, time.monotonic_ns(), tuple(events), due_ns, error, **_known(facts))


async def drive_streams(
    system: StreamSystem,
    workload: Workload,
    on_end: Callable[[int, Trace], None] = lambda index, trace: None,
) -> list[Trace]:
    """Run a workload, warm-ups first; one trace per ask, in order.

    In an open loop each ask is sent when it is due, or late if the workload's cap on streams holds it back: the trace
    tells both. In a closed loop the next is sent when one has ended. `on_end` is given every trace as it ends, so that
    whoever is interrupted keeps what was measured; the streams that still run are then cancelled.
    """
    for ask in workload.warmups:
        await follow(system, ask)
    traces: list[Trace | None] = [None] * len(workload)
    start = time.monotonic_ns()

    async def serve(index: int, due: Due) -> None:
        due_ns = None if due.at_s is None else start + round(due.at_s * 1e9)
        trace = traces[index] = await follow(system, due.ask, due_ns)
        on_end(index, trace)

    async def work(line: Iterator[tuple[int, Due]]) -> None:
        for index, due in line:  # the workers share one line
            await _until(start, due.at_s)
            await serve(index, due)

    async with asyncio.TaskGroup() as group:
        if workload.max_concurrency is not None:
            line = iter(enumerate(workload))
            for _ in range(min(workload.max_concurrency, len(workload))):
                group.create_task(work(line))
        else:
            for index, due in enumerate(workload):
                await _until(start, due.at_s)
                group.create_task(serve(index, due))
    return [trace for trace in traces if trace is not None]


async def _until(start_ns: int, at_s: float | None) -> None:
    if at_s is not None:
        await asyncio.sleep(max(0.0, at_s - (time.monotonic_ns() - start_ns) / 1e9))


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    """What a trace holds of the facts that a system reported."""
    names = ("prompt_tokens", "cached_tokens", "output_tokens", "finish_reason", "timings")
    return {name: facts[name] for name in names if facts.get(name) is not None}
