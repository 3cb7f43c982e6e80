"""The field's summary of a run, from its raw traces. Milliseconds in keys that say so; unknown is null, never 0."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.metrics import ITL_CONVENTION, Metrics, TraceMetrics, goodput, trace_metrics
from phaseline.lab.summary_checks import FLAGS, cache_hits, client_lags, trace_flags
from phaseline.lab.trace import Trace
from phaseline.lab.workload import Asked

P99_SAMPLES = 100  # fewer have no p99
LATE_MS = 10.0  # a client that sends later than this does not keep time
KEPT_RATE = 0.95  # of the requested rate: an achieved rate below it is told


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a request must keep, in seconds; None: not asked for."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    def met(self, metrics: Metrics) -> bool:
        """As in `metrics.goodput`, and end to end: a failed request misses, a TPOT that cannot be does not count."""
        in_phases = goodput([metrics], self.ttft, self.tpot) == 1.0
        return in_phases and (self.e2el is None or metrics["e2e"] <= self.e2el)


def parse_goodput(text: str) -> Objectives:
    """Objectives from "ttft:500 tpot:50 e2el:3000" (milliseconds; any of the three). Raises RequestError."""
    known = [field.name for field in fields(Objectives)]
    found: dict[str, float] = {}
    for part in text.split():
        name, _, value = part.partition(":")
        try:
            milliseconds = float(value)
        except ValueError:
            milliseconds = math.nan
        if name not in known or name in found or not 0 < milliseconds < math.inf:
            raise RequestError(
                f"goodput: {part!r} is not NAME:MILLISECONDS, each once, with NAME of {', '.join(known)}"
            )
        found[name] = milliseconds / 1000
    if not found:
        raise RequestError('goodput: no objective; for example "ttft:500 tpot:50 e2el:3000"')
    return Objectives(**found)


def summarise(
    traces: Sequence[Trace],
    duration: float,
    *,
    asked: Sequence[Asked] | None = None,
    objectives: Objectives | None = None,
    max_concurrency: int | None = None,
    in_process: bool = False,
) -> dict[str, Any]:
    """The summary of a run of `duration` seconds; `asked` says what each trace was asked for.

    A request completed if it brought a token and no error; the others failed. Tokens are those of completed requests.
    TTFT and end to end run from sending, as the field has them; where requests were due, `ttft_from_due` and
    `slo_attainment_from_due` stand beside them and are the headline. Requested and achieved rates are those of the due
    and of the sending times. `notes` tell in words what a reader must not miss. `in_process`: the system runs
    in the client's process, and delays it.
    Raises PhaselineError if the duration is not positive, or if `asked` is not one for each trace.
    """
    if not 0 < duration < math.inf:
        raise PhaselineError(f"a run of {duration} seconds has no rates")
    if asked is not None and len(asked) != len(traces):
        raise PhaselineError(f"{len(traces)} traces of {len(asked)} requests: give those that were run")
    metrics = [trace_metrics(trace) for trace in traces]
    done = [one for one in metrics if one.ttft is not None]
    inputs = _total(trace.prompt_tokens for trace, one in zip(traces, metrics, strict=True) if one.ttft is not None)
    outputs = _total(one.tokens for one in done)
    both = None if inputs is None or outputs is None else inputs + outputs
    lags = client_lags(traces, max_concurrency)
    wanted = [None] * len(traces) if asked is None else [one.max_tokens for one in asked]
    flagged = Counter(flag for trace, most in zip(traces, wanted, strict=True) for flag in trace_flags(trace, most))
    summary: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(traces) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        "output_throughput": None if outputs is None else outputs / duration,
        "total_token_throughput": None if both is None else both / duration,
        **_attainment(traces, metrics, objectives, duration),
        **_latencies(done),
        "itl_convention": ITL_CONVENTION,
        "requested_rate": _rate([trace.due_ns for trace in traces if trace.due_ns is not None]),
        "achieved_rate": _rate([trace.sent_ns for trace in traces]),
        "completed_rate": len(done) / duration,
        **_distribution("client_lag", lags),
        "max_client_lag_ms": _ms(max(lags, default=None)),
        "late_requests": sum(lag * 1000 > LATE_MS for lag in lags),
        "cache": cache_hits(traces, asked),
        "flags": {flag: flagged[flag] for flag in FLAGS},
    }
    errors = Counter(trace.error for trace in traces if trace.error is not None)
    return summary | {"notes": _notes(summary, errors, in_process)}


def _attainment(
    traces: Sequence[Trace], metrics: Sequence[TraceMetrics], objectives: Objectives | None, duration: float
) -> dict[str, Any]:
    keys = ["request_goodput", "slo_attainment", "slo_attainment_from_due", "slo_tpot_not_applicable"]
    if objectives is None or not metrics:
        return dict.fromkeys(keys)
    good = sum(objectives.met(one) for one in metrics)
    due = all(trace.due_ns is not None for trace in traces)
    good_from_due = sum(objectives.met(_from_due(one)) for one in metrics) if due else None
    share_from_due = None if good_from_due is None else good_from_due / len(metrics)
    single = None if objectives.tpot is None else sum(one.ttft is not None and not one.gaps for one in metrics)
    return dict(zip(keys, [good / duration, good / len(metrics), share_from_due, single], strict=True))


def _from_due(one: TraceMetrics) -> Metrics:
    """The metrics that the request has when its waiting for the client counts; a failed one stays a failed one."""
    if one.ttft is None or one.ttft_from_due is None or one.e2e is None:
        return one
    return dict(one) | {"ttft": one.ttft_from_due, "e2e": one.e2e + one.ttft_from_due - one.ttft}


def _latencies(done: Sequence[TraceMetrics]) -> dict[str, float | None]:
    samples: dict[str, list[float | None]] = {
        "ttft": [one.ttft for one in done],
        "ttft_from_due": [one.ttft_from_due for one in done],
        "tpot": [one.tpot for one in done],
        "itl": [sample for one in done for sample in one.itl or []],
        "gap": [gap for one in done for gap in one.gaps],
        "worst_gap": [one.worst_gap for one in done],
        "e2el": [one.e2e for one in done],
    }
    known = {name: [sample for sample in some if sample is not None] for name, some in samples.items()}
    spread = {key: value for name, some in known.items() for key, value in _distribution(name, some).items()}
    return spread | {"max_worst_gap_ms": _ms(max(known["worst_gap"], default=None))}


def _distribution(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """Mean, median and 99th percentile (linear between samples), in milliseconds."""
    mean, median = (float(np.mean(seconds)), float(np.median(seconds))) if seconds else (None, None)
    p99 = float(np.percentile(seconds, 99)) if len(seconds) >= P99_SAMPLES else None
    return {f"mean_{name}_ms": _ms(mean), f"median_{name}_ms": _ms(median), f"p99_{name}_ms": _ms(p99)}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _total(counts: Iterable[int | None]) -> int | None:
    """Their sum; None if one is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _rate(times_ns: Sequence[int]) -> float | None:
    """Requests per second between the first and the last; None where that is no time."""
    span = max(times_ns, default=0) - min(times_ns, default=0)
    return (len(times_ns) - 1) / span * 10**9 if span else None


