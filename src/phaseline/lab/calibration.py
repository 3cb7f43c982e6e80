"""How true the lab's clock is: streams of a truth server, as their client stamps them against what was really sent.

python -m phaseline.lab.calibration
"""

import asyncio
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from phaseline.lab.records import to_json
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.truth import truth_server
from phaseline.lab.systems.truth_script import CHANNELS, Burst, Script, Wire
from phaseline.lab.trace import META, Event, Trace

_ENOUGH_FOR_P99 = 100  # samples
_WARM_UP = 8  # batches of each stream


def calibrate(seconds: float = 2.0, streams: int = 4, gap_s: float = 0.02) -> dict[str, Any]:
    """Run some streams at once against a truth server process, and hold their stamps against the server's own.

    `gap_s` is the mean time between a stream's events, which come out for all streams at once, as from a batch.
    counts_exact every event came, in order, in its channel and with its number of tokens
    error_ms     client's stamp - server's, for every event that bears tokens: p50, p99, max; p99 of 100 or more
    request_ms   server's receipt - client's stamp of the request, opening a connection included
    Call it from a thread without a running event loop. Raises StreamFault if a stream fails.
    """
    script = _script(seconds, gap_s, random.Random(0))
    with truth_server(script) as server:
        seen = asyncio.run(_watch(server.url, streams))
        sent = {user: Trace.from_dict(trace) for user, trace in server.sent().items()}
    pairs = [(seen[user], sent[user]) for user in seen]
    exact = all(_contents(ours) == _contents(theirs) for ours, theirs in pairs)
    errors = [
        mine.t_ns - true.t_ns
        for ours, theirs in pairs
        for mine, true in zip(_tokens(ours), _tokens(theirs), strict=exact)
    ]
    return {
        "streams": streams,
        "gap_ms": gap_s * 1e3,
        "events": len(errors),
        "counts_exact": exact,
        "error_ms": _spread(errors),
        "request_ms": _spread([theirs.sent_ns - ours.sent_ns for ours, theirs in pairs]),
    }


def _script(seconds: float, gap_s: float, rng: random.Random) -> Script:
    bursts: list[Burst] = []
    at = 0.0
    while not bursts or at < seconds:
        at += rng.uniform(0.1, 1.9) * gap_s
        bursts.append(Burst(at, rng.randint(1, 4), rng.choice(CHANNELS)))
    return Script(tuple(bursts), wire=Wire(counts="token_ids"))


async def _watch(url: str, streams: int) -> Mapping[str, Trace]:
    system = OpenAISystem(url, "truth")
    try:
        await asyncio.gather(*(_follow(system, f"warm-up {n}", _WARM_UP) for n in range(streams)))
        users = [f"stream {n}" for n in range(streams)]
        return dict(zip(users, await asyncio.gather(*(_follow(system, user) for user in users)), strict=True))
    finally:
        await system.close()


async def _follow(system: OpenAISystem, user: str, most: int | None = None) -> Trace:
    events: list[Event] = []
    batches = 0
    sent = time.monotonic_ns()
    async with aclosing(system.generate(Ask("one two three", max_tokens=1, options={"user": user}))) as stream:
        async for pieces in stream:
            now = time.monotonic_ns()
            events += [Event(now, piece.channel, piece.tokens) for piece in pieces]
            batches += 1
            if batches == most:
                break
    return Trace(sent, time.monotonic_ns(), tuple(events))


def _tokens(trace: Trace) -> list[Event]:
    return [event for event in trace.events if event.channel != META]


def _contents(trace: Trace) -> list[tuple[str, int | None]]:
    return [(event.channel, event.tokens) for event in _tokens(trace)]


def _spread(nanoseconds: Sequence[int]) -> dict[str, float | None]:
    p50, p99, most = np.percentile(nanoseconds, [50, 99, 100]) / 1e6
    return {"p50": float(p50), "p99": float(p99) if len(nanoseconds) >= _ENOUGH_FOR_P99 else None, "max": float(most)}


if __name__ == "__main__":
    print(to_json(calibrate()))
    sys.exit(0)
