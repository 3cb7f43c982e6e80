"""The probe of our own engine: what it runs, that claims come from what was measured, and want of pages."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import CapacityError, RequestError
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.regime_probe import Regime
from phaseline.lab.op_groups import op_groups
from phaseline.lab.records import to_json
from phaseline.lab.stats import median
from phaseline.program.cost import decode_work, prefill_work, step_cost, weight_bytes
from support.engines import assert_idle
from support.own_engine import own_engine
from support.sparse import write_sparse
from support.tiny import write_llama

LIMITS = {"launch", "bandwidth", "compute", "capacity", "unknown"}
VARIANTS: dict[str, dict[str, Any]] = {
    "weights as q8_0": {"weights": "q8_0"},
    "weights as bf16": {"weights": "bf16"},
    "state as f32": {"kv_type": "f32"},
}


def run(experiment: Regime) -> dict[str, Any]:
    record = asyncio.run(conduct(experiment, lambda *_: None, {}))
    restored: dict[str, Any] = json.loads(to_json(record))
    return restored


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("regime") / "tiny.gguf", format="Q4_1", layers=3)


@pytest.fixture(scope="module")
def record(model: Path) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        system, own = stack.enter_context(own_engine(model, chunk=64, max_running=4))
        variants = {
            name: stack.enter_context(own_engine(model, chunk=64, max_running=4, **options))[1]
            for name, options in VARIANTS.items()
        }
        yield run(Regime(own, variants, tokens=100, context=60, streams=(1, 4), rounds=3))
        assert_idle(system._engine)


def test_phases_and_their_interventions(record: dict[str, Any]) -> None:
    rows = record["results"]
    assert [row["label"] for row in rows] == [
        "prefill of 64 tokens",  # a chunk's
        "decode of 1 stream at context 60",
        "decode of 4 streams at context 60",
    ]
    changes = [[one["change"] for one in row["interventions"]] for row in rows]
    assert [each[0] for each in changes] == ["half the rows", "twice the streams", "half the streams"]
    assert all(each[1:] == list(VARIANTS) for each in changes)
    for row in rows:
        assert row["limit"] in LIMITS - {"capacity"} and row["evidence"]
        assert len(row["seconds"]) == 3 and row["median_s"] == median(row["seconds"])
        assert row["tok_s"] == pytest.approx(row["tokens"] * row["streams"] / row["median_s"])
        assert row["label"].capitalize() in record["finding"]


def test_work_and_expectations_are_priced_by_the_programs(record: dict[str, Any], model: Path) -> None:
    with own_engine(model) as (_, own), own_engine(model, weights="bf16") as (_, wide):
        works = [prefill_work(64), decode_work(60), decode_work(60, streams=4)]
        for row, work in zip(record["results"], works, strict=True):
            cost = step_cost(own.program, work)
            assert (row["flops"], row["bytes"]) == (pytest.approx(cost.flops), pytest.approx(cost.bytes))
            rows, q8_0, bf16, state = row["interventions"]
            assert rows["expected"]["launch"] == q8_0["expected"]["launch"] == 1
            assert bf16["expected"]["compute"] is None and not bf16["same_arithmetic"]
            assert q8_0["expected"]["compute"] == pytest.approx(1) and q8_0["same_arithmetic"]
            assert 1 < state["expected"]["bandwidth"] < 2 and state["expected"]["compute"] == pytest.approx(1)
            grown = step_cost(wide.program, work).bytes / cost.bytes
            assert bf16["expected"]["bandwidth"] == pytest.approx(grown, rel=0.6), "at other rates by footprint"


def test_operations_of_each_phase(record: dict[str, Any], model: Path) -> None:
    with own_engine(model) as (_, own):
        labels = [group.label for group in op_groups(own.program)]
    for row in record["results"]:
        ops = [op for op in record["ops"] if op["label"] == row["label"]]
        assert [op["op"] for op in ops] == labels
        whole = median([sum(op["seconds"][turn] for op in ops) for turn in range(3)])
        assert all(op["share"] == pytest.approx(median(op["seconds"]) / whole) for op in ops)
        assert sum(op["flops"] for op in ops) == pytest.approx(row["flops"])
        assert all(op["limit"] in LIMITS and len(op["seconds"]) == 3 for op in ops)
        attend = next(op for op in ops if op["op"] == "attend")
        assert all(one["same_arithmetic"] for one in attend["interventions"]), "it multiplies no weights"


def test_streams_without_room_are_limited_by_capacity(model: Path) -> None:
    """The pool holds two full contexts; four streams of 200 positions need more pages than it has."""
    with own_engine(model) as (_, own):
        state = 2 * 256 * own.program.state[0].elements(1) * 2
        memory = (256 << 20) + weight_bytes(own.program) + state  # beside what is kept for working memory
    with own_engine(model, max_running=4, memory=memory) as (system, own):
        assert own.system.holds(1, 201) and not own.system.holds(4, 201)
        record = run(Regime(own, {}, tokens=32, context=200, streams=(1, 4), rounds=1))
        assert_idle(system._engine)
    prefill, one, four = record["results"]
    assert (four["limit"], four["inferred"], four["median_s"]) == ("capacity", False, None)
    assert four["watched"]["waited"] > 0 or four["watched"]["preempted"] > 0
    assert four["watched"]["most"] < 4
    assert prefill["limit"] != "capacity" != one["limit"]
    assert "limited by capacity" in record["finding"]


def test_a_model_of_one_row_at_a_time(model: Path) -> None:
    with own_engine(model, mode="walk") as (_, own):
        record = run(Regime(own, {}, tokens=64, context=20, streams=(1,), rounds=1))
    assert record["results"][0]["label"] == "prefill of 1 token" and not record["results"][0]["interventions"]


def test_interrupted_before_the_first_round(model: Path) -> None:
    with own_engine(model) as (_, own):
        record = Regime(own, {}, streams=(1,)).record()
    assert record["finding"] == "Nothing was measured." and record["results"] == []


def test_what_is_refused(model: Path) -> None:
    with own_engine(model, max_running=2) as (_, own):
        with pytest.raises(CapacityError, match="8 streams: the engine was loaded for at most 2"):
            Regime(own, {}, streams=(8,))
        with pytest.raises(RequestError, match="at least 1 of each"):
            Regime(own, {}, streams=(0,))
        with pytest.raises(RequestError, match="repeats = 0"):
            Regime(own, {}, streams=(1,), rounds=0)


def test_a_sparse_model_tells_shared_bytes_from_routed(tmp_path: Path, record: dict[str, Any]) -> None:
    path = write_sparse(tmp_path / "sparse.gguf", "qwen3moe", experts=8, active=2)
    with own_engine(path, chunk=64, max_running=4) as (_, own):
        found = run(Regime(own, {}, tokens=32, context=20, streams=(1,), rounds=1))
    prefill, decode = found["results"]
    assert prefill["sparse"]["rows"] == 32 and 2 < prefill["sparse"]["distinct_observed"] <= 8
    assert decode["sparse"]["distinct"] == decode["sparse"]["distinct_observed"] == 2
    assert "Decode of 1 row:" in found["finding"] and "By bytes a row may be read" in found["finding"]
    assert f"measured {prefill['tok_s'] / decode['tok_s']:.2f} times decode's" in found["finding"]
    assert "experts" not in record["finding"] and not any("sparse" in row for row in record["results"])
