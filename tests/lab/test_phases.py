"""The main measurement: the record it yields, and that its cells fit every model they are planned for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phaseline import load
from phaseline.engine.engine import Engine
from phaseline.errors import CapacityError, RequestError
from phaseline.lab.experiments.phases import MODES, measure_phases, phase_ratios, plan_cells
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.records import to_json
from phaseline.lab.stats import median, spread
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.lab.trace import Trace
from phaseline.program.cost import decode_work, prompt_cost, step_cost
from support.tiny import write_llama

CONTEXT, ROUNDS = 128, 2
CONTRACT = {"phase", "mode", "tokens", "context", "streams", "chunk", "seconds", "tok_s", "flops", "bytes", "limit"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_llama(tmp_path_factory.mktemp("phases") / "tiny.gguf", context=CONTEXT, format="Q4_1")
    engine = load(path, threads=1, chunk=512, max_running=8)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=[48, 512])
def chunk(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    return size


@pytest.fixture(scope="module")
def progress(chunk: int) -> list[tuple[int, int, str]]:
    return []


@pytest.fixture(scope="module")
def record(engine: Engine, chunk: int, progress: list[tuple[int, int, str]]) -> dict[str, Any]:
    """As a reader of the file gets it: through strict JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    measured = measure_phases(
        PhaselineSystem(engine),
        model={"name": "tiny"},
        chunk=chunk,
        repeats=ROUNDS,
        progress=lambda done, total, label: progress.append((done, total, label)),
    )
    restored: dict[str, Any] = json.loads(to_json(measured), parse_constant=refuse)
    return restored


def test_the_record_names_model_machine_and_build(record: dict[str, Any]) -> None:
    assert record["model"] == {"name": "tiny"}
    assert record["rounds"] == ROUNDS
    assert record["build"].keys() >= {"level", "threads"}
    assert record["machine"].keys() >= {"cpu", "cores", "threads", "ceilings"}
    ceilings = record["machine"]["ceilings"]
    assert ceilings["float_flops"] > 0 and ceilings["quant_flops"] > 0
    assert [point["footprint"] for point in ceilings["read"]] == sorted({p["footprint"] for p in ceilings["read"]})
    assert {"version", "date", "command"} <= record.keys()


def test_every_row_keeps_the_contract(record: dict[str, Any]) -> None:
    rows = record["results"]
    assert {(row["phase"], row["mode"]) for row in rows} == {
        *(("prefill", mode) for mode in MODES),
        ("decode", "chunk"),
        ("decode", "eager"),
    }
    for row in rows:
        assert row.keys() >= CONTRACT | {"fraction"}
        assert len(row["seconds"]) == ROUNDS and all(seconds > 0 for seconds in row["seconds"])
        assert (row["median_s"], row["spread_s"]) == (median(row["seconds"]), spread(row["seconds"]))
        made = row["tokens"] if row["phase"] == "prefill" else row["streams"]
        assert row["tok_s"] == pytest.approx(made / row["median_s"])
        assert row["limit"] in {"launch", "bandwidth", "compute", "capacity", "unknown"}
        assert row["fraction"] == pytest.approx(max(row["bounds_s"].values()) / row["median_s"])
        assert (row["limit"] == "unknown") == (row["fraction"] < 0.5)


def test_seconds_are_derived_from_the_traces_kept(record: dict[str, Any]) -> None:
    for row in record["results"]:
        traces = [Trace.from_dict(trace) for trace in row["traces"]]
        assert len(traces) == ROUNDS * row["streams"]
        metrics = [trace_metrics(trace) for trace in traces]
        rounds = [metrics[i : i + row["streams"]] for i in range(0, len(metrics), row["streams"])]
        if row["phase"] == "prefill":
            assert [trace.prompt_tokens for trace in traces] == [row["tokens"]] * ROUNDS
            assert row["seconds"] == [one.ttft for (one,) in rounds]
        else:
            assert [one.tokens for one in metrics] == [row["tokens"]] * len(metrics)
            assert row["seconds"] == pytest.approx([median([one.tpot or 0 for one in each]) for each in rounds])


def test_work_is_priced_by_the_program(record: dict[str, Any], engine: Engine, chunk: int) -> None:
    program = engine.executor.program
    for row in record["results"]:
        if row["phase"] == "prefill":
            cost = prompt_cost(program, row["tokens"], 1 if row["mode"] == "walk" else chunk)
        else:
            cost = step_cost(program, decode_work(row["context"], streams=row["streams"]))
        assert (row["flops"], row["bytes"]) == (pytest.approx(cost.flops), pytest.approx(cost.bytes))


