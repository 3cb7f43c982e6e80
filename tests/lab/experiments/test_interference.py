"""Interference: the record of clashes that are known, and of clashes on real systems."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from phaseline import load
from phaseline.engine import policy
from phaseline.errors import RequestError
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.clash import Clash, tolls
from phaseline.lab.experiments.interference import Interference, analyse, clash_row
from phaseline.lab.experiments.stage import LEAST, Scene, Setting, Stage
from phaseline.lab.records import to_json
from phaseline.lab.stats import median
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.phaseline import PhaselineStreams
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire
from phaseline.lab.systems.truth_server import serving
from support.clashes import STEP, simulated
from support.tiny import write_llama

CONTEXT = 512
SCENE = Scene(victim_tokens=8, step=8, intruder_tokens=200, intruder_output=2)
CONTRACT = {"phase", "mode", "tokens", "context", "streams", "chunk", "seconds", "tok_s", "clashes"}


def costs(chunk: int) -> Costs:
    return Costs(chunk, prompt_s=0.0005, decode_s=0.02)


def known() -> dict[str, Any]:
    """The analysis of three clashes of different pace under each of three settings."""
    settings = {Setting(0): costs(1000), Setting(100): costs(100), Setting(500): costs(500)}
    clashes = {s: [simulated(c, slow=slow) for slow in (1.0, 1.5, 1.1)] for s, c in settings.items()}
    return analyse(Scene(intruder_tokens=1000, step=STEP), clashes)


def test_the_rows_of_known_clashes() -> None:
    whole, small, large = known()["results"]
    assert [row["setting"] for row in (whole, small, large)] == ["whole", "chunk 100", "chunk 500"]
    assert [row["stalls"] for row in (whole, small, large)] == [[1] * 3, [10] * 3, [2] * 3]
    assert [row["most_stalls"] for row in (whole, small, large)] == [1, 10, 2]
    assert all(row["stalls_held"] and row["outlived"] and row["tokens"] == 1000 for row in (whole, small, large))
    assert small["seconds"] == pytest.approx([0.07, 0.105, 0.077])
    assert small["worst_gap_s"] == small["median_s"] == pytest.approx(0.077)
    assert small["worst_gap_interval_s"] == pytest.approx((0.07, 0.105))
    assert small["before"]["median_gap_s"] == pytest.approx(0.022) and small["before"]["worst_gap_s"] > 0.0299
    joined = 0.02 - 1e-6  # the intruder comes just after a step began
    assert small["ttft_samples_s"] == pytest.approx([s * (joined + 10 * 0.07) for s in (1, 1.5, 1.1)])
    assert whole["ttft_s"] == pytest.approx(1.1 * (joined + 0.52))
    assert small["tok_s"] == pytest.approx(1000 / small["ttft_s"])
    assert all(row.keys() >= CONTRACT and row["phase"] == "mixed" for row in (whole, small, large))
    for row, restored in zip(
        (whole, small, large), ([Clash.from_dict(c) for c in r["clashes"]] for r in known()["results"]), strict=True
    ):
        assert row["seconds"] == [max(tolls(clash)[0].during) for clash in restored]  # the raw facts are all there


def test_the_finding_and_the_drawings() -> None:
    record = known()
    assert "a token every 22 ms, and waited 30 ms at worst" in record["finding"]
    assert "least with chunk 100: worst gap 77 ms, TTFT 792 ms, 10 stalls of at most 10" in record["finding"]
    assert "soonest with whole: worst gap 572 ms" in record["finding"]
    assert [drawn["setting"] for drawn in record["timelines"]] == ["whole", "chunk 100", "chunk 500"]
    assert sum(block["stalled"] for block in record["timelines"][1]["lanes"][-1]["prefill"]) == 10
    assert json.loads(to_json(record))["finding"] == record["finding"]


def test_what_is_wrong_is_said() -> None:
    clash = simulated(costs(100))
    row = clash_row(Scene(intruder_tokens=1000), Setting(500), [clash])
    assert row["stalls_held"] is False and row["worst_gap_interval_s"] is None
    said = analyse(Scene(intruder_tokens=1000), {Setting(500): [clash]})["finding"]
    assert "While it was read, chunk 500: worst gap 70 ms" in said
    assert "something else held the streams up: chunk 500: 10 stalls in 2 pieces." in said
    cached = replace(clash, intruder=replace(clash.intruder, cached_tokens=500))
    ended = simulated(costs(100), tokens=STEP + 3)
    failed = replace(clash, victims=(replace(clash.victims[0], error="reset by peer"),))
    said = analyse(Scene(intruder_tokens=1000), {Setting(): [cached, ended, failed]})["finding"]
    assert "cache" in said and "not complete" in said and "1 stream failed: reset by peer" in said


def test_a_server_of_unknown_chunk_has_no_bound() -> None:
    row = clash_row(Scene(intruder_tokens=1000), Setting(), [simulated(costs(100))])
    assert (row["setting"], row["stalls"], row["most_stalls"], row["stalls_held"]) == ("as it is", [10], None, None)


def test_nothing_measured_is_an_error_or_an_empty_record() -> None:
    assert analyse(SCENE, {Setting(): []}) == {
        "finding": "Nothing was measured.", "results": [], "stall_factor": 1.5, "timelines": []
    }  # fmt: skip
    clash = simulated(costs(100))
    dead = replace(clash, victims=(), intruder=replace(clash.intruder, events=(), error="refused"))
    record = analyse(SCENE, {Setting(): [replace(dead, victims=(replace(clash.victims[0], events=()),))]})
    assert record["error"] == "nothing could be measured: refused"
    assert json.loads(to_json(record))["results"][0]["worst_gap_s"] is None


# On our own engine.


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PhaselineStreams]:
    engine = load(
        write_llama(tmp_path_factory.mktemp("clash") / "tiny.gguf", context=CONTEXT), threads=1, max_running=3
    )
    yield PhaselineStreams(engine)
    engine.close()


def stage(streams: PhaselineStreams, **others: Any) -> Stage:
    return Stage(streams, streams.stepwise(), vocabulary=range(300), **others)


def measure(experiment: Interference) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        return await conduct(experiment, lambda done, total, label: None, {})

    return asyncio.run(run())


def test_each_piece_of_a_prompt_is_a_step_of_its_own_beside_the_streams(streams: PhaselineStreams) -> None:
    settings = [Setting(0), Setting(64), Setting(13), Setting(256, itl_budget_ms=1e-6)]
    scene = replace(SCENE, victims=2)
    record = measure(Interference(stage(streams), scene, settings, repeats=2))
    assert record["partial"] is False and record["experiment"] == "interference"
    assert [row["setting"] for row in record["results"]] == ["whole", "chunk 64", "chunk 13", "budget 1e-06 ms"]
    assert [row["most_stalls"] for row in record["results"]] == [1, 4, 16, 100]  # the least where none is enough
    for row in record["results"]:
        assert row["errors"] == [] and row["outlived"] and row["tokens"] == 200 and row["cached_tokens"] == 0
        assert len(row["seconds"]) == len(row["clashes"]) == 2
        for data in row["clashes"]:
            for toll in tolls(Clash.from_dict(data)):
                assert len(toll.before) >= 4 and len(toll.during) in (row["most_stalls"], row["most_stalls"] + 1)


def test_prompts_never_repeat(streams: PhaselineStreams) -> None:
    scene, here = replace(SCENE, victims=2), stage(streams)
    asked = [here._ask(scene.intruder_tokens, 2).prompt[:3] for _ in range(50)]
    assert len({tuple(prompt) for prompt in asked}) == 50
    assert LEAST == policy.LEAST


def test_an_interrupted_run_keeps_what_was_measured(streams: PhaselineStreams) -> None:
    async def run() -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None

        def progress(done: int, total: int, label: str) -> None:
            if done == 3:
                task.cancel()

        experiment = Interference(stage(streams), SCENE, [Setting(64), Setting(100)], repeats=5)
        return await conduct(experiment, progress, {})

    record = asyncio.run(run())
    assert record["partial"] is True
    assert sum(len(row["seconds"]) for row in record["results"]) == 3
    assert record["finding"].startswith("Before a prompt of 200 tokens arrived")


def test_a_prompt_that_is_too_long_is_told(streams: PhaselineStreams) -> None:
    record = measure(Interference(stage(streams), replace(SCENE, intruder_tokens=600), [Setting(64)], repeats=1))
    assert "600 tokens" in record["results"][0]["errors"][0]
    assert record["results"][0]["ttft_s"] is None and "Nothing was measured" in record["finding"]


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: Scene(victims=0), "at least one victim"),
        (lambda: Scene(intruder_tokens=0), "at least one token"),
        (lambda: Scene(step=3), "arrival at token 3: at least 4"),
        (lambda: Scene(step=32, stream_tokens=32), "ends before token 32"),
        (lambda: Interference(Stage(OpenAISystem("http://127.0.0.1:1")), SCENE, [Setting(1), Setting(2)]), "only our"),
        (lambda: Interference(Stage(OpenAISystem("http://127.0.0.1:1")), SCENE, [Setting()], repeats=0), "0 repeats"),
    ],
)
def test_what_makes_no_sense_is_refused(refused: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        refused()


# Over HTTP.


def test_a_server_stalls_as_its_chunk_says() -> None:
    script = Script(engine=Costs(chunk=50, prompt_s=0.0006, decode_s=0.02), wire=Wire(counts="token_ids"))

    async def run() -> dict[str, Any]:
        async with serving(script) as url:
            system = OpenAISystem(url, "truth")
            try:
                scene = Scene(victims=2, victim_tokens=4, step=8, intruder_tokens=200, intruder_output=2)
                experiment = Interference(Stage(system), scene, [Setting(50)], repeats=2)
                return await conduct(experiment, lambda done, total, label: None, {})
            finally:
                await system.close()

    (row,) = asyncio.run(run())["results"]
    assert row["errors"] == [] and row["most_stalls"] == 4 and row["tokens"] == 200
    assert all(2 <= count <= 4 for count in row["stalls"]), "a busy machine may hide one"
    assert row["ttft_s"] > 4 * 0.05 and median(row["seconds"]) > 0.03


def test_a_server_that_refuses_is_told() -> None:
    experiment = Interference(Stage(OpenAISystem("http://127.0.0.1:9", "x")), SCENE, [Setting()], repeats=1)
    record = measure(experiment)
    assert record["error"].startswith("nothing could be measured") and len(record["results"][0]["errors"]) == 2
