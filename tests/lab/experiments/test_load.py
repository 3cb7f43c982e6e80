"""The load: paces, rows and knees made of traces, and runs on a simulated engine."""

import asyncio
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.load import Load, LoadSearch
from phaseline.lab.experiments.load_findings import describe_paces, load_record
from phaseline.lab.experiments.load_points import llama_bench, points, rate_knee, stream_knee
from phaseline.lab.experiments.load_runs import Pace, Run, measured
from phaseline.lab.experiments.load_source import LogSource, RandomSource
from phaseline.lab.prompts import random_asks
from phaseline.lab.summary import Objectives
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Fault, Script, Wire, steady
from phaseline.lab.trace import Trace
from phaseline.lab.workload import Ramp
from phaseline.lab.workload_files import Log, Logged
from support.traces import trace

WIRE = Wire(counts="token_ids", cached_tokens=0)
QUICK = Script(engine=Costs(chunk=64, prompt_s=1e-5, decode_s=2e-4), wire=WIRE)


def closed_run(streams: int, ends: Sequence[Trace]) -> Run:
    return Run(Pace(math.inf, streams), random_asks(len(ends), 4, 3), dict(enumerate(ends)))


def due_run(rate: float, latencies: Sequence[float], *, lag: float = 0.0, cap: int | None = None) -> Run:
    """Requests that are due at a fixed rate, sent `lag` late, and take so long from then."""
    due = [number / rate for number in range(len(latencies))]
    traces = [
        trace([at + lag + took], sent=at + lag, due=at, prompt_tokens=4)
        for at, took in zip(due, latencies, strict=True)
    ]
    return Run(Pace(rate, cap), random_asks(len(due), 4, 1), dict(enumerate(traces)))


def stream(start: float, tokens: int = 3, gap: float = 0.1, **facts: Any) -> Trace:
    return trace([start + gap * (n + 1) for n in range(tokens)], sent=start, **facts)


# Paces


def test_an_infinite_rate_is_a_closed_loop_under_a_concurrency_and_a_burst_without() -> None:
    assert Pace(math.inf, 4).due(3, None, seed=0) is None
    assert Pace(math.inf).due(3, None, seed=0) == [0, 0, 0]
    assert Pace(2.0, burstiness=math.inf).due(3, [9, 9, 9], seed=0) == [0, 0.5, 1]
    assert Pace(None).due(2, [0, 3, 5], seed=0) == [0, 3]
    with pytest.raises(RequestError, match="no times to replay"):
        Pace(None).due(2, None, seed=0)


@pytest.mark.parametrize(
    ("pace", "label", "rate"),
    [
        (Pace(math.inf, 1), "1 stream", "inf"),
        (Pace(math.inf, 4), "4 streams", "inf"),
        (Pace(math.inf), "all at once", "inf"),
        (Pace(2.5), "2.5 requests/s", 2.5),
        (Pace(2.5, 8), "2.5 requests/s, at most 8 streams", 2.5),
        (Pace(None), "the log's pace", None),
        (Pace(Ramp(1, 4, 10)), "1 to 4 requests/s", {"start": 1, "end": 4, "duration_s": 10}),
    ],
)
def test_a_pace_says_what_it_is(pace: Pace, label: str, rate: Any) -> None:
    assert (pace.label, pace.facts()["request_rate"]) == (label, rate)


# What the server can be seen to serve


def test_a_server_that_keeps_up_serves_what_is_due_however_long_it_takes() -> None:
    assert due_run(10, [3.0] * 30).served_rate(False) == pytest.approx(10)
    noisy = [1.0 + 0.3 * math.sin(7 * n) for n in range(60)]
    assert due_run(10, noisy).served_rate(False) == pytest.approx(10, rel=0.05)


def test_latency_that_grows_shows_the_rate_that_is_served() -> None:
    # Four a second are served of ten that are due: request n ends at n / 4.
    queue = [0.1 + n / 4 - n / 10 for n in range(40)]
    assert due_run(10, queue).served_rate(False) == pytest.approx(4)


def test_one_slow_request_is_no_trend() -> None:
    assert due_run(10, [*[0.1] * 19, 5.0]).served_rate(False) == pytest.approx(10)


