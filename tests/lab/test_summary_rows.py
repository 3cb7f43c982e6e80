"""Rows for other tools: one for each request, and llama-bench's figures."""

import csv
import io
import json

import pytest

from phaseline.errors import PhaselineError
from phaseline.lab.metrics import ITL_CONVENTION
from phaseline.lab.summary import Objectives
from phaseline.lab.summary_rows import llama_bench_row, request_rows, to_csv, to_jsonl
from phaseline.lab.trace import Event, Trace
from phaseline.lab.workload import Asked

MS = 10**6  # nanoseconds
EVENTS = tuple(Event(t * MS, "text", n) for t, n in ((1100, 1), (1120, 2), (1150, 1)))
SERVED = Trace(1010 * MS, 1160 * MS, EVENTS, 1000 * MS, None, 7, 0, 4, "stop")
FAILED = Trace(1200 * MS, 1300 * MS, (), 1100 * MS, 'refused, "busy"\nlater')


def test_a_row_for_each_request() -> None:
    served, failed = request_rows([SERVED, FAILED], [Asked(5, "a"), Asked(5, "b")], Objectives(ttft=0.1))
    lists = {key: served[key] for key in ("gaps_ms", "itl_ms")}
    assert lists == {"gaps_ms": [20.0, 30.0], "itl_ms": [10.0, 10.0, 30.0]}
    assert {key: value for key, value in served.items() if key not in lists} == pytest.approx(
        {
            **{"request": 0, "due_ms": 0.0, "sent_ms": 10.0},
            **{"ttft_ms": 90.0, "ttft_from_due_ms": 100.0, "ttfr_ms": 90.0},
            **{"tpot_ms": 50 / 3, "worst_gap_ms": 30.0, "stream_end_ms": 150.0, "e2el_ms": 140.0},
            **{"prompt_tokens": 7, "cached_tokens": 0, "output_tokens": 4, "max_tokens": 5},
            **{"finish_reason": "stop", "error": None, "flags": "stopped_early", "slo_met": True},
            "itl_convention": ITL_CONVENTION,
        }
    )
    assert failed.keys() == served.keys()
    assert (failed["request"], failed["due_ms"], failed["sent_ms"], failed["slo_met"]) == (1, 100.0, 200.0, False)
    assert all(failed[key] is None for key in ("ttft_ms", "tpot_ms", "e2el_ms", "itl_ms", "output_tokens"))
    assert request_rows([SERVED])[0]["slo_met"] is None
    assert request_rows([]) == []


def test_times_count_from_the_first_moment_of_the_run() -> None:
    early = Trace(900 * MS, 950 * MS)
    assert [row["sent_ms"] for row in request_rows([SERVED, early])] == pytest.approx([110.0, 0.0])


def test_jsonl_reads_back() -> None:
    rows = request_rows([SERVED, FAILED])
    assert [json.loads(line) for line in to_jsonl(rows).splitlines()] == rows
    assert to_jsonl([]) == ""


def test_csv_reads_back_without_the_lists() -> None:
    rows = request_rows([SERVED, FAILED], objectives=Objectives(ttft=0.1))
    back = list(csv.DictReader(io.StringIO(to_csv(rows), newline="")))
    assert len(back) == 2
    for row, line in zip(rows, back, strict=True):
        flat = {key: value for key, value in row.items() if key not in ("gaps_ms", "itl_ms", "itl_convention")}
        assert line == {key: "" if value is None else str(value) for key, value in flat.items()}
    assert to_csv([]).strip() == ""


def test_llama_bench_rows() -> None:
    # 512 tokens in 1, 2 and 4 s: 512, 256 and 128 tokens/s
    assert llama_bench_row([1.0, 2.0, 4.0], 512, 0, 64) == pytest.approx(
        {"n_prompt": 512, "n_gen": 0, "n_depth": 64, "avg_ts": 896 / 3, "stddev_ts": 195.5232}, rel=1e-5
    )
    assert llama_bench_row([2.0], 0, 128)["stddev_ts"] is None
    assert llama_bench_row([2.0], 256, 128)["avg_ts"] == 192.0


@pytest.mark.parametrize("seconds", [[], [1.0, 0.0], [-1.0], [float("nan")]])
def test_rows_without_time_are_refused(seconds: list[float]) -> None:
    with pytest.raises(PhaselineError, match="llama-bench"):
        llama_bench_row(seconds, 1, 1)
