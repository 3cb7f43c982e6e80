"""Rows for other tools: the metrics of each request as JSONL or CSV, and rates as llama-bench prints them."""

import csv
import io
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from phaseline.errors import PhaselineError
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.records import to_json
from phaseline.lab.summary import Objectives
from phaseline.lab.summary_checks import trace_flags
from phaseline.lab.trace import Trace
from phaseline.lab.workload import Asked


def request_rows(
    traces: Sequence[Trace], asked: Sequence[Asked] | None = None, objectives: Objectives | None = None
) -> list[dict[str, Any]]:
    """One row for each trace, in order, all with the same keys. Milliseconds; due and sent after the run's first."""
    start = min(
        (trace.sent_ns if trace.due_ns is None else min(trace.due_ns, trace.sent_ns) for trace in traces), default=0
    )
    wanted = [None] * len(traces) if asked is None else [one.max_tokens for one in asked]
    rows = []
    for number, (trace, max_tokens) in enumerate(zip(traces, wanted, strict=True)):
        one = trace_metrics(trace)
        seconds = {
            "due": None if trace.due_ns is None else (trace.due_ns - start) / 10**9,
            "sent": (trace.sent_ns - start) / 10**9,
            **{name: one[name] for name in ("ttft", "ttft_from_due", "ttfr", "tpot", "worst_gap", "stream_end")},
            "e2el": one.e2e,
        }
        rows.append(
            {
                "request": number,
                **{f"{name}_ms": None if value is None else value * 1000 for name, value in seconds.items()},
                "prompt_tokens": trace.prompt_tokens,
                "cached_tokens": trace.cached_tokens,
                "output_tokens": one.tokens,
                "max_tokens": max_tokens,
                "finish_reason": trace.finish_reason,
                "error": trace.error,
                "flags": " ".join(trace_flags(trace, max_tokens)),
                "slo_met": None if objectives is None else objectives.met(one),
                "gaps_ms": [gap * 1000 for gap in one.gaps],
                "itl_ms": None if one.itl is None else [sample * 1000 for sample in one.itl],
                "itl_convention": one.itl_convention,
            }
        )
    return rows


def to_jsonl(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line of strict JSON for each row."""
    return "".join(to_json(row) + "\n" for row in rows)


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and a line for each row, without the columns that hold lists; null is an empty cell."""
    text = io.StringIO()
    columns = [key for key in rows[0] if key not in ("gaps_ms", "itl_ms", "itl_convention")] if rows else []
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def llama_bench_row(seconds: Sequence[float], n_prompt: int, n_gen: int, n_depth: int = 0) -> dict[str, Any]:
    """Repeated runs of one test as llama-bench has them: mean and sample deviation of tokens per second.

    Each run took `seconds` for `n_prompt` tokens read or `n_gen` generated (or both) after `n_depth` in the context.
    One run has no deviation: null. Raises PhaselineError where there is no run or no time.
    """
    if not seconds or not all(second > 0 for second in seconds):
        raise PhaselineError("a llama-bench row needs at least one run, and each must have taken time")
    rates = [(n_prompt + n_gen) / second for second in seconds]
    return {
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "n_depth": n_depth,
        "avg_ts": fmean(rates),
        "stddev_ts": stdev(rates) if len(rates) > 1 else None,
    }
