"""Streams that decode together: the shared and the own part that were put in come out again."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.batch import Batch, analyse, predict, predicted_step
from phaseline.lab.experiments.sweep import cell_row, decode_cell
from phaseline.lab.records import to_json
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire
from phaseline.program.cost import decode_work, step_cost
from support.own_engine import own_engine
from support.sweeps import decode_row, trace
from support.tiny import write_llama

STREAMS = (1, 2, 4, 8)
PACES = (1.0, 1.01, 0.99)


def rows(shared: float, own: float) -> list[dict[str, Any]]:
    made = [decode_row(256, [(shared + own * n) * pace for pace in PACES], streams=n) for n in STREAMS]
    return [row | {"stream_tok_s": row["tok_s"] / row["streams"]} for row in made]


def test_shared_and_own_parts_are_those_of_the_rows() -> None:
    record = analyse(rows(0.01, 0.002))
    assert record["fit"]["shared_s"] == pytest.approx(0.01, rel=0.02)
    assert record["fit"]["own_s"] == pytest.approx(0.002, rel=0.03)
    finding = record["finding"]
    assert "One stream at context 256 gets 83.3 tok/s." in finding
    assert "8 streams get 308 tok/s together, 3.69 times as much, and 38.5 tok/s each, 46%" in finding
    assert "10 ms [" in finding and "they get no more than 5" in finding and "cannot be seen from outside" in finding


def test_what_batching_amortises_wholly_or_not_at_all() -> None:
    assert "all of it is amortised" in analyse(rows(0.01, 0.0))["finding"]
    assert "batching gains nothing" in analyse(rows(1e-5, 0.01))["finding"]


def test_noise_is_not_taken_for_a_lack_of_sharing() -> None:
    noisy = [decode_row(256, [0.01 * n * pace for pace in (0.7, 1.0, 1.5)][:: 1 if n % 2 else -1], n) for n in (1, 2)]
    noisy = [row | {"stream_tok_s": row["tok_s"] / row["streams"]} for row in noisy]
    assert "cannot be told from the noise" in analyse(noisy)["finding"]


def test_streams_that_do_not_run_at_once_are_told() -> None:
    waiting = cell_row(decode_cell(256, 2, tokens=2), [[trace([1, 2]), trace([3, 4])]]) | {"stream_tok_s": None}
    record = analyse([*rows(0.01, 0.002)[:1], waiting])
    assert "With 2 streams some began only when others had ended" in record["finding"]
    assert record["fit"] is None, "one number of streams alone"


def test_nothing_known_is_an_error() -> None:
    failed = cell_row(decode_cell(256), [[trace([], error="broken")]]) | {"stream_tok_s": None}
    assert analyse([failed])["error"] == "no step time is known: broken"


def test_the_roofline_of_a_batch() -> None:
    """Weights are read once, state by each stream, arithmetic hides behind the weights up to the critical number."""
    parts = {"weights_s": 0.8, "state_s": 0.1, "compute_s": 0.2, "launch_s": 0.05, "critical_streams": 4.0}
    assert predicted_step(parts, 1) == pytest.approx(0.9)
    assert predicted_step(parts, 4) == pytest.approx(1.2)
    assert predicted_step(parts, 8) == pytest.approx(0.8 + 1.6)
    assert predicted_step(parts | {"launch_s": 3.0}, 1) == 3.0


def test_the_lab_finds_the_scripted_engine() -> None:
    system = TruthSystem(Script(engine=Costs(4096, 1e-5, decode_s=0.006, row_s=0.002), wire=Wire(counts="token_ids")))
    record = asyncio.run(conduct(Batch(system, (4,), context=32, rounds=2), lambda *_: None, {}))
    assert [row["streams"] for row in record["results"]] == [1, 4]
    for row in record["results"]:
        assert min(row["seconds"]) >= 0.7 * (0.006 + 0.002 * row["streams"])
        assert all(sum(e[2] or 0 for e in each["events"]) == 24 for each in row["traces"])
        assert len(row["traces"]) == 2 * row["streams"] and not row["queued"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("batch") / "tiny.gguf", format="Q4_1")


def test_our_engine_is_priced(model: Path) -> None:
    with own_engine(model, max_running=4) as (system, own):
        experiment = Batch(system, (1, 4), context=64, rounds=2, vocabulary=range(320), own=own)
        record = json.loads(to_json(asyncio.run(conduct(experiment, lambda *_: None, {}))))
        predicted, cost = predict(own, 64), step_cost(own.program, decode_work(64))
    assert predicted["weight_bytes"] == cost.weight_bytes and predicted["state_bytes"] == cost.state_bytes
    assert predicted["critical_streams"] == pytest.approx(predicted["weights_s"] / predicted["compute_s"])
    for row in record["results"]:
        assert row["predicted_s"] == pytest.approx(predicted_step(record["predicted"], row["streams"]))
        assert row["stream_tok_s"] == pytest.approx(row["tok_s"] / row["streams"])
        assert row["bytes"] == pytest.approx(cost.weight_bytes + row["streams"] * cost.state_bytes, rel=0.01)
    assert "which hides behind the weights up to" in record["finding"]


def test_more_streams_than_seats_queue(model: Path) -> None:
    with own_engine(model, max_running=2) as (system, own):
        experiment = Batch(system, (4,), context=64, rounds=1, vocabulary=range(320), own=own)
        record = asyncio.run(conduct(experiment, lambda *_: None, {}))
    alone, four = record["results"]
    assert four["queued"] and four["median_s"] is None and not alone["queued"]
    assert "some began only when others had ended" in record["finding"]


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(RequestError, match="0 numbers of streams"):
        Batch(TruthSystem(Script(engine=Costs(1, 1, 1))), ())