def test_the_clients_own_delay_is_not_the_servers_unless_it_runs_in_the_client() -> None:
    run = due_run(10, [0.1] * 12)
    late = due_run(10, [0.1] * 12, lag=1.0)
    mixed = Run(run.pace, run.asks, {n: (run if n < 6 else late).ended[n] for n in range(12)})
    assert mixed.served_rate(False) == pytest.approx(10)
    slow = mixed.served_rate(True)
    assert slow is not None and slow < 6


def test_few_requests_tell_no_trend() -> None:
    assert due_run(10, [0.1] * 5).served_rate(False) is None
    assert due_run(math.inf, [0.1] * 12).served_rate(False) is None
    assert closed_run(2, [stream(0.0)] * 12).served_rate(False) is None


# Rows, knees, findings


def test_a_row_holds_the_medians_of_the_runs_at_its_pace_and_their_interval() -> None:
    runs = [closed_run(1, [stream(0.0, gap=gap), stream(1.0, gap=gap)]) for gap in (0.1, 0.2, 0.3)]
    (row,) = points(measured(runs, Objectives(ttft=0.25), False))
    assert (row["phase"], row["streams"], row["requests"], row["completed"], row["failed"]) == ("mixed", 1, 6, 6, 0)
    assert row["seconds"] == pytest.approx([1.3, 1.6, 1.9])
    assert row["tok_s"] == row["output_throughput"] == pytest.approx(6 / 1.6)
    assert row["median_ttft_ms"] == pytest.approx(200) and row["median_tpot_ms"] == pytest.approx(200)
    assert row["slo_attainment"] == 1.0 and row["max_worst_gap_ms"] == pytest.approx(200)
    low, high = row["intervals"]["median_ttft_ms"]
    assert 100 <= low <= 200 <= high <= 300
    assert row["served_rate"] is None and row["intervals"]["median_ttft_from_due_ms"] is None


def swept(throughputs: dict[int, float]) -> list[dict[str, Any]]:
    return [
        {"streams": n, "label": f"{n} streams", "tok_s": t, "request_throughput": 1} for n, t in throughputs.items()
    ]


def test_the_knee_of_streams_is_where_more_of_them_bring_little() -> None:
    knee, best = stream_knee(swept({1: 100, 2: 190, 4: 280, 8: 300, 16: 290}))
    assert (knee["streams"], best["streams"]) == (4, 8)
    knee, best = stream_knee(swept({1: 100, 2: 200, 4: 400}))
    assert knee is best and knee["streams"] == 4


def test_the_knee_of_rates_is_the_last_that_is_kept() -> None:
    def rated(*pairs: tuple[float, float | None]) -> list[dict[str, Any]]:
        return [{"requested_rate": asked, "served_rate": served} for asked, served in pairs]

    rows = rated((1, 1), (2, 1.9), (4, 2.2), (8, 8))  # the last is luck
    assert rate_knee(rows) == (rows[1], rows[2])
    assert rate_knee(rows[:2]) == (rows[1], None)
    assert rate_knee(rows[2:]) == (None, rows[2])
    unknown = rated((1, None))
    assert rate_knee(unknown) == (unknown[0], None)


def test_the_findings_of_sweeps_name_the_knee_and_summarise_its_run() -> None:
    kept, lost = due_run(10, [0.1] * 12), due_run(20, [0.1 + n / 5 for n in range(12)])
    runs = measured([lost, kept], None, False)
    told = describe_paces(runs)
    assert told.chosen is runs[1] and told.facts["knee"] == {"label": "10 requests/s", "found": True}
    assert told.sentences[0].startswith(
        "Requests were served as fast as they came up to 10 requests/s; at 20 requests/s only 4"
    )
    (alone,) = measured([lost], None, False)
    overrun = " ".join(describe_paces([alone]).sentences)
    assert "The server was slower than the requests came: it served 4 of 20 a second." in overrun

    def at(streams: int, seconds: float) -> Run:
        return closed_run(streams, [stream(0.0, gap=seconds)])

    told = describe_paces(measured([at(4, 0.1), at(1, 0.4), at(2, 0.105)], None, False))
    assert told.facts["knee"] == {"label": "2 streams", "found": True}
    told = describe_paces(measured([at(1, 0.4), at(2, 0.1)], None, False))
    assert told.facts["knee"] == {"label": "2 streams", "found": False}
    assert "Throughput still rose at 2 streams, the most tried" in told.sentences[0]


