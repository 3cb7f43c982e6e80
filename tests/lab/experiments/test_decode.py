"""Decode: what a token costs at each context, what a position adds, and what variants of our engine change."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.decode import Decode, analyse, predict
from phaseline.lab.experiments.sweep import cell_row, decode_cell
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.records import to_json
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire
from phaseline.lab.trace import Trace
from phaseline.program.cost import decode_work, step_cost
from support.own_engine import own_engine
from support.sweeps import decode_row, trace
from support.tiny import write_llama

CONTEXTS = (64, 512, 2048)
PACES = (1.0, 1.01, 0.99)


def rows(base: float = 0.01, slope: float = 2e-6, system: str = "") -> list[dict[str, Any]]:
    return [decode_row(c, [(base + slope * c) * pace for pace in PACES], system=system) for c in CONTEXTS]


def test_base_and_slope_are_those_of_the_rows() -> None:
    record = analyse(rows())
    assert record["fit"]["base_s"] == pytest.approx(0.01, rel=0.01)
    assert record["fit"]["slope_s"] == pytest.approx(2e-6, rel=0.02)
    assert "A token takes 10.1 ms at context 64 (98.7 tok/s), 14.1 ms at context 2048" in record["finding"]
    assert "Each thousand positions more add 2 ms [" in record["finding"]
    assert record["variants"] == [] and "error" not in record


def test_noise_is_not_taken_for_growth() -> None:
    noisy = [decode_row(c, [0.01, 0.012, 0.011]) for c in CONTEXTS]
    assert "No growth with the context stands out" in analyse(noisy)["finding"]


def test_growth_is_held_against_the_bytes_of_the_state() -> None:
    predicted = {"position_bytes": 23e3, "read_s": 1e-6, "compute_s": 5e-7, "slope_s": 1e-6}
    priced = [row | {"fraction": 0.6, "limit": "bandwidth", "bytes": 1e8} for row in rows()]
    finding = analyse(priced, predicted)["finding"]
    assert "keys and values (23 MB a thousand) at the ceiling would take 1 ms, their arithmetic 500 µs: 50%" in finding
    assert "explains 60% of it, which suggests bandwidth" in finding


def test_variants_are_held_against_the_smallest_context() -> None:
    base = [row | {"bytes": 1e8, "fraction": 0.4, "limit": "unknown"} for row in rows()]
    wide = decode_row(64, [0.02, 0.0204, 0.0198], system="weights as bf16") | {"bytes": 2.5e8}
    record = analyse([*base, wide])
    (variant,) = record["variants"]
    assert variant["variant"] == "weights as bf16" and variant["bytes_ratio"] == pytest.approx(2.5)
    assert variant["time_ratio"] == pytest.approx(0.02 / 0.010128, rel=0.02)
    assert "With weights as bf16: 2.50 times the bytes, 1.97 times the time." in record["finding"]


def test_one_context_has_a_time_but_no_line() -> None:
    record = analyse([decode_row(64, [0.01])])
    assert record["fit"] is None and record["finding"] == "A token takes 10 ms at context 64 (100 tok/s)."


def test_without_tpot_there_is_an_error() -> None:
    record = analyse([cell_row(decode_cell(64), [[trace([1.0])]])])
    assert record["error"] == "no TPOT is known: no answer had tokens to count"
    failed = cell_row(decode_cell(64), [[trace([1.0], error="broken")]])
    assert analyse([failed])["error"] == "no TPOT is known: broken"


def test_the_lab_counts_the_scripted_engine_exactly() -> None:
    system = TruthSystem(Script(engine=Costs(4096, prompt_s=1e-5, decode_s=0.004), wire=Wire(counts="token_ids")))
    record = asyncio.run(conduct(Decode(system, (64, 256), rounds=2), lambda *_: None, {}))
    for row in record["results"]:
        traces = [Trace.from_dict(each) for each in row["traces"]]
        assert [trace_metrics(each).tokens for each in traces] == [24, 24]
        assert min(row["seconds"]) >= 0.0039
        assert {each.prompt_tokens for each in traces} == {row["context"] - 12}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("decode") / "tiny.gguf", format="Q4_1", layers=3)


def test_our_engine_with_other_weights(model: Path) -> None:
    with own_engine(model) as (system, own), own_engine(model, weights="bf16") as (wide, wide_own):
        experiment = Decode(
            system,
            (32, 128),
            variants={"weights as bf16": wide},
            owns={"": own, "weights as bf16": wide_own},
            rounds=2,
            vocabulary=range(320),
        )
        record = json.loads(to_json(asyncio.run(conduct(experiment, lambda *_: None, {}))))
        predicted = predict(own, 128)
        costs = [step_cost(own.program, decode_work(c)) for c in (32, 128)]
    assert [(row["context"], row["system"]) for row in record["results"]] == [
        (32, None),
        (128, None),
        (32, "weights as bf16"),
    ]
    assert [row["bytes"] for row in record["results"][:2]] == [pytest.approx(cost.bytes) for cost in costs]
    (variant,) = record["variants"]
    assert variant["bytes_ratio"] == pytest.approx(record["results"][2]["bytes"] / costs[0].bytes)
    assert 2 < variant["bytes_ratio"] < 3.2
    per_position = 3 * 2 * 2 * 16 * 2  # layers, keys and values, heads, head size, bytes
    assert predicted["position_bytes"] == per_position
    assert record["predicted"] == pytest.approx(predicted)
    assert all(row["limit"] in {"launch", "bandwidth", "compute", "unknown"} for row in record["results"])


def test_no_contexts_are_refused() -> None:
    with pytest.raises(RequestError, match="no contexts"):
        Decode(TruthSystem(Script(engine=Costs(1, 1, 1))), ())
