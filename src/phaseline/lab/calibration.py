"""How true the lab's clock is: streams of a truth server, as their client stamps them against what was really sent.

python -m phaseline.lab.calibration
"""

import asyncio
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from phaseline.lab.drive import follow
from phaseline.lab.records import to_json
from phaseline.lab.systems.base import Ask, StreamFault
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.timeouts import Timeouts
from phaseline.lab.systems.truth import truth_server
from phaseline.lab.systems.truth_script import CHANNELS, Burst, Script, Wire
from phaseline.lab.trace import META, Event, Trace

_ENOUGH_FOR_P99 = 100  # samples
_WARM_UP_S = 0.3


def calibrate(seconds: float = 2.0, streams: int = 4, gap_s: float = 0.02) -> dict[str, Any]:
    """Run some streams at once against a truth server process, and hold their stamps against the server's own.

    `gap_s` is the mean time between a stream's events, which come out for all streams at once, as from a batch.
    counts_exact every event came, in order, in its channel and with its number of tokens
    error_ms     client's stamp - server's, for every event of the exact streams: p50, p99, max; p99 of 100 or more
    request_ms   server's receipt - client's stamp of the request, opening a connection included
    Call it from a thread without a running event loop. Raises StreamFault if a stream fails.
    """
    script = _script(seconds, gap_s, random.Random(0))
    with truth_server(script) as server:
        seen = asyncio.run(_watch(server.url, streams))
        sent = {user: Trace.from_dict(trace) for user, trace in server.sent().items()}
    pairs = [(ours, sent[user]) for user, ours in seen.items()]
    exact = [(ours, theirs) for ours, theirs in pairs if _contents(ours) == _contents(theirs)]
    errors = [
        mine.t_ns - true.t_ns
        for ours, theirs in exact
        for mine, true in zip(_tokens(ours), _tokens(theirs), strict=True)
    ]
    return {
        "streams": streams,
        "gap_ms": gap_s * 1e3,
        "events": len(errors),
        "counts_exact": len(exact) == len(pairs),
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


async def _watch(url: str, streams: int) -> dict[str, Trace]:
    users = [f"stream {n}" for n in range(streams)]
    for timeouts in (Timeouts(total=_WARM_UP_S), Timeouts()):  # what breaks off is forgotten
        system = OpenAISystem(url, "truth", timeouts=timeouts)
        asks = [Ask("one two three", max_tokens=1, options={"user": user}) for user in users]
        traces = await asyncio.gather(*(follow(system, ask) for ask in asks))
        await system.close()
    for trace in traces:
        if trace.error:
            raise StreamFault(trace.error)
    return dict(zip(users, traces, strict=True))


def _tokens(trace: Trace) -> list[Event]:
    return [event for event in trace.events if event.channel != META]


def _contents(trace: Trace) -> list[tuple[str, int | None]]:
    return [(event.channel, event.tokens) for event in _tokens(trace)]


def _spread(nanoseconds: Sequence[int]) -> dict[str, float | None]:
    if not nanoseconds:
        return {"p50": None, "p99": None, "max": None}
    p50, p99, most = np.percentile(nanoseconds, [50, 99, 100]) / 1e6
    return {"p50": float(p50), "p99": float(p99) if len(nanoseconds) >= _ENOUGH_FOR_P99 else None, "max": float(most)}


if __name__ == "__main__":
    print(to_json(calibrate()))
    sys.exit(0)