def _notes(summary: dict[str, Any], errors: Counter[str], in_process: bool) -> list[str]:
    attempted = summary["completed"] + summary["failed"]
    notes = [f"{count} of {attempted} requests failed: {error}" for error, count in errors.most_common(3)]
    notes += [f"{count} of {attempted} requests {FLAGS[flag]}" for flag, count in summary["flags"].items() if count]
    asked, kept = summary["requested_rate"], summary["achieved_rate"]
    if asked and kept and kept < KEPT_RATE * asked:
        notes.append(f"{asked:.3g} requests/s were due, {kept:.3g} were sent")
    if summary["late_requests"]:
        worst = f"the worst by {summary['max_client_lag_ms']:.3g} ms"
        late = f"the client sent {summary['late_requests']} of {attempted} requests more than {LATE_MS:g} ms late"
        busy = "it was too busy to keep time, and that is not the server's doing"
        notes.append(f"{late}, {worst}: {'the engine, in this process, was in a step' if in_process else busy}")
    if summary["cache"]["verdict"] in ("reported", "suspected"):
        notes.append(f"prefix cache hits {summary['cache']['verdict']}: {summary['cache']['how']}")
    if summary["slo_tpot_not_applicable"]:
        notes.append(f"{summary['slo_tpot_not_applicable']} answers came at once and have no TPOT: judged without it")
    few = [name for name in ("ttft", "tpot", "itl", "e2el") if summary[f"p99_{name}_ms"] is None]
    if few:
        notes.append(f"no p99 of {', '.join(few)}: it takes {P99_SAMPLES} samples")
    return notes
