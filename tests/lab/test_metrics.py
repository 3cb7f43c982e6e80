"""Worked facts about TTFT, gaps, ITL, TPOT, goodput and chunks, and the properties that hold for any trace."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import FileFormatError, PhaselineError, RequestError
from phaseline.lab import chunk_schedule, goodput, phase_share, request_metrics
from phaseline.lab.metrics import ITL_CONVENTION, trace_metrics
from phaseline.lab.trace import META, Event, Trace

MS = 10**6  # nanoseconds


def trace_of(*events: tuple[float, int | None], **facts: object) -> Trace:
    """A trace sent at 1 s whose events (milliseconds after that, tokens) carry text; it ends with the last one."""
    sent = 1000 * MS
    arrivals = tuple(Event(sent + round(at * MS), "text", tokens) for at, tokens in events)
    end = arrivals[-1].t_ns if arrivals else sent
    return Trace(**{"sent_ns": sent, "end_ns": end, "events": arrivals, **facts})


# Dyadic times (multiples of 2^-10 s) make float sums exact.
dyadic_times = st.lists(st.integers(0, 2**20), min_size=1, max_size=50).map(lambda ks: [k / 2**10 for k in sorted(ks)])
arrivals = st.lists(st.tuples(st.integers(0, 10**6), st.none() | st.integers(1, 5)), max_size=30).map(
    lambda events: sorted(events, key=lambda event: event[0])
)


def test_worked_request() -> None:
    metrics = request_metrics(10.0, [10.5, 10.75, 11.5])
    assert dict(metrics) == {"ttft": 0.5, "gaps": [0.25, 0.75], "tpot": 0.5, "e2e": 1.5, "worst_gap": 0.75}
    assert (metrics.ttft, metrics.tpot) == (metrics["ttft"], metrics["tpot"])
    with pytest.raises(KeyError):
        metrics["itl"]


def test_equal_tpot_hides_a_worse_gap() -> None:
    steady = request_metrics(0.0, [1.0, 1.5, 2.0, 2.5, 3.0])
    stalled = request_metrics(0.0, [1.0, 1.125, 1.25, 1.375, 3.0])
    assert steady.tpot == stalled.tpot == 0.5
    assert (steady.worst_gap, stalled.worst_gap) == (0.5, 1.625)


def test_one_token_has_no_tpot_and_no_token_has_nothing() -> None:
    assert dict(request_metrics(1.0, [1.5])) == {"ttft": 0.5, "gaps": [], "tpot": None, "e2e": 0.5, "worst_gap": None}
    assert dict(request_metrics(1.0, [])) == {"ttft": None, "gaps": [], "tpot": None, "e2e": None, "worst_gap": None}


@pytest.mark.parametrize("times", [[2.0, 1.5], [0.5], [float("nan"), 2.0]])
def test_times_out_of_order_are_refused(times: list[float]) -> None:
    with pytest.raises(PhaselineError, match="order of time"):
        request_metrics(1.0, times)


@given(st.integers(0, 2**10).map(lambda k: k / 2**10), dyadic_times)
def test_gaps_add_up(lead: float, times: list[float]) -> None:
    metrics = request_metrics(times[0] - lead, times)
    assert sum(metrics.gaps) == times[-1] - times[0]
    assert metrics.ttft == lead
    assert metrics.e2e == lead + sum(metrics.gaps)
    assert metrics.worst_gap == (max(metrics.gaps) if len(times) > 1 else None)


def test_tokens_per_event_change_gaps_but_not_itl_or_tpot() -> None:
    singly = trace_metrics(trace_of(*((100 + 10 * i, 1) for i in range(9))))
    in_fours = trace_metrics(trace_of((100, 1), (140, 4), (180, 4)))
    assert singly.itl == in_fours.itl == [0.010] * 8
    assert singly.tpot == in_fours.tpot == 0.010
    assert singly.gaps == [0.010] * 8 and in_fours.gaps == [0.040] * 2
    assert singly.itl_convention == ITL_CONVENTION


def test_tpot_leaves_out_the_tokens_of_the_first_event() -> None:
    metrics = trace_metrics(trace_of((100, 3), (160, 2), (200, 2)))
    assert (metrics.tokens, metrics.first_tokens, metrics.first_tokens_assumed) == (7, 3, False)
    assert metrics.tpot == 0.100 / 4


def test_unknown_counts_give_no_itl_and_a_flagged_tpot() -> None:
    silent = trace_metrics(trace_of((100, None), (200, None)))
    assert (silent.itl, silent.uncounted_gaps, silent.tokens, silent.tpot) == (None, 1, None, None)
    reported = trace_metrics(trace_of((100, None), (200, None), output_tokens=6))
    assert (reported.tokens, reported.first_tokens, reported.first_tokens_assumed) == (6, 1, True)
    assert reported.tpot == 0.100 / 5
    partly = trace_metrics(trace_of((100, 1), (200, None), (240, 2)))
    assert (partly.itl, partly.uncounted_gaps, partly.gaps) == ([0.020, 0.020], 1, [0.100, 0.040])


def test_metadata_is_a_response_but_no_token() -> None:
    first_byte, text = Event(30 * MS, META, 0), Event(80 * MS, "reasoning", 1)
    held_back, usage = Event(90 * MS, "text", 0), Event(95 * MS, META)
    metrics = trace_metrics(Trace(20 * MS, 100 * MS, (first_byte, text, held_back, usage), due_ns=5 * MS))
    assert (metrics.ttfr, metrics.ttft, metrics.ttft_from_due) == (0.010, 0.060, 0.075)
    assert (metrics.e2e, metrics.stream_end, metrics.gaps) == (0.060, 0.080, [])


def test_a_failed_trace_has_null_not_zero() -> None:
    metrics = trace_metrics(trace_of((100, 1), (110, 1), error="connection reset", due_ns=0, output_tokens=2))
    assert dict(metrics) == {
        **dict.fromkeys(["ttft", "tpot", "e2e", "worst_gap", "ttft_from_due", "ttfr", "stream_end", "itl"]),
        **dict.fromkeys(["tokens", "first_tokens"]),
        **{"gaps": [], "uncounted_gaps": 0, "first_tokens_assumed": False, "itl_convention": ITL_CONVENTION},
    }


@given(arrivals)
def test_itl_samples_are_one_per_counted_token(events: list[tuple[int, int | None]]) -> None:
    metrics = trace_metrics(trace_of(*events))
    counted = [count for _, count in events[1:] if count is not None]
    assert len(metrics.itl or []) == sum(counted)
    assert metrics.uncounted_gaps == len(events[1:]) - len(counted)
    spans = [gap for gap, (_, count) in zip(metrics.gaps, events[1:], strict=True) if count is not None]
    assert sum(metrics.itl or []) == pytest.approx(sum(spans))


@given(arrivals, st.none() | st.integers(0, 10**9), st.none() | st.text())
def test_a_trace_survives_json(events: list[tuple[int, int | None]], due: int | None, error: str | None) -> None:
    trace = trace_of(*events, due_ns=due, error=error, prompt_tokens=7, finish_reason="stop")
    assert Trace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace


@pytest.mark.parametrize(
    "change",
    [
        {"sent_ns": 2000 * MS},  # after the events
        {"end_ns": 1000 * MS},  # before them
        {"events": [[1100 * MS, "text", 1], [1050 * MS, "text", 1]]},
        {"events": [[1100 * MS, "text", -1]]},
        {"events": [[1050.5 * MS, "text", 1]]},
        {"events": [[1100 * MS]]},
        {"events": None},
        {"sent_ns": "now"},
        {"sent_ns": None},
        {"colour": "blue"},
    ],
)
def test_what_is_no_trace_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(FileFormatError, match="not a trace"):
        Trace.from_dict(trace_of((100, 1)).to_dict() | change)


def test_goodput_worked() -> None:
    fast, slow_start = request_metrics(0, [0.25, 0.5]), request_metrics(0, [1.0, 1.25])
    slow_tokens, single, failed = request_metrics(0, [0.25, 1.0]), request_metrics(0, [0.25]), request_metrics(0, [])
    attempts = [fast, slow_start, slow_tokens, single, failed]
    assert goodput(attempts, ttft_slo=0.25, tpot_slo=0.25) == 2 / 5  # fast and single
    assert goodput(attempts, ttft_slo=0.25) == 3 / 5
    assert goodput(attempts, tpot_slo=0.25) == 3 / 5
    assert goodput(attempts) == 4 / 5
    assert goodput([dict(one) for one in attempts], 0.25, 0.25) == 2 / 5
    assert goodput([]) is None


def test_an_unknown_tpot_does_not_count_as_met() -> None:
    uncounted = trace_metrics(trace_of((100, None), (101, None)))
    assert goodput([uncounted], ttft_slo=1.0) == 1.0
    assert goodput([uncounted], ttft_slo=1.0, tpot_slo=1.0) == 0.0


@given(st.lists(dyadic_times | st.just([]), min_size=1), st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1, 2))
def test_goodput_is_a_fraction_and_grows_with_lenience(
    requests: list[list[float]], ttft_slo: float, tpot_slo: float, lenience: float
) -> None:
    metrics = [request_metrics(0.0, times) for times in requests]
    strict, lax = goodput(metrics, ttft_slo, tpot_slo), goodput(metrics, ttft_slo * lenience, tpot_slo * lenience)
    assert strict is not None and lax is not None
    assert 0 <= strict <= lax <= sum(times != [] for times in requests) / len(requests)


def test_phase_share_worked() -> None:
    assert phase_share(request_metrics(0, [1.0, 2.0, 4.0])) == (0.25, 0.75)
    assert phase_share(request_metrics(0, [2.0])) == (1.0, 0.0)
    assert phase_share(request_metrics(0, [])) == (None, None)


@given(st.integers(0, 3000), st.integers(1, 700))
def test_chunks_tile_the_prompt(prompt: int, chunk: int) -> None:
    pieces = chunk_schedule(prompt, chunk)
    assert [position for start, end in pieces for position in range(start, end)] == list(range(prompt))
    assert all(end - start == chunk for start, end in pieces[:-1])
    assert len(pieces) == -(-prompt // chunk)


@pytest.mark.parametrize(("prompt", "chunk"), [(10, 0), (10, -1), (-1, 4)])
def test_impossible_chunks_are_refused(prompt: int, chunk: int) -> None:
    with pytest.raises(RequestError, match="chunk"):
        chunk_schedule(prompt, chunk)
