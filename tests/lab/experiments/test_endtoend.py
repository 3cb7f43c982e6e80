"""The end-to-end grid: what is made of traces, and what is asked of a system."""

import asyncio
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.endtoend import Cell, EndToEnd, analyse
from phaseline.lab.summary import Objectives
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire, steady
from phaseline.lab.trace import Event, Trace
from support.traces import trace


def request(ttft: float, gap: float, tokens: int, **facts: Any) -> Trace:
    return trace([ttft + gap * n for n in range(tokens)], **facts)


def test_a_row_holds_the_medians_of_its_cell_and_the_largest_gap_of_all() -> None:
    slow = trace([0.3, 0.4, 0.9], prompt_tokens=16)
    cell = Cell(16, 3)
    record = analyse({cell: [request(0.1, 0.1, 3, prompt_tokens=16), request(0.2, 0.2, 3, prompt_tokens=16), slow]})
    (row,) = record["results"]
    assert (row["phase"], row["prompt"], row["output"], row["tokens"], row["streams"]) == ("mixed", 16, 3, 19, 1)
    assert (row["samples"], row["failed"], row["prompt_tokens"], row["output_tokens"]) == (3, 0, 16, 3)
    assert row["ttft_s"] == pytest.approx(0.2)
    assert row["tpot_s"] == pytest.approx(0.2)  # of 0.1, 0.2, 0.3
    assert row["seconds"] == pytest.approx([0.3, 0.6, 0.9])
    assert row["e2e_s"] == pytest.approx(0.6)
    assert row["worst_gap_s"] == pytest.approx(0.5)
    assert row["prefill_share"] == pytest.approx(1 / 3) and row["decode_share"] == pytest.approx(2 / 3)
    assert row["slo_attainment"] is record["slo_attainment"] is None
    assert [Trace.from_dict(one) for one in row["traces"]][2] == slow


def test_each_cell_names_the_phase_that_dominates_it() -> None:
    samples = {
        Cell(512, 4): [request(0.9, 0.02, 4)],
        Cell(16, 100): [request(0.05, 0.02, 100)],
        Cell(128, 21): [request(0.4, 0.02, 21)],
        Cell(128, 1): [request(0.4, 0.0, 1)],
    }
    record = analyse(samples)
    assert [row["dominant"] for row in record["results"]] == ["prefill", "decode", "neither", "prefill"]
    assert "Decode dominates 1 of 4 cells, most of all 16 + 100 tokens (98% of the time)" in record["finding"]
    assert "prefill dominates 2 of 4 cells, most of all 128 + 1 tokens (100% of the time)" in record["finding"]
    assert "in 1 of 4 cells neither phase has 60% of the time" in record["finding"]


def test_the_balance_is_the_output_whose_decoding_takes_as_long_as_the_first_token() -> None:
    samples = {
        Cell(16, 5): [request(0.05, 0.05, 5)],  # too short to go by, where a longer one is there
        Cell(16, 50): [request(0.04, 0.02, 50)],
        Cell(512, 50): [request(0.6, 0.02, 50)],
        Cell(1024, 1): [request(1.2, 0.0, 1)],  # has no TPOT
    }
    record = analyse(samples)
    assert [(one["prompt"], round(one["output_tokens"], 6)) for one in record["balance"]] == [(16, 2), (512, 30)]
    assert "as long as the first token: 2 (prompt 16), 30 (prompt 512)." in record["finding"]


def test_goodput_counts_failed_requests_and_those_that_break_an_objective() -> None:
    good, late = request(0.1, 0.01, 4), request(0.3, 0.01, 4)
    failed = trace([0.1], error="the server reports an error in the stream: no")
    record = analyse({Cell(8, 4): [good, late, failed], Cell(9, 4): [good]}, Objectives(ttft=0.2, tpot=0.02))
    assert record["slo_attainment"] == 0.5
    assert [row["slo_attainment"] for row in record["results"]] == [pytest.approx(1 / 3), 1.0]
    assert record["results"][0]["failed"] == 1 and "error" not in record
    assert "50% of the requests met the objectives." in record["finding"]
    assert "1 of 4 requests failed: the server reports an error in the stream: no." in record["finding"]


