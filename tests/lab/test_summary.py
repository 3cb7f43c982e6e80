"""The field's summary: its keys by hand on small runs, what is null, and what a reader is told."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.metrics import ITL_CONVENTION, goodput, request_metrics, trace_metrics
from phaseline.lab.records import to_json
from phaseline.lab.summary import Objectives, parse_goodput, summarise
from phaseline.lab.summary_checks import FLAGS, cache_hits, client_lags, trace_flags
from phaseline.lab.trace import META, Event, Trace
from phaseline.lab.workload import Asked

MS = 10**6  # nanoseconds
STATISTICS = [f"{kind}_{name}_ms" for kind in ("mean", "median", "p99") for name in ("ttft", "tpot", "itl", "e2el")]
FIELD_KEYS = [
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("request_goodput", "output_throughput", "total_token_throughput", *STATISTICS),
]


def trace(sent: float = 0, at: tuple[float, ...] = (), tokens: int | None = 1, **facts: Any) -> Trace:
    """A stream sent at `sent` (ms) with events at `at` (ms), of `tokens` each; it reports itself in full."""
    events = tuple(Event(round(t * MS), "text", tokens) for t in at)
    counted = len(at) * tokens if tokens is not None else None
    end = round(facts.pop("end", at[-1] if at else sent) * MS)
    due = facts.pop("due", None)
    known = {"prompt_tokens": 10, "output_tokens": counted, "due_ns": None if due is None else round(due * MS)}
    return Trace(sent_ns=round(sent * MS), end_ns=end, events=events, **{**known, **facts})


def test_worked_summary() -> None:
    traces = [
        trace(0, (100, 110, 120, 130)),  # ttft 100, tpot 10, e2e 130
        trace(500, (700, 730, 790)),  # ttft 200, tpot 45, e2e 290
        trace(800, (850,)),  # ttft 50, no tpot, e2e 50
        trace(900, (950, 960), error="connection reset"),
    ]
    summary = summarise(traces, 2.0, objectives=Objectives(ttft=0.150, tpot=0.050))
    assert {key: summary[key] for key in FIELD_KEYS} == pytest.approx(
        {
            "duration": 2.0,
            "completed": 3,
            "failed": 1,
            "total_input_tokens": 30,
            "total_output_tokens": 8,
            "request_throughput": 1.5,
            "request_goodput": 1.0,
            "output_throughput": 4.0,
            "total_token_throughput": 19.0,
            "mean_ttft_ms": 350 / 3,
            "median_ttft_ms": 100.0,
            "mean_tpot_ms": 27.5,
            "median_tpot_ms": 27.5,
            "mean_itl_ms": 24.0,
            "median_itl_ms": 10.0,
            "mean_e2el_ms": 470 / 3,
            "median_e2el_ms": 130.0,
            **{f"p99_{name}_ms": None for name in ("ttft", "tpot", "itl", "e2el")},
        }
    )
    assert (summary["slo_attainment"], summary["slo_tpot_not_applicable"]) == (0.5, 1)
    assert (summary["max_worst_gap_ms"], summary["itl_convention"]) == (pytest.approx(60), ITL_CONVENTION)
    assert summary["achieved_rate"] == pytest.approx(3 / 0.9)
    assert (summary["completed_rate"], summary["requested_rate"]) == (1.5, None)
    assert any("1 of 4 requests failed: connection reset" in note for note in summary["notes"])
    assert any("no p99 of ttft, tpot, itl, e2el: it takes 100 samples" in note for note in summary["notes"])


def test_itl_shares_a_gap_among_its_tokens_and_keeps_the_gaps_beside_it() -> None:
    singly = summarise([trace(0, tuple(range(100, 181, 10)))], 1.0)
    in_fours = summarise([trace(0, (60, 100, 140), tokens=4)], 1.0)
    assert singly["mean_itl_ms"] == in_fours["mean_itl_ms"] == pytest.approx(10)
    assert (singly["mean_gap_ms"], in_fours["mean_gap_ms"]) == (pytest.approx(10), pytest.approx(40))


def test_p99_begins_at_100_samples() -> None:
    few, many = ([trace(0, (float(n),)) for n in range(1, count + 1)] for count in (99, 100))
    assert summarise(few, 1.0)["p99_ttft_ms"] is None
    summary = summarise(many, 1.0)
    assert summary["p99_ttft_ms"] == pytest.approx(np.percentile(range(1, 101), 99))
    assert "no p99 of tpot, itl: it takes 100 samples" in summary["notes"]


def test_what_the_server_does_not_say_is_null_and_flagged() -> None:
    silent = trace(0, (10, 20), tokens=None, prompt_tokens=None)
    reported = trace(0, (10, 20, 30), tokens=None, output_tokens=5)
    summary = summarise([silent, reported], 1.0, asked=[Asked(5, "a"), Asked(5, "b")])
    for key in (
        "total_input_tokens",
        "total_output_tokens",
        "output_throughput",
        "total_token_throughput",
        "mean_itl_ms",
    ):
        assert summary[key] is None
    assert summary["mean_tpot_ms"] == pytest.approx(20 / 4)
    assert {flag: count for flag, count in summary["flags"].items() if count} == {
        "missing_usage": 1,
        "missing_prompt_tokens": 1,
        "first_tokens_assumed": 1,
        "uncounted_gaps": 2,
    }
    assert any(note.startswith("2 of 2 requests have gaps of unknown token count") for note in summary["notes"])


def test_nothing_completed_leaves_counts_and_no_figures() -> None:
    for traces in ([], [trace(0, (), error="refused")], [trace(0, ())]):
        summary = summarise(traces, 1.0, objectives=Objectives(ttft=1.0))
        assert (summary["completed"], summary["failed"], summary["total_output_tokens"]) == (0, len(traces), 0)
        assert summary["slo_attainment"] == (0.0 if traces else None)
        assert all(summary[key] is None for key in STATISTICS)


def test_from_due_counts_the_waiting() -> None:
    traces = [trace(0, (100,), due=0), trace(50, (150,), due=10), trace(60, (160, 161), due=20)]
    summary = summarise(traces, 1.0, objectives=Objectives(ttft=0.110, e2el=0.130))
    assert (summary["mean_ttft_ms"], summary["mean_ttft_from_due_ms"]) == (pytest.approx(100), pytest.approx(380 / 3))
    assert (summary["slo_attainment"], summary["slo_attainment_from_due"]) == (1.0, pytest.approx(1 / 3))
    assert summary["requested_rate"] == pytest.approx(2 / 0.020)
    assert summary["achieved_rate"] == pytest.approx(2 / 0.060)
    assert "100 requests/s were due, 33.3 were sent" in summary["notes"]
    assert (summary["late_requests"], summary["max_client_lag_ms"]) == (2, pytest.approx(40))
    assert any("sent 2 of 3 requests more than 10 ms late, the worst by 40 ms" in note for note in summary["notes"])
    end_to_end = summarise(traces, 1.0, objectives=Objectives(e2el=0.130))
    assert (end_to_end["slo_attainment"], end_to_end["slo_attainment_from_due"]) == (1.0, pytest.approx(1 / 3))
    on_time = summarise(traces[:1], 1.0)
    assert (on_time["late_requests"], on_time["mean_client_lag_ms"]) == (0, 0.0)
    mixed = summarise([*traces, trace(60, (160,))], 1.0, objectives=Objectives(ttft=1.0))
    assert (mixed["slo_attainment"], mixed["slo_attainment_from_due"]) == (1.0, None)


def test_a_failed_request_that_was_due_misses_from_due_as_well() -> None:
    traces = [trace(0, (10,), due=0), trace(0, (10,), due=0, error="reset")]
    summary = summarise(traces, 1.0, objectives=Objectives(ttft=1.0))
    assert (summary["slo_attainment"], summary["slo_attainment_from_due"]) == (0.5, 0.5)


def test_waiting_for_a_cap_is_not_the_clients_lag() -> None:
    first, second = trace(0, (100,), due=0), trace(101, (200,), due=10)
    assert client_lags([second, first]) == pytest.approx([0.0, 0.091])
    assert client_lags([second, first], max_concurrency=1) == pytest.approx([0.0, 0.001])
    # two streams: the third goes when the first of the two has ended
    streams = [trace(0, (100,), due=0), trace(0, (50,), due=0), trace(53, (90,), due=1), trace(99, (120,), due=95)]
    assert client_lags(streams, max_concurrency=2) == pytest.approx([0.0, 0.0, 0.003, 0.004])


def test_a_closed_loop_is_due_when_there_is_room() -> None:
    streams = [trace(0, (100,)), trace(2, (50,)), trace(55, (90,)), trace(90, (99,))]
    assert client_lags(streams, max_concurrency=2) == pytest.approx([0.005, 0.0])
    assert client_lags(streams) == []


@pytest.mark.parametrize(
    ("one", "max_tokens", "expected"),
    [
        (trace(0, (1, 2), finish_reason="stop"), 3, ["stopped_early"]),
        (trace(0, (1, 2), finish_reason="stop"), 2, []),
        (trace(0, (1, 2), finish_reason="stop"), None, []),
        (trace(0, (1, 2), finish_reason="length"), 3, ["stopped_early"]),
        (trace(0, (1,), tokens=None, finish_reason="stop"), 3, ["stopped_early", "missing_usage"]),
        (trace(0, (1,), tokens=None, finish_reason="length"), 3, ["missing_usage"]),
        (trace(0, ()), 3, ["empty"]),
        (trace(0, (), error="refused"), 3, []),
        (trace(0, (1, 2), output_tokens=3), 2, ["miscounted"]),
        (trace(0, (1, 2), output_tokens=None), 2, []),
        (trace(0, (1, 2), prompt_tokens=None), 2, ["missing_prompt_tokens"]),
        (trace(0, (1, 2), tokens=None, output_tokens=4), 4, ["first_tokens_assumed", "uncounted_gaps"]),
        (trace(0, (1,), tokens=None, output_tokens=1), 1, []),
    ],
)
def test_flags(one: Trace, max_tokens: int | None, expected: list[str]) -> None:
    assert trace_flags(one, max_tokens) == expected
    summary = summarise([one], 1.0, asked=None if max_tokens is None else [Asked(max_tokens, "")])
    assert summary["flags"] == {flag: int(flag in expected) for flag in FLAGS}


def test_role_and_usage_chunks_are_no_tokens() -> None:
    events = (Event(1 * MS, META), Event(5 * MS, "reasoning", 1), Event(9 * MS, "text", 1), Event(9 * MS, META))
    summary = summarise([Trace(0, 10 * MS, events, prompt_tokens=1, output_tokens=2)], 1.0)
    assert (summary["mean_ttft_ms"], summary["mean_tpot_ms"]) == (pytest.approx(5), pytest.approx(4))
    assert not any(summary["flags"].values())


A, B = Asked(1, "a"), Asked(1, "b")


@pytest.mark.parametrize(
    ("traces", "asked", "verdict", "words"),
    [
        (
            [trace(0, (9,), cached_tokens=8), trace(9, (18,), cached_tokens=0)],
            [A, B],
            "reported",
            "for 1 of 2 requests",
        ),
        ([trace(0, (9,), cached_tokens=0), trace(9, (18,), cached_tokens=0)], [A, B], "none", "no token was cached"),
        ([trace(0, (9,), cached_tokens=0), trace(9, (18,))], [A, B], "unknown", "does not report"),
        ([trace(0, (9,)), trace(9, (18,))], [A, B], "unknown", "known to be asked again"),
        ([trace(0, (9,)), trace(9, (18,))], None, "unknown", "known to be asked again"),
        ([], None, "unknown", "known to be asked again"),
        ([trace(0, (9,)), trace(10, (14,))], [A, A], "suspected", "1 of 1 prompts asked again"),
        ([trace(0, (9,)), trace(10, (15,))], [A, A], "none", "0 of 1 prompts asked again"),
        ([trace(0, (9,)), trace(8, (12,))], [A, A], "unknown", "known to be asked again"),  # before the first answer
        ([trace(0, (9,), error="reset"), trace(10, (14,))], [A, A], "unknown", "known to be asked again"),
        ([trace(10, (14,)), trace(0, (9,))], [A, A], "suspected", "1 of 1 prompts asked again"),
        ([trace(0, (9,)), trace(10, (14,)), trace(20, (29,))], [A] * 3, "suspected", "1 of 2 prompts asked again"),
        ([trace(0, (9,)), trace(10, (14,)), trace(20, (29,)), trace(30, (39,))], [A] * 4, "none", "1 of 3 prompts"),
        ([trace(0, (9,)), trace(10, (14,), cached_tokens=0)], [A, A], "suspected", "1 of 1 prompts asked again"),
    ],
)
def test_cache_hits(traces: list[Trace], asked: list[Asked] | None, verdict: str, words: str) -> None:
    found = cache_hits(traces, asked)
    assert found["verdict"] == verdict
    assert words in found["how"]
    notes = summarise(traces, 1.0, asked=asked)["notes"]
    assert any(words in note for note in notes) == (verdict in ("reported", "suspected"))


def test_goodput_objectives_are_parsed() -> None:
    assert parse_goodput("ttft:500 tpot:50 e2el:3000") == Objectives(0.5, 0.05, 3.0)
    assert parse_goodput(" e2el:0.5 ") == Objectives(e2el=0.0005)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft",
        "ttft:",
        "ttft:fast",
        "ttft:0",
        "ttft:-1",
        "ttft:inf",
        "ttft:nan",
        "ttft:1 ttft:2",
        "itl:5",
        "ttft:1,tpot:2",
    ],
)
def test_other_objectives_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="goodput"):
        parse_goodput(text)


def test_end_to_end_is_an_objective_too() -> None:
    quick, slow, failed = request_metrics(0, [0.5, 1.0]), request_metrics(0, [0.5, 2.0]), request_metrics(0, [])
    assert [Objectives(e2el=1.0).met(one) for one in (quick, slow, failed)] == [True, False, False]
    assert [Objectives().met(one) for one in (quick, slow, failed)] == [True, True, False]


def test_impossible_runs_are_refused() -> None:
    for duration in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(PhaselineError, match="no rates"):
            summarise([], duration)
    with pytest.raises(PhaselineError, match="1 traces of 2 requests"):
        summarise([trace(0, (1,))], 1.0, asked=[A, A])


streams = st.builds(
    lambda sent, steps, tokens, late, **facts: trace(
        sent,
        tuple(np.cumsum([sent, *steps])[1:].tolist()),
        tokens,
        due=None if late is None else max(0, sent - late),
        **facts,
    ),
    st.integers(0, 10**5),
    st.lists(st.integers(1, 500), max_size=12),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(0, 100),
    error=st.none() | st.just("reset"),
    prompt_tokens=st.none() | st.integers(1, 50),
    cached_tokens=st.none() | st.integers(0, 50),
)


@given(
    st.lists(streams, max_size=12),
    st.floats(0.1, 100),
    st.floats(0.01, 5),
    st.floats(0.001, 0.5),
    st.none() | st.integers(1, 4),
)
def test_any_run_has_a_sound_summary(
    traces: list[Trace], duration: float, ttft: float, tpot: float, cap: int | None
) -> None:
    asked = [Asked(5, str(number % 3)) for number in range(len(traces))]
    objectives = Objectives(ttft, tpot)
    summary = summarise(traces, duration, asked=asked, objectives=objectives, max_concurrency=cap)
    assert set(FIELD_KEYS) <= set(summary)
    assert summary["completed"] + summary["failed"] == len(traces)
    assert summary["slo_attainment"] == goodput([trace_metrics(one) for one in traces], ttft, tpot)
    if traces:
        assert summary["request_goodput"] <= summary["request_throughput"]
    from_due = summary["slo_attainment_from_due"]
    assert from_due is None or from_due <= summary["slo_attainment"]
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert (summary[f"mean_{name}_ms"] is None) == (summary[f"median_{name}_ms"] is None)
    assert (
        summarise(traces[::-1], duration, asked=asked[::-1], objectives=objectives, max_concurrency=cap)["flags"]
        == summary["flags"]
    )
    to_json(summary)
