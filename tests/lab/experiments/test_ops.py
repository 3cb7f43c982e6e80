"""A step's operations in prefill and decode: all of them, their sum, and their bounds."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phaseline import load
from phaseline.engine.engine import Engine
from phaseline.lab.experiments.ops import measure_ops
from phaseline.lab.op_groups import op_groups
from phaseline.lab.records import to_json
from phaseline.lab.stats import median
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.program.cost import decode_work, prefill_work, step_cost
from support.engines import assert_idle
from support.tiny import write_llama


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("ops") / "tiny.gguf"
    engine = load(write_llama(path, format="Q4_1", layers=3, context=128), threads=1, chunk=64)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def record(engine: Engine) -> dict[str, Any]:
    measured = measure_ops(PhaselineSystem(engine), chunk=64, context=512, rounds=3)
    restored: dict[str, Any] = json.loads(to_json(measured))
    return restored


def test_both_phases_hold_every_operation(record: dict[str, Any], engine: Engine) -> None:
    labels = [group.label for group in op_groups(engine.executor.program)]
    for phase, work in (("prefill", prefill_work(64)), ("decode", decode_work(127))):
        rows = [row for row in record["ops"] if row["phase"] == phase]
        assert [row["op"] for row in rows] == labels
        cost = step_cost(engine.executor.program, work)
        assert sum(row["flops"] for row in rows) == pytest.approx(cost.flops)
        assert sum(row["bytes"] for row in rows) == pytest.approx(cost.bytes)
        for row in rows:
            assert len(row["seconds"]) == 3 and row["median_s"] == median(row["seconds"])
            assert row["fraction"] == pytest.approx(max(row["bounds_s"].values()) / row["median_s"])
            assert (row["limit"] == "unknown") == (row["fraction"] < 0.5)
    assert_idle(engine)


def test_the_sum_is_held_against_the_step(record: dict[str, Any]) -> None:
    assert [(step["phase"], step["tokens"], step["context"]) for step in record["op_steps"]] == [
        ("prefill", 64, 0),
        ("decode", 1, 127),
    ]
    for step in record["op_steps"]:
        ratios = [a / b for a, b in zip(step["sum_s"], step["profiled_s"], strict=True)]
        assert step["ratio"] == pytest.approx(median(ratios)) and 0 < step["ratio"] <= 1
        assert step["agrees"] == (step["ratio"] >= 0.95)
        rows = [row for row in record["ops"] if row["phase"] == step["phase"]]
        for n in range(3):
            assert sum(row["seconds"][n] for row in rows) == pytest.approx(step["sum_s"][n])