def test_an_answer_that_comes_at_once_tells_nothing_of_its_phases() -> None:
    whole = Trace(10**9, 2 * 10**9, (Event(2 * 10**9, "text", 8),))
    record = analyse({Cell(8, 8): [whole]})
    (row,) = record["results"]
    assert row["prefill_share"] is row["decode_share"] is row["tpot_s"] is None and row["dominant"] == "unknown"
    assert "the phases cannot be told apart" in record["finding"] and record["balance"] == []


def test_prompt_time_that_the_server_reports_sets_queueing_apart() -> None:
    told = request(0.5, 0.1, 3, timings={"prompt_ms": 300.0})
    (row,) = analyse({Cell(8, 3): [told, request(0.5, 0.1, 3)]})["results"]
    assert row["queue_s"] == pytest.approx(0.2)


def test_prompts_from_a_cache_are_told() -> None:
    cached = request(0.1, 0.1, 3, prompt_tokens=8, cached_tokens=7)
    finding = analyse({Cell(8, 3): [cached], Cell(9, 3): [request(0.1, 0.1, 3, cached_tokens=0)]})["finding"]
    assert "In 1 of 2 cells a cache held up to 7 tokens of the prompts" in finding


def test_nothing_measured_and_nothing_that_came() -> None:
    assert analyse({Cell(8, 3): []})["finding"] == "Nothing was measured." and analyse({})["results"] == []
    refused = analyse({Cell(8, 3): [trace([], error="cannot connect")]})
    assert refused["error"] == "no request brought a token: cannot connect"


class Watched(TruthSystem):
    """Remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.asks: list[Ask] = []

    def generate(self, ask: Ask) -> Any:
        self.asks.append(ask)
        return super().generate(ask)


ENGINE = Script(engine=Costs(chunk=64, prompt_s=1e-5, decode_s=1e-4), wire=Wire(counts="token_ids"))


def run(experiment: EndToEnd) -> dict[str, Any]:
    return asyncio.run(conduct(experiment, lambda done, total, label: None, {"seen": 1}))


def test_every_cell_is_measured_in_every_round_with_prompts_that_all_differ() -> None:
    system = Watched(ENGINE)
    record = run(EndToEnd(system, [3, 9], [2, 5, 5], repeats=3, seed=4))
    assert [(row["prompt"], row["output"], row["samples"]) for row in record["results"]] == [
        (3, 2, 3),
        (3, 5, 3),
        (9, 2, 3),
        (9, 5, 3),
    ]
    assert all(row["prompt_tokens"] == row["prompt"] for row in record["results"])
    assert all(row["output_tokens"] == row["output"] and row["failed"] == 0 for row in record["results"])
    assert (record["experiment"], record["partial"], record["seen"]) == ("endtoend", False, 1)
    assert len(system.asks) == 4 + 12  # a warm-up of each
    assert len({str(ask.prompt).split()[0] for ask in system.asks}) == len(system.asks)
    again = Watched(ENGINE)
    run(EndToEnd(again, [3, 9], [2, 5], repeats=3, seed=4))
    assert again.asks == system.asks


def test_an_interruption_leaves_what_was_measured() -> None:
    async def interrupted() -> dict[str, Any]:
        system = TruthSystem(Script(steady(0.01, 0.01, 2), wire=Wire(counts="token_ids")))
        experiment = EndToEnd(system, [4], [2], repeats=1000)
        started = asyncio.Event()

        def progress(done: int, total: int, label: str) -> None:
            if done == 3:
                started.set()

        task = asyncio.create_task(conduct(experiment, progress, {}))
        await started.wait()
        task.cancel()
        return await task

    record = asyncio.run(interrupted())
    assert record["partial"] and record["results"][0]["samples"] == 3


@pytest.mark.parametrize(("prompts", "outputs", "repeats"), [([], [1], 1), ([1], [], 1), ([1], [1], 0)])
def test_a_grid_of_nothing_is_refused(prompts: list[int], outputs: list[int], repeats: int) -> None:
    with pytest.raises(RequestError, match="at least one of each"):
        EndToEnd(TruthSystem(ENGINE), prompts, outputs, repeats=repeats)
