"""Rows for the paces of a load, and what they say of the server: whether it keeps up, and where its knee is."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from phaseline.lab.experiments.load_runs import Measured, Pace, Run
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.stats import bootstrap_interval, median
from phaseline.lab.summary_rows import llama_bench_row

ALONE = Pace(math.inf, 1)
KNEE = 0.9  # of the best throughput seen: the fewest streams that reach it are the knee
KEPT = 0.9  # of the rate at which requests were due: a server that serves fewer falls behind

_MEDIANS = (
    *("requested_rate", "request_throughput", "output_throughput", "total_token_throughput"),
    *("median_ttft_ms", "median_ttft_from_due_ms", "median_tpot_ms", "median_itl_ms", "median_e2el_ms"),
    *("max_worst_gap_ms", "max_client_lag_ms"),
    *("request_goodput", "slo_attainment", "slo_attainment_from_due"),
)
_INTERVALS = ("output_throughput", "median_ttft_ms", "median_ttft_from_due_ms", "median_tpot_ms")


def points(runs: Sequence[Measured]) -> list[dict[str, Any]]:
    """A row for each pace, in order of pace: medians over its runs, and intervals where there are several."""
    rows = []
    for pace in sorted({one.run.pace for one in runs}, key=_order):
        mine = [one for one in runs if one.run.pace == pace]
        known = {name: [one.summary[name] for one in mine if one.summary[name] is not None] for name in _MEDIANS}
        rates = [one.served_rate for one in mine if one.served_rate is not None]
        rows.append(
            {
                "phase": "mixed",
                "streams": pace.concurrency,
                **pace.facts(),
                "requests": sum(len(one.run.ended) for one in mine),
                "completed": sum(one.summary["completed"] for one in mine),
                "failed": sum(one.summary["failed"] for one in mine),
                "seconds": [one.summary["duration"] for one in mine],
                "tok_s": median(known["output_throughput"]) if known["output_throughput"] else None,
                "served_rate": median(rates) if rates else None,
                **{name: median(known[name]) if known[name] else None for name in _MEDIANS},
                "intervals": {name: bootstrap_interval(known[name]) for name in _INTERVALS},
            }
        )
    return rows


def keeps_up(row: Mapping[str, Any]) -> bool | None:
    """Whether requests were served as fast as they were due; None where nothing was due, or it cannot be told."""
    asked, served = row["requested_rate"], row["served_rate"]
    return None if asked is None or served is None else served >= KEPT * asked


def stream_knee(rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(knee, best): the row of the fewest streams that reach KNEE of the best throughput, and that of the best."""
    best = max(rows, key=throughput)
    knee = next(row for row in rows if throughput(row) >= KNEE * throughput(best))
    return knee, best


def rate_knee(rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """(last rate that was kept, as all below it were; first that was not), None where there is no such rate."""
    lost = next((i for i, row in enumerate(rows) if keeps_up(row) is False), len(rows))
    return (rows[lost - 1] if lost else None), (rows[lost] if lost < len(rows) else None)


def llama_bench(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Rows of streams that ran alone, as llama-bench has them, one for each length: reading what no cache held of the
    prompt, at the depth that one did (in the time of TTFT); generating at the depth of the prompt, after the first
    token; and both. Requests that failed, or whose lengths are not known, are left out."""
    tests: dict[tuple[int, int, int], list[float]] = {}  # by tokens read and made, and the depth
    for trace in (trace for run in runs if run.pace == ALONE for trace in run.traces):
        one = trace_metrics(trace)
        if one.ttft is None or one.e2e is None or trace.prompt_tokens is None:
            continue
        depth = trace.cached_tokens or 0
        read = trace.prompt_tokens - depth
        tests.setdefault((read, 0, depth), []).append(one.ttft)
        if one.tpot and one.tokens and one.first_tokens:  # no time passes where all tokens come in one packet
            made = one.tokens - one.first_tokens
            tests.setdefault((0, made, trace.prompt_tokens), []).append(one.tpot * made)
            tests.setdefault((read, one.tokens, depth), []).append(one.e2e)
    return [llama_bench_row(seconds, *lengths) for lengths, seconds in sorted(tests.items(), key=_by_output)]


def throughput(row: Mapping[str, Any]) -> float:
    """Output tokens per second, or requests where no tokens are counted."""
    return float(row["tok_s"] or row["request_throughput"] or 0.0)


def _by_output(test: tuple[tuple[int, int, int], list[float]]) -> tuple[bool, tuple[int, int, int]]:
    return test[0][1] > 0, test[0]


def _order(pace: Pace) -> tuple[float, float]:
    rate = pace.rate if isinstance(pace.rate, float | int) else 0.0
    return rate, pace.concurrency or math.inf
