"""What the raw facts of a request mean, as pure functions. Times are seconds; null (None) is never written as 0."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.trace import Trace

ITL_CONVENTION = "per token: a gap that brought k tokens is k samples of gap / k; gaps of unknown k give none"


class Metrics(Protocol):
    """Anything that answers metrics["ttft"]: a `RequestMetrics` or the mapping it was stored as."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """One request, in seconds. Readable as attributes or by key; dict(metrics) is its JSON form.

    ttft       first token - request; prefill and one selection, with no decode step in it
    gaps       differences between consecutive arrivals, raw
    tpot       (last - first) / (tokens - tokens of the first arrival); None for an answer of one arrival
    e2e        last token - request
    worst_gap  max(gaps), never smoothed

    A request that failed or brought no token has no gaps, and None elsewhere.
    """

    ttft: float | None
    gaps: list[float]
    tpot: float | None
    e2e: float | None
    worst_gap: float | None

    def keys(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(self))

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)


@dataclass(frozen=True, slots=True)
class TraceMetrics(RequestMetrics):
    """`RequestMetrics` of a trace, `request` being the moment it was sent, and what only a trace can tell.

    ttft_from_due         first token - due: the headline in an open loop, else a late client hides queueing
    ttfr                  first byte of any kind - sent
    stream_end            end of the stream - sent
    itl                   samples per token, see itl_convention; None if no gap's count is known
    uncounted_gaps        gaps that gave no ITL sample because their count is unknown
    tokens                output tokens: counted in the events, else as the server reports them
    first_tokens          tokens of the first arrival (k1 of TPOT)
    first_tokens_assumed  k1 was unknown and taken as 1
    """

    ttft_from_due: float | None
    ttfr: float | None
    stream_end: float | None
    itl: list[float] | None
    uncounted_gaps: int
    tokens: int | None
    first_tokens: int | None
    first_tokens_assumed: bool
    itl_convention: str = ITL_CONVENTION


class PhaseShare(NamedTuple):
    """Shares of the end-to-end time; they add up to 1, or are both None."""

    prefill: float | None
    decode: float | None


def request_metrics(request_time: float, token_times: Sequence[float]) -> RequestMetrics:
    """Metrics of a request sent at `request_time` whose tokens arrived one by one at `token_times` (seconds).

    No token at all is a failed request. Raises PhaselineError if the times are not in order.
    """
    times = [request_time, *token_times]
    if not all(earlier <= later for earlier, later in pairwise(times)):
        raise PhaselineError("token times must follow the request and each other in order of time")
    return _derive(request_time, times[1:], tokens=len(times) - 1, first_tokens=1, per_second=1)


def trace_metrics(trace: Trace) -> TraceMetrics:
    """Metrics of one trace; a failed one (`trace.error`) has None throughout, even if tokens arrived before."""
    arrivals = [event for event in trace.events if event.bears_tokens] if trace.error is None else []
    counts = [event.tokens for event in arrivals]
    known = [count for count in counts if count is not None]
    tokens = sum(known) if len(known) == len(counts) else trace.output_tokens
    first_tokens = (counts[0] or 1) if counts else None

    base = _derive(trace.sent_ns, [event.t_ns for event in arrivals], tokens, first_tokens, per_second=10**9)
    samples = [gap / count for gap, count in zip(base.gaps, counts[1:], strict=False) if count for _ in range(count)]
    uncounted = counts[1:].count(None)
    late = None if trace.due_ns is None else (trace.sent_ns - trace.due_ns) / 10**9
    failed = trace.error is not None
    return TraceMetrics(
        **dict(base),
        ttft_from_due=None if base.ttft is None or late is None else base.ttft + late,
        ttfr=None if failed or not trace.events else (trace.events[0].t_ns - trace.sent_ns) / 10**9,
        stream_end=None if failed else (trace.end_ns - trace.sent_ns) / 10**9,
        itl=samples if samples else None,
        uncounted_gaps=uncounted,
        tokens=tokens if arrivals else None,
        first_tokens=first_tokens,
        first_tokens_assumed=bool(counts) and counts[0] is None,
    )


def goodput(metrics: Iterable[Metrics], ttft_slo: float | None = None, tpot_slo: float | None = None) -> float | None:
    """Fraction of the attempted requests that met every stated objective (seconds, met if not above).

    A failed request misses. The TPOT objective does not apply to an answer of one arrival, which then counts by its
    TTFT alone; a TPOT that is unknown for lack of token counts is not met. None if nothing was attempted.
    """

    def met(one: Metrics) -> bool:
        if one["ttft"] is None:
            return False
        in_time = ttft_slo is None or one["ttft"] <= ttft_slo
        if tpot_slo is None:
            return in_time
        steady = not one["gaps"] if one["tpot"] is None else one["tpot"] <= tpot_slo
        return in_time and steady

    outcomes = [met(one) for one in metrics]
    return sum(outcomes) / len(outcomes) if outcomes else None


def phase_share(metrics: Metrics) -> PhaseShare:
    """TTFT / end-to-end, and the rest. Queueing is inside the first share."""
    if not metrics["e2e"]:
        return PhaseShare(None, None)
    prefill = metrics["ttft"] / metrics["e2e"]
    return PhaseShare(prefill, 1 - prefill)


def chunk_schedule(prompt: int, chunk: int) -> list[tuple[int, int]]:
    """The (start, end) pieces in which a prompt of `prompt` tokens is read, at most `chunk` at a time."""
    if prompt < 0 or chunk < 1:
        raise RequestError(f"cannot read {prompt} tokens in chunks of {chunk}: a chunk has at least 1 token")
    return [(start, min(start + chunk, prompt)) for start in range(0, prompt, chunk)]


def _derive(
    sent: float, times: Sequence[float], tokens: int | None, first_tokens: int | None, per_second: int
) -> RequestMetrics:
    """The formulas shared by both clocks. Differences come before division: nanoseconds keep every digit."""
    if not times:
        return RequestMetrics(ttft=None, gaps=[], tpot=None, e2e=None, worst_gap=None)
    gaps = [(later - earlier) / per_second for earlier, later in pairwise(times)]
    after_first = (tokens or 0) - (first_tokens or 1)
    return RequestMetrics(
        ttft=(times[0] - sent) / per_second,
        gaps=gaps,
        tpot=(times[-1] - times[0]) / per_second / after_first if after_first > 0 else None,
        e2e=(times[-1] - sent) / per_second,
        worst_gap=max(gaps, default=None),
    )