def test_each_mode_has_its_ratio_to_decode(record: dict[str, Any]) -> None:
    ratios = record["phase_ratios"]
    assert [ratio["mode"] for ratio in ratios] == list(MODES)
    for ratio in ratios:
        assert ratio["ratio"] == pytest.approx(ratio["prefill_tok_s"] / ratio["decode_tok_s"])
        row = next(
            r
            for r in record["results"]
            if (r["phase"], r["mode"], r["tokens"]) == ("prefill", ratio["mode"], ratio["prefill_tokens"])
        )
        assert ratio["prefill_tok_s"] == row["tok_s"]
    assert len({(ratio["decode_context"], ratio["decode_tok_s"]) for ratio in ratios}) == 1


def test_the_marginal_rate_is_the_slope_of_the_two_longest() -> None:
    def row(tokens: int, seconds: float, **others: Any) -> dict[str, Any]:
        base = {"phase": "prefill", "mode": "chunk", "tokens": tokens, "context": 0, "streams": 1}
        return base | {"seconds": [seconds, seconds], "tok_s": tokens / seconds} | others

    decode = row(16, 0.5, phase="decode", tok_s=2.0, context=64)
    (ratio,) = phase_ratios([row(100, 1.5), decode, row(50, 1.0), row(300, 2.5)])
    assert ratio["marginal_tok_s"] == pytest.approx(200.0)
    assert (ratio["prefill_tokens"], ratio["ratio"]) == (300, pytest.approx(60.0))
    (noisy,) = phase_ratios([decode, row(100, 2.0), row(300, 1.0)])
    assert noisy["marginal_tok_s"] is None  # a longer prompt that took less time tells nothing


def test_progress_goes_from_nothing_to_all(progress: list[tuple[int, int, str]], record: dict[str, Any]) -> None:
    total = ROUNDS * len(record["results"])
    assert {each[1] for each in progress} == {total}
    assert [done for done, _, _ in progress] == sorted(done for done, _, _ in progress)
    assert (progress[0][0], progress[-1][0]) == (0, total)


def test_nothing_is_left_in_the_engine(record: dict[str, Any], engine: Engine) -> None:
    table = engine.scheduler.table
    table.check()
    assert not engine.has_work and table.free_pages == table.pages


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("context", [32, 33, 64, 65, 79, 80, 100, 512, 2048, 8192, 131072])
def test_every_cell_fits_the_context(context: int, full: bool) -> None:
    cells = plan_cells(context, 64, full=full)
    assert len(set(cells)) == len(cells)
    for cell in cells:
        if cell.phase == "prefill":
            assert 1 <= cell.tokens < context
            assert sum(work.rows for work in cell.steps(2)) == cell.tokens
            assert sum(work.wanted for work in cell.steps(2)) == 1
        else:  # half of the sample's tokens come before the stated context, half after it
            assert cell.tokens // 2 < cell.context <= context - cell.tokens // 2
    assert {cell.mode for cell in cells if cell.phase == "prefill"} == set(MODES)
    assert any(cell.phase == "decode" and cell.mode == "chunk" and cell.streams == 1 for cell in cells)


def test_several_streams_decode_together_only_if_one_chunk_reads_their_prompts(
    record: dict[str, Any], chunk: int
) -> None:
    assert {row["streams"] for row in record["results"]} == ({1, 8} if chunk == 512 else {1})


def test_one_mode_by_itself_is_still_held_against_decode(engine: Engine) -> None:
    measured = measure_phases(PhaselineSystem(engine), model={}, mode="layer", repeats=1)
    assert {(row["phase"], row["mode"]) for row in measured["results"]} == {("prefill", "layer"), ("decode", "chunk")}
    assert [ratio["mode"] for ratio in measured["phase_ratios"]] == ["layer"]


@pytest.mark.parametrize("repeats", [0, -1])
def test_no_repeats_are_refused(engine: Engine, repeats: int) -> None:
    with pytest.raises(RequestError, match=f"repeats = {repeats}"):
        measure_phases(PhaselineSystem(engine), model={}, repeats=repeats)


def test_a_context_with_no_room_for_a_sample_is_refused(tmp_path: Path) -> None:
    engine = load(write_llama(tmp_path / "short.gguf", context=31), threads=1)
    with pytest.raises(CapacityError, match="context of 31 positions is too short"):
        measure_phases(PhaselineSystem(engine), model={})