def test_the_record_says_which_traces_belong_to_which_run() -> None:
    runs = [closed_run(2, [stream(0.0), stream(1.0)]), closed_run(2, [stream(0.0)]), closed_run(2, [])]
    seen = measured(runs, None, False)
    record = load_record(seen, describe_paces(seen), "as it was")
    assert [(run["first"], run["count"], run["unfinished"]) for run in record["runs"]] == [(0, 2, 0), (2, 1, 0)]
    assert [Trace.from_dict(one) for one in record["traces"]] == [*runs[0].traces, *runs[1].traces]
    assert [one["max_tokens"] for one in record["requests"]] == [3, 3, 3]
    assert record["summary"] == seen[1].summary  # the shorter
    assert record["summary"].keys() >= {
        "completed",
        "request_throughput",
        "mean_ttft_ms",
        "p99_itl_ms",
        "median_e2el_ms",
    }
    assert "As it was." in record["finding"] and "error" not in record


def test_a_load_that_brought_nothing_is_an_error_and_a_record() -> None:
    seen = measured([closed_run(2, [trace([], end=0.1, error="cannot connect")] * 2)], Objectives(ttft=1), False)
    record = load_record(seen, describe_paces(seen), None)
    assert record["error"] == "no request was completed: 2 of 2 requests failed: cannot connect"
    assert record["summary"]["slo_attainment"] == 0 and len(record["traces"]) == 2
    some = [*seen, *measured([closed_run(2, [stream(0.0)])], None, False)]
    assert "error" not in load_record(some, describe_paces(some), None)
    nothing = load_record([], describe_paces([]), None)
    assert nothing["summary"] is None and nothing["finding"] == "Nothing was measured." and "error" not in nothing


def test_prompts_asked_again_in_another_run_are_told() -> None:
    asks = random_asks(2, 4, 3)
    first = Run(Pace(math.inf, 1), asks, {0: stream(0.0, gap=0.2), 1: stream(1.0, gap=0.2)})
    again = Run(Pace(math.inf, 1), asks, {0: stream(2.0, gap=0.01), 1: stream(3.0, gap=0.01)})
    seen = measured([first, again], None, False)
    record = load_record(seen, describe_paces(seen), None)
    assert (
        record["cache"]["verdict"] == "suspected" and "Prefix cache hits over all runs suspected" in record["finding"]
    )


