"""What one must know before believing a summary: the client's own lag, answers from a cache, and odd traces."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from phaseline.lab.metrics import trace_metrics
from phaseline.lab.trace import Trace
from phaseline.lab.workload import Asked

FAST_REPEAT = 0.5  # of the first answer's TTFT: a repeat below it looks served from a cache

FLAGS: Mapping[str, str] = {
    "stopped_early": "ended before the requested length",
    "empty": "ended without an error and without a token, and count as failed",
    "missing_usage": "have no output token count, in usage or in events: no TPOT, no totals",
    "missing_prompt_tokens": "have no prompt token count: no input total",
    "miscounted": "have events that count other tokens than the server reports",
    "first_tokens_assumed": "have a TPOT that takes their first event for one token",
    "uncounted_gaps": "have gaps of unknown token count, which give no ITL",
}


def trace_flags(trace: Trace, max_tokens: int | None = None) -> list[str]:
    """Which of FLAGS hold for a trace that was asked for `max_tokens` (None: not known). An error has its own words."""
    if trace.error is not None:
        return []
    one = trace_metrics(trace)
    if one.ttft is None:
        return ["empty"]
    counts = [event.tokens for event in trace.events if event.bears_tokens]
    known = [count for count in counts if count is not None]
    if max_tokens is None:
        early = False
    else:
        early = one.tokens < max_tokens if one.tokens is not None else trace.finish_reason == "stop"
    holds = {
        "stopped_early": early,
        "missing_usage": one.tokens is None,
        "missing_prompt_tokens": trace.prompt_tokens is None,
        "miscounted": len(known) == len(counts) and trace.output_tokens not in (None, sum(known)),
        "first_tokens_assumed": one.first_tokens_assumed and one.tpot is not None,
        "uncounted_gaps": one.uncounted_gaps > 0,
    }
    return [flag for flag, held in holds.items() if held]


def client_lags(traces: Iterable[Trace], max_concurrency: int | None = None) -> list[float]:
    """How late the client sent each request that it could have sent in time, in seconds, in order of sending.

    Late is after it was due and, under a cap, after a stream had ended to make room: waiting for the cap is not the
    client's delay. In a closed loop a request is due when there is room. Negative: sent too soon.
    """
    lags: list[float] = []
    running: list[int] = []  # heap of the ends of the streams in flight
    for trace in sorted(traces, key=lambda trace: trace.sent_ns):
        room = heapq.heappop(running) if len(running) == max_concurrency else None
        ready = [moment for moment in (trace.due_ns, room) if moment is not None]
        if ready:
            lags.append((trace.sent_ns - max(ready)) / 10**9)
        if max_concurrency is not None:
            heapq.heappush(running, trace.end_ns)
    return lags


def cache_hits(traces: Sequence[Trace], asked: Sequence[Asked] | None = None) -> dict[str, Any]:
    """Whether prompts were served from a prefix cache: verdict reported | suspected | none | unknown, and how decided.

    What the server reports comes first. Else prompts that were asked again, after their first answer had begun, are
    compared with it: suspected if at least half of them took less than half of its TTFT.
    """
    cached = [trace.cached_tokens for trace in traces if trace.cached_tokens is not None]
    hits = sum(count > 0 for count in cached)
    ratios = _repeat_ratios(traces, asked) if asked is not None else []
    fast = sum(ratio < FAST_REPEAT for ratio in ratios)
    again = f"{fast} of {len(ratios)} prompts asked again took less than {FAST_REPEAT:g} of their first TTFT"
    if hits:
        verdict, how = "reported", f"the server reports cached tokens for {hits} of {len(traces)} requests"
    elif ratios and 2 * fast >= len(ratios):
        verdict, how = "suspected", again
    elif ratios:
        verdict, how = "none", again
    elif len(cached) == len(traces) > 0:
        verdict, how = "none", "the server reports for each request that no token was cached"
    else:
        verdict, how = (
            "unknown",
            "the server does not report cached tokens of each request, and no prompt is known to be asked again",
        )
    total = sum(cached) if cached else None
    return {"verdict": verdict, "how": how, "cached_tokens": total, "hits": hits, "repeats": len(ratios), "fast": fast}


def _repeat_ratios(traces: Sequence[Trace], asked: Sequence[Asked]) -> list[float]:
    """TTFT of each prompt asked again over the TTFT of its first answer."""
    first: dict[str, tuple[float, float]] = {}  # by digest: when its first token came (seconds), and its TTFT
    ratios = []
    for trace, ask in sorted(zip(traces, asked, strict=True), key=lambda pair: pair[0].sent_ns):
        ttft, sent = trace_metrics(trace).ttft, trace.sent_ns / 10**9
        if ttft is None:
            continue
        answered, before = first.setdefault(ask.prompt_digest, (sent + ttft, ttft))
        if sent > answered and before > 0:
            ratios.append(ttft / before)
    return ratios
