"""What a sparse model's steps read, expected and counted, and the wins that follow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phaseline import load
from phaseline.engine.engine import Engine
from phaseline.errors import RequestError
from phaseline.lab.experiments.phases import measure_phases
from phaseline.lab.sparsity import Reading, allowed_win, chunk_wins, dispatch_win, mean_reading, reading, win_sentence
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.program.cost import decode_work, prefill_work, prompt_cost, step_cost
from support.sparse import write_sparse
from support.tiny import write_llama

EXPERTS, ACTIVE, LAYERS = 8, 3, 2


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("sparse") / "tiny.gguf"
    write_sparse(path, "olmoe", format="Q4_1", experts=EXPERTS, active=ACTIVE, layers=LAYERS, context=128)
    engine = load(path, threads=1, max_running=8)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def record(engine: Engine) -> dict[str, Any]:
    return measure_phases(PhaselineSystem(engine), model={}, repeats=1)


def expert_bytes(engine: Engine) -> float:
    return step_cost(engine.executor.program, decode_work(1)).routed_bytes / ACTIVE / LAYERS


def test_what_was_counted_lies_between_one_row_and_all_experts(record: dict[str, Any], engine: Engine) -> None:
    rows = [row for row in record["results"] if "sparse" in row]
    assert {(row["phase"], row["mode"]) for row in rows} >= {
        ("prefill", "chunk"),
        ("prefill", "dispatch"),
        ("decode", "chunk"),
    }
    for row in rows:
        sparse = Reading(**row["sparse"])
        assert sparse.distinct_observed is not None and sparse.routed_bytes_observed is not None
        assert ACTIVE <= sparse.distinct_observed <= EXPERTS == sparse.experts
        if row["mode"] in ("chunk", "eager"):  # each touched expert is read once
            counted = sparse.distinct_observed * LAYERS * expert_bytes(engine)
        else:
            counted = sparse.rows * ACTIVE * LAYERS * expert_bytes(engine)
        assert sparse.routed_bytes_observed == pytest.approx(counted)
        if row["phase"] == "decode" and row["streams"] == 1:
            assert sparse.distinct == sparse.distinct_observed == ACTIVE


def test_wins_are_those_of_bytes_and_of_rates(record: dict[str, Any], engine: Engine) -> None:
    program = engine.executor.program
    prefills = {(r["mode"], r["tokens"]): r for r in record["results"] if r["phase"] == "prefill"}
    wins = record["chunk_wins"]
    assert {win["tokens"] for win in wins} == {tokens for mode, tokens in prefills if mode == "chunk"}
    for win in wins:
        row = prefills["chunk", win["tokens"]]
        many = Reading(**row["sparse"])
        assert win["allowed"] == pytest.approx(prompt_cost(program, many.rows, 1).weight_bytes / many.bytes)
        assert 1 < win["allowed_over_dispatch"] <= win["allowed"]
        (walk,) = (r for (mode, _), r in prefills.items() if mode == "walk")
        assert win["measured"] == pytest.approx(row["tok_s"] / walk["tok_s"])
        beside = prefills.get(("dispatch", win["tokens"]))
        if beside:
            assert win["measured_over_dispatch"] == pytest.approx(row["tok_s"] / beside["tok_s"])
        else:
            assert win["measured_over_dispatch"] is None
        assert "times the walk, where bytes allow" in win_sentence(win)
    assert [ratio["mode"] for ratio in record["phase_ratios"]] == ["walk", "layer", "eager", "chunk", "dispatch"]


def test_a_single_row_wins_nothing(engine: Engine) -> None:
    one = reading(engine.executor.program, prefill_work(1))
    assert one and one.distinct == ACTIVE and one.routed_bytes_observed is None
    assert allowed_win(engine.executor.program, one) == dispatch_win(engine.executor.program, one) == 1


def test_routed_bytes_bound_the_win_where_rows_do_not_overlap(engine: Engine) -> None:
    """Two rows of disjoint experts share the rest alone."""
    program = engine.executor.program
    one = expert_bytes(engine)
    apart = reading(program, prefill_work(2))
    assert apart
    apart = Reading(2, EXPERTS, apart.shared_bytes, 0, 0, 2 * ACTIVE * LAYERS * one, 2 * ACTIVE)
    assert dispatch_win(program, apart) == pytest.approx(1)
    assert "6.0 counted" in apart.sentence()


def test_what_was_counted_is_averaged() -> None:
    a, b = (Reading(4, 8, 10.0, 20.0, 5.0, counted, distinct) for counted, distinct in ((18.0, 4.0), (22.0, 6.0)))
    assert mean_reading([a, b]) == Reading(4, 8, 10.0, 20.0, 5.0, 20.0, 5.0)
    blind = Reading(4, 8, 10.0, 20.0, 5.0)
    assert mean_reading([blind]) == blind and blind.bytes == 30


def test_dense_models_say_nothing(tmp_path: Path) -> None:
    engine = load(write_llama(tmp_path / "dense.gguf", context=64), threads=1)
    assert reading(engine.executor.program, prefill_work(4)) is None
    assert chunk_wins(engine.executor.program, []) == []
    with pytest.raises(RequestError, match="mode dispatch: this model has no experts"):
        measure_phases(PhaselineSystem(engine), model={}, mode="dispatch", repeats=1)