def test_rows_of_llama_bench_are_of_one_stream_and_of_tokens_that_no_cache_held() -> None:
    first = stream(0.0, 5, 0.1, prompt_tokens=10, cached_tokens=0)
    second = stream(1.0, 5, 0.2, prompt_tokens=10, cached_tokens=0)
    cached = stream(3.0, 5, 0.1, prompt_tokens=10, cached_tokens=6)
    failed = stream(4.0, 5, 0.1, prompt_tokens=10, error="no")
    together = stream(5.0, 5, 0.0, prompt_tokens=10, cached_tokens=9)
    together = Trace(4 * 10**9, together.end_ns, together.events, prompt_tokens=10, cached_tokens=9)
    rows = llama_bench([closed_run(1, [first, second, cached, failed, together]), closed_run(2, [first])])
    assert [(row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows] == [
        (1, 0, 9),
        (4, 0, 6),
        (10, 0, 0),
        (0, 4, 10),
        (4, 5, 6),
        (10, 5, 0),
    ]
    assert rows[2]["avg_ts"] == pytest.approx((10 / 0.1 + 10 / 0.2) / 2) and rows[2]["stddev_ts"] > 0
    assert rows[3]["avg_ts"] == pytest.approx((10 + 5 + 10) / 3)
    assert rows[1]["stddev_ts"] is None


# Sources


def test_random_requests_are_fresh_in_each_run_and_share_a_prefix_only_if_asked() -> None:
    source = RandomSource(5, 6, 2, seed=3)
    firsts = [ask.prompt.split()[0] for run in range(3) for ask in source.asks(run) if isinstance(ask.prompt, str)]
    firsts += [ask.prompt.split()[0] for ask in source.warmups(4) if isinstance(ask.prompt, str)]
    assert len(firsts) == 19 == len(set(firsts)) and source.note is None and source.times() is None

    ids = RandomSource(2, 3, 2, prefix=4, vocabulary=range(100), seed=3)
    prompts = [list(ask.prompt) for ask in [*ids.asks(0), *ids.asks(1), *ids.warmups(2)]]
    assert {tuple(prompt[:4]) for prompt in prompts} == {tuple(prompts[0][:4])}
    assert len({tuple(prompt[4:]) for prompt in prompts}) == 6 and {len(prompt) for prompt in prompts} == {7}
    words = RandomSource(1, 3, 2, prefix=4)
    assert isinstance(words.asks(0)[0].prompt, str) and len(words.asks(0)[0].prompt.split()) == 7
    assert words.note == "all prompts begin with the same 4 tokens"


def test_a_log_is_asked_anew_in_each_run_unless_it_has_texts() -> None:
    log = Log((Logged(6, 2, 0.0, blocks=(1,)), Logged(5, 1, 3.0, blocks=(2,))), passed_over=2)
    source = LogSource(log, speed=2, seed=1)
    assert source.requests == 2 and source.times() == [0, 1.5] and source.note is not None
    asks = [*source.asks(0), *source.asks(1), *source.warmups(3)]
    assert len({str(ask.prompt) for ask in asks}) == 7
    texts = LogSource(Log((Logged(6, 2, text="a text"),), 0))
    assert texts.asks(0)[0] == texts.asks(1)[0] and texts.asks(0)[0].prompt == "a text"
    assert texts.times() is None and texts.note is None


# Runs


def conducted(experiment: Load) -> dict[str, Any]:
    return asyncio.run(conduct(experiment, lambda done, total, label: None, {}))


def test_a_sweep_runs_each_pace_as_often_as_asked_after_one_warm_up() -> None:
    asked: list[Ask] = []

    class Watched(TruthSystem):
        def generate(self, ask: Ask) -> Any:
            asked.append(ask)
            return super().generate(ask)

    paces = [Pace(math.inf, 1), Pace(math.inf, 3)]
    load = Load(Watched(QUICK), RandomSource(6, 5, 4), paces, repeats=2, warmups=2, objectives=Objectives(ttft=10))
    record = conducted(load)
    assert [row["streams"] for row in record["results"]] == [1, 3]
    assert [(row["requests"], row["completed"], len(row["seconds"])) for row in record["results"]] == [(12, 12, 2)] * 2
    assert len(asked) == 2 + 24 == len({ask.prompt for ask in asked})
    assert record["summary"]["total_output_tokens"] == 24 and record["summary"]["slo_attainment"] == 1
    assert record["cache"]["verdict"] == "none" and record["knee"]["label"] in ("1 stream", "3 streams")
    assert {(row["n_prompt"], row["n_gen"]) for row in record["llama_bench"]} == {(5, 0), (0, 3), (5, 4)}


def test_an_open_loop_sends_at_its_times_and_a_cap_holds_back() -> None:
    script = Script(steady(0.02, 0.001, 1), wire=WIRE)
    record = conducted(Load(TruthSystem(script), RandomSource(4, 2, 1), [Pace(math.inf)]))
    starts = [one["sent_ns"] for one in record["traces"]]
    assert max(starts) < min(one["end_ns"] for one in record["traces"])
    assert all(one["due_ns"] is not None for one in record["traces"])
    twice = conducted(Load(TruthSystem(script), RandomSource(3, 2, 1), [Pace(1000.0)], repeats=2))["traces"]
    gaps = {
        (run[1]["due_ns"] - run[0]["due_ns"], run[2]["due_ns"] - run[1]["due_ns"]) for run in (twice[:3], twice[3:])
    }
    assert len(gaps) == 2  # each run has arrivals of its own
    capped = conducted(Load(TruthSystem(script), RandomSource(3, 2, 1), [Pace(1000.0, 1)]))
    order = sorted((one["sent_ns"], one["end_ns"]) for one in capped["traces"])
    assert all(end <= sent for (_, end), (sent, _) in pairwise(order))


def test_an_interruption_keeps_the_requests_that_have_ended() -> None:
    async def interrupted() -> dict[str, Any]:
        enough = asyncio.Event()

        def progress(done: int, total: int, label: str) -> None:
            if done >= 3:
                enough.set()

        load = Load(
            TruthSystem(Script(steady(0.005, 0.001, 2), wire=WIRE)), RandomSource(500, 2, 2), [Pace(math.inf, 1)]
        )
        task = asyncio.create_task(conduct(load, progress, {}))
        await enough.wait()
        task.cancel()
        return await task

    record = asyncio.run(interrupted())
    assert record["partial"] and 3 <= record["summary"]["completed"] == len(record["traces"]) < 10
    assert record["runs"][0]["unfinished"] == 500 - len(record["traces"])


def test_failures_are_counted_and_do_not_end_the_run() -> None:
    script = Script(steady(0.001, 0.001, 2), wire=WIRE, fault=Fault("error", after=1))
    record = conducted(Load(TruthSystem(script), RandomSource(4, 2, 2), [Pace(math.inf, 2)]))
    assert record["summary"]["failed"] == 4 and record["error"].startswith("no request was completed: 4 of 4")


def search(objectives: Objectives | None, **settings: Any) -> LoadSearch:
    script = Script(engine=Costs(chunk=4, prompt_s=0.001, decode_s=0.0), wire=WIRE)
    paces = [Pace(1.0, burstiness=math.inf)]
    return LoadSearch(TruthSystem(script), RandomSource(8, 4, 1), paces, objectives=objectives, **settings)


def test_the_search_runs_the_rates_it_needs_and_says_what_it_found() -> None:
    record = conducted(search(Objectives(ttft=0.012), target=0.75, low=100.0, high=3000.0, budget=8))
    found, tried = record["search"], {row["request_rate"]: row for row in record["results"]}
    assert found["probes"][0]["rate"] == 100 and {probe["rate"] for probe in found["probes"]} == tried.keys()
    assert sum(len(row["seconds"]) for row in tried.values()) == sum(len(p["attainments"]) for p in found["probes"])
    assert found["rate"] is None or found["rate"] in tried
    assert "75% of requests within the objectives" in record["finding"]
    assert 0 <= record["summary"]["slo_attainment_from_due"] <= 1


def test_without_bounds_the_search_starts_from_one_stream_alone() -> None:
    record = conducted(search(Objectives(ttft=1e-6), target=0.9))
    assert record["runs"][0]["label"] == "1 stream" and record["runs"][0]["count"] == 3
    alone = sorted(one["events"][-2][0] - one["sent_ns"] for one in record["traces"][:3])[1] / 1e9
    assert record["search"]["probes"][0]["rate"] == pytest.approx(0.5 / alone)
    assert record["search"]["rate"] is None and "Not even" in record["finding"]


def test_a_search_of_a_server_that_fails_ends_with_the_reason() -> None:
    script = Script(steady(0.001, 0.001, 1), wire=WIRE, fault=Fault("refuse"))
    load = LoadSearch(TruthSystem(script), RandomSource(4, 2, 1), [Pace(1.0)], objectives=Objectives(ttft=1))
    record = conducted(load)
    assert record["error"].startswith("no request was completed") and "No rate was tried." in record["finding"]


def test_a_search_needs_objectives() -> None:
    with pytest.raises(RequestError, match="--goodput"):
        conducted(search(None))


@pytest.mark.parametrize("settings", [{"repeats": 0}, {"warmups": -1}, {"paces": []}])
def test_a_load_of_nothing_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="at least one of each"):
        Load(TruthSystem(QUICK), RandomSource(1, 1, 1), **{"paces": [Pace(math.inf, 1)], **settings})
