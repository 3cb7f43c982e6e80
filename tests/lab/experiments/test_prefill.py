"""Prefill: the floor and slope that were put in, what our engine tells besides, and a per-token engine found out."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.prefill import Prefill, analyse, predict
from phaseline.lab.records import to_json
from phaseline.lab.steps import StepSize
from phaseline.lab.systems.base import StreamSystem
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Fault, Script, Wire
from phaseline.lab.trace import Trace
from phaseline.program.cost import prompt_cost, step_cost
from phaseline.program.ops import Linear
from support.own_engine import own_engine
from support.sweeps import decode_row, prefill_row
from support.tiny import write_llama

LENGTHS = (4, 16, 32, 64, 128, 256)
PACES = (1.0, 1.03, 0.98)


def rows(floor: float = 0.01, slope: float = 0.001, knee: int = 24, decode: float = 0.012) -> list[dict[str, Any]]:
    """A system that reads up to `knee` tokens in `floor` seconds."""
    times = {n: floor + slope * max(0, n - knee) for n in LENGTHS}
    prompts = [prefill_row(n, [t * pace for pace in PACES]) for n, t in times.items()]
    return [*prompts, decode_row(64, [decode] * 3)]


def measure(experiment: Prefill) -> dict[str, Any]:
    record = asyncio.run(conduct(experiment, lambda *_: None, {"model": {"name": "tiny"}}))
    restored: dict[str, Any] = json.loads(to_json(record))
    return restored


def test_floor_slope_and_ratio_are_those_of_the_rows() -> None:
    record = analyse(rows())
    assert record["fit"]["floor_s"] == pytest.approx(0.01, rel=0.02)
    assert record["fit"]["marginal_tok_s"] == pytest.approx(1000, rel=0.03)
    assert record["fit"]["knee"] == pytest.approx(24, rel=0.2)
    ratio = record["phase_ratio"]
    assert (ratio["prefill_tokens"], ratio["decode_context"]) == (256, 64)
    assert ratio["ratio"] == pytest.approx(256 / 0.242 * 0.012, rel=0.01)
    finding = record["finding"]
    assert "A prompt takes at least 10 ms [" in finding and "Each token beyond costs 1 ms [" in finding
    assert "the rows of a prompt share what a step costs" in finding and "not asked of this system" in finding
    assert "error" not in record and record["rows_wanted"] is None


def test_a_per_token_engine_is_told_what_its_ratio_means() -> None:
    record = analyse(rows(floor=0.004, slope=0.001, knee=4, decode=0.001))
    assert record["phase_ratio"]["ratio"] == pytest.approx(1, rel=0.05)
    assert "about 1: this engine has no batched prefill" in record["finding"]
    assert "No floor is in sight" in record["finding"]


def test_times_that_do_not_depend_on_the_length() -> None:
    record = analyse(rows(slope=0.0))
    assert record["fit"]["knee"] is None and record["fit"]["marginal_tok_s"] is None
    assert "does not depend on its length: 10" in record["finding"]


def test_predictions_stand_beside_what_was_measured() -> None:
    predicted = {"floor_s": 0.009, "knee": 20.0, "rows": 64, "head_share": 0.21, "weight_bytes": 1e6, "walking": 1.2}
    wanted = {"last": [0.8, 0.81, 0.79], "all": [1.0, 1.0, 1.0]}
    record = analyse(rows(), predicted=predicted, rows_wanted=wanted)
    assert record["rows_wanted"]["predicted_saving"] == 0.21
    assert record["rows_wanted"]["measured_saving"] == pytest.approx(0.2)
    assert "leaves out 21% of the products" in record["finding"] and "saves 20% of the time" in record["finding"]
    assert "the floor is 9 ms and ends at 20 tokens" in record["finding"]


def test_reading_token_by_token_without_the_head_is_found_out_too() -> None:
    predicted = {"floor_s": 0.001, "knee": 4.0, "rows": 64, "head_share": 0.3, "weight_bytes": 1e6, "walking": 1.6}
    walking = rows(floor=0.002, slope=0.0005, knee=4, decode=0.00085)
    assert "no batched prefill" in analyse(walking, predicted=predicted)["finding"]
    assert "no batched prefill" not in analyse(walking, predicted=predicted | {"walking": 1.0})["finding"]


def test_too_few_lengths_have_no_fit_but_times() -> None:
    record = analyse([prefill_row(8, [0.1]), decode_row(64, [0.1])])
    assert record["fit"] is None and record["phase_ratio"]["ratio"] == pytest.approx(8)
    assert "Too few lengths" in record["finding"] and "8 tokens takes 100 ms" in record["finding"]


def test_cached_prompts_are_told() -> None:
    cached = [prefill_row(n, [0.1 + n / 1e4] * 2, cached_tokens=n // 2) for n in (8, 16, 32)]
    assert "prefill is flattered" in analyse(cached)["finding"]


def test_the_lab_finds_the_scripted_engine() -> None:
    """Counts exactly, times loosely: a busy machine only adds to them."""
    costs = Costs(64, prompt_s=0.0004, decode_s=0.005, floor_s=0.008)
    system = TruthSystem(Script(engine=costs, wire=Wire(counts="token_ids")))
    record = measure(Prefill(system, (8, 32, 64, 128), rounds=2))
    assert [row["tokens"] for row in record["results"][:4]] == [8, 32, 64, 128]
    for row in record["results"][:4]:
        assert len(row["traces"]) == len(row["seconds"]) == 2
        assert min(row["seconds"]) >= sum(costs.step_s(n, 0) for n in chunks(row["tokens"], 64))
    decode = record["results"][-1]
    assert (decode["phase"], decode["context"], decode["streams"]) == ("decode", 64, 1)
    assert sum(event[2] or 0 for event in decode["traces"][0]["events"]) == 24
    assert record["partial"] is False and record["experiment"] == "prefill"


def chunks(tokens: int, size: int) -> list[int]:
    return [min(size, tokens - at) for at in range(0, tokens, size)]


def test_a_scripted_per_token_engine_is_found_out() -> None:
    costs = Costs(1, prompt_s=0.004, decode_s=0.004)
    record = measure(Prefill(TruthSystem(Script(engine=costs)), (4, 8, 16), context=8, rounds=1))
    assert record["phase_ratio"]["ratio"] < 1.5
    assert "no batched prefill" in record["finding"]


def test_a_system_that_refuses_everything_leaves_an_error() -> None:
    system = TruthSystem(Script(engine=Costs(8, 0.001, 0.001), fault=Fault("refuse")))
    record = measure(Prefill(system, (4, 8, 16), rounds=2))
    assert record["error"] == "no prompt was read: scripted: refused with 503"
    assert record["fit"] is None and record["finding"] == "No prompt was read."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("prefill") / "tiny.gguf", format="Q4_1", layers=3, vocab=2000)


def test_our_engine_is_priced_and_its_head_measured(model: Path) -> None:
    with own_engine(model, chunk=48) as (system, own):
        record = measure(Prefill(system, (1, 16, 64, 200), rounds=2, vocabulary=range(2000), own=own))
        program = own.program
        predicted = predict(own)
    for row in record["results"]:
        assert row.keys() >= {"phase", "mode", "tokens", "context", "streams", "chunk", "seconds", "tok_s", "limit"}
        assert row["limit"] in {"launch", "bandwidth", "compute", "unknown"}
        assert (row["mode"], row["chunk"]) == ("chunk", 48)
    last, every = (StepSize(48, all_rows=a).work(2) for a in (False, True))
    head = [op for op in program.ops if isinstance(op, Linear)][-1]
    left_out = head.cost(every).flops - head.cost(last).flops
    products = sum(op.cost(every).flops for op in program.ops if isinstance(op, Linear))
    assert record["rows_wanted"]["predicted_saving"] == pytest.approx(left_out / products)
    assert len(record["rows_wanted"]["all_s"]) == len(record["rows_wanted"]["last_s"]) == 7
    assert record["ceilings"]["float_flops"] > 0
    assert predicted["weight_bytes"] == step_cost(program, StepSize(1).work(2)).weight_bytes
    assert "most of the LM head" in record["finding"]
    traces = [Trace.from_dict(trace) for row in record["results"] for trace in row["traces"]]
    assert all(trace.error is None for trace in traces)


def test_our_engine_walking_is_a_per_token_engine(model: Path) -> None:
    with own_engine(model, mode="walk") as (system, own):
        record = measure(Prefill(system, (16, 64), context=40, rounds=3, vocabulary=range(2000), own=own))
        program = own.program
    assert {row["chunk"] for row in record["results"]} == {1}
    prefill = record["results"][1]
    assert prefill["flops"] == pytest.approx(prompt_cost(program, 64, 1).flops), "step by step"
    assert record["predicted"]["walking"] == pytest.approx(2, rel=0.4), "the head is half of a decode step here"
    assert "no batched prefill" in record["finding"] and record["phase_ratio"]["ratio"] < 4


def test_interrupted_before_anything_was_measured(model: Path) -> None:
    with own_engine(model) as (system, own):
        record = Prefill(system, (4, 8, 16), own=own).record()
    assert record["error"] == "no prompt was read: nothing was measured"


def test_no_lengths_are_refused() -> None:
    system: StreamSystem = TruthSystem(Script(engine=Costs(8, 0.001, 0.001)))
    with pytest.raises(RequestError, match="no prompt lengths"):
        Prefill(system, ())
