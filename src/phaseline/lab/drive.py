"""The only clock of the lab: runs a workload on a system and stamps what happens."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from phaseline.lab.systems.base import System
from phaseline.lab.trace import Event, Trace

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
