"""Chunk sizes: fit, frontier and advice from engines whose cost is known, and the experiment on real systems."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline import load
from phaseline.errors import RequestError
from phaseline.lab.experiments.base import conduct
from phaseline.lab.experiments.chunk import ChunkSize
from phaseline.lab.experiments.chunk_advice import advise, base_gap, chunk_cost, piece_seconds, worst_gap
from phaseline.lab.experiments.clash import Clash
from phaseline.lab.experiments.stage import Scene, Setting, Stage
from phaseline.lab.records import to_json
from phaseline.lab.systems.phaseline import PhaselineStreams
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Script, Wire
from support.clashes import STEP, simulated
from support.tiny import write_llama

SIZES = (8, 16, 32, 64, 128, 256)
PACES = (1.0, 1.04, 0.97, 1.01, 0.99)  # of rounds: the machine is not always as fast


def machine(chunk: int, prompt_s: float = 0.0005, decode_s: float = 0.01, floor_s: float = 0.03) -> Costs:
    """A step takes at least 30 ms: 40 prompt tokens join a decode row for nothing."""
    return Costs(chunk, prompt_s, decode_s, floor_s=floor_s)


def samples(paces: tuple[float, ...] = PACES, prompt: int = 512, **costs: float) -> dict[int, list[Clash]]:
    return {size: [simulated(machine(size, **costs), prompt, slow=pace) for pace in paces] for size in SIZES}


def test_the_cost_of_chunks_is_recovered() -> None:
    found = chunk_cost(samples(), 1, chunked=True)
    assert found is not None and found.knee is not None
    assert found.base_s == pytest.approx(0.03, rel=0.01) and found.floor_s == pytest.approx(0.03, rel=0.02)
    assert found.slope_s == pytest.approx(0.0005, rel=0.05) and found.knee == pytest.approx(40, abs=4)
    assert found.knee_interval is not None and found.knee_interval[0] <= 40 <= found.knee_interval[1] + 1
    assert found.noise == pytest.approx(0.01, abs=0.01) and found.sizes == (8, 256)
    exact = chunk_cost(samples((1.0,)), 1, chunked=True)
    assert exact is not None and exact.noise is None and exact.knee_interval is None


def test_decode_alone_shows_the_floor_that_all_chunks_have_left() -> None:
    found = chunk_cost({size: runs for size, runs in samples().items() if size >= 64}, 1, chunked=True)
    assert found is not None and found.knee == pytest.approx(40, abs=6)
    assert found.floor_s == pytest.approx(0.03, rel=0.02)


def test_a_cost_that_never_leaves_its_floor_has_no_knee() -> None:
    found = chunk_cost(samples(prompt_s=1e-9), 1, chunked=True)
    assert found is not None and found.knee is None and found.knee_interval is None


def test_too_few_sizes_have_no_fit() -> None:
    assert chunk_cost({8: [], 16: []}, 1, chunked=True) is None


def test_a_full_chunk_is_told_from_the_rest_and_from_the_gap_before() -> None:
    clash = simulated(machine(200), prompt=500)  # 200, 200, 100, after an ordinary gap
    assert piece_seconds(clash, 200, chunked=True) == pytest.approx(0.11)
    assert piece_seconds(clash, 200, chunked=False) == worst_gap(clash) == pytest.approx(0.11)
    assert base_gap(clash) == pytest.approx(0.03)
    assert piece_seconds(simulated(machine(200), prompt=100), 200, chunked=True) == pytest.approx(0.06)


def test_the_advised_chunk_keeps_the_budget_and_says_how_sure_it_is() -> None:
    one = advise(samples((1.0,)), 60)
    assert one is not None and one.interval is None
    assert one.estimate == pytest.approx(100) and one.chunk == 96 and one.worst_gap_s == pytest.approx(0.058)
    several = advise(samples(), 60)
    assert several is not None and several.interval is not None and several.chunk is not None
    low, high = several.interval
    assert low < 100 < high and high - low < 12 and several.chunk == int(low) // 8 * 8 and not several.limited


def test_advice_at_the_ends_of_what_was_measured() -> None:
    small = advise(samples(), 20)
    assert small is not None and (small.chunk, small.estimate, small.worst_gap_s) == (None, 0, None)
    assert small.base_s == pytest.approx(0.03, rel=0.01)
    large = advise(samples(), 500)
    assert large is not None and large.limited and (large.chunk, large.estimate) == (256, 256)
    assert advise(samples(), None) is None
    assert advise({size: runs[:0] if size == 8 else runs for size, runs in samples().items()}, 60) is None


def test_advice_rests_on_complete_rounds() -> None:
    made = samples()
    torn = {size: runs[:3] if size == 64 else runs for size, runs in made.items()}
    assert advise(torn, 60) == advise({size: runs[:3] for size, runs in made.items()}, 60)


@settings(max_examples=40)
@given(st.floats(1e-5, 2e-3), st.floats(1e-3, 0.05), st.floats(1, 300))
def test_the_worst_gap_of_an_advised_chunk_is_within_the_budget(prompt_s: float, decode_s: float, ms: float) -> None:
    advice = advise(samples((1.0,), prompt_s=prompt_s, decode_s=decode_s, floor_s=0.0), ms)
    assert advice is not None
    if advice.chunk is None:
        assert decode_s + 8 * prompt_s > ms / 1e3 * 0.999
    else:
        assert decode_s + advice.chunk * prompt_s <= ms / 1e3 * 1.001


# On real systems.


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PhaselineStreams]:
    engine = load(write_llama(tmp_path_factory.mktemp("chunk") / "tiny.gguf", context=512), threads=1, max_running=2)
    yield PhaselineStreams(engine)
    engine.close()


SCENE = Scene(victim_tokens=8, step=8, intruder_tokens=96, intruder_output=2)


def measure(experiment: ChunkSize) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        return await conduct(experiment, lambda done, total, label: None, {})

    restored: dict[str, Any] = json.loads(to_json(asyncio.run(run())))
    return restored


def test_our_engine_is_measured_and_tried_with_the_answer(streams: PhaselineStreams) -> None:
    stage = Stage(streams, streams.stepwise(), vocabulary=range(300))
    record = measure(ChunkSize(stage, SCENE, [2, 8, 32, 96], repeats=2, itl_budget_ms=1e6))
    assert [(row["size"], row["asked_tokens"], row["most_stalls"]) for row in record["results"]] == [
        (2, 64, 32), (8, 96, 12), (32, 96, 3), (96, 96, 1)
    ]  # fmt: skip
    assert all(row["errors"] == [] and len(row["clashes"]) == 2 for row in record["results"])
    assert [point["size"] for point in record["frontier"]] == [8, 32, 96]  # two tokens at a time read less
    assert record["recommendation"]["chunk"] == 96 and record["recommendation"]["limited"]
    assert [row["setting"] for row in record["checks"]] == ["budget 1e+06 ms", "chunk 96"]
    assert all(len(row["seconds"]) == 2 for row in record["checks"])
    assert "For gaps of at most 1e+06 ms take --chunk 96" in record["finding"]
    assert "Tried, chunk 96: worst gap" in record["finding"]


@pytest.mark.parametrize("pace", [1.0, 1.5])
def test_the_finding_of_known_clashes(streams: PhaselineStreams, pace: float) -> None:
    stage = Stage(streams, streams.stepwise())
    experiment = ChunkSize(stage, Scene(intruder_tokens=512, step=STEP), SIZES, itl_budget_ms=60)
    experiment._samples = samples((1.0, 1.0))
    experiment._checks = {Setting(96): [simulated(machine(96), 512, slow=pace)]}
    said = experiment.record()["finding"]
    assert "A step of decode rows alone takes 30 ms. About 40 tokens of a prompt (95%: 40 to 40) join it for" in said
    assert "each more costs 0.5 ms, which is 200" in said
    assert "From chunk 128 on, TTFT is within 10% of the best" in said
    assert "take --chunk 96: its worst gap should be 58 ms. The largest that keeps them is 100 (95%: 100 to 10" in said
    assert f"Tried, chunk 96: worst gap {58 * pace:.3g} ms" in said
    assert ("By then decode alone took 1.50 times as long" in said) == (pace == 1.5)


def test_a_budget_that_nothing_keeps_is_told_and_tried(streams: PhaselineStreams) -> None:
    stage = Stage(streams, streams.stepwise(), vocabulary=range(300))
    record = measure(ChunkSize(stage, SCENE, [8, 32, 96], repeats=1, itl_budget_ms=1e-6))
    assert record["recommendation"]["chunk"] is None
    assert "no chunk that was measured is small enough: decode alone takes" in record["finding"]
    assert [row["setting"] for row in record["checks"]] == ["budget 1e-06 ms"]


def test_of_a_server_the_sizes_are_whole_prompts() -> None:
    script = Script(engine=Costs(chunk=40, prompt_s=0.0005, decode_s=0.005), wire=Wire(counts="token_ids"))
    record = measure(ChunkSize(Stage(TruthSystem(script)), SCENE, [10, 40, 80], repeats=1, itl_budget_ms=20))
    assert [(row["size"], row["tokens"], row["most_stalls"]) for row in record["results"]] == [
        (10, 10, None), (40, 40, None), (80, 80, None)
    ]  # fmt: skip
    assert record["frontier"] == [] and record["checks"] == []
    assert record["cost"] is not None and record["recommendation"]["budget_ms"] == 20


def test_nothing_measured_yet_is_a_record(streams: PhaselineStreams) -> None:
    record = ChunkSize(Stage(streams, streams.stepwise()), SCENE, [8, 32, 96]).record()
    assert record["finding"] == "Nothing was measured." and record["results"] == [] and record["cost"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": [8, 8, 16]}, "at least three sizes"),
        ({"repeats": 0}, "0 repeats"),
        ({"sizes": [8, 16, 97]}, "a chunk of 97 is more than the prompt of 96"),
        ({"itl_budget_ms": 0.0}, "must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(streams: PhaselineStreams, options: dict[str, Any], message: str) -> None:
    stage = Stage(streams, streams.stepwise())
    with pytest.raises(RequestError, match=message):
        ChunkSize(stage, SCENE, **{"sizes": [8, 32, 96], **options})
