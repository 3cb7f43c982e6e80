"""Steps beneath the scheduler: they compute what the engine computes, and leave nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import phaseline.engine.load
from phaseline import SamplingParams, load
from phaseline.bounds import bounds
from phaseline.engine.engine import Engine
from phaseline.errors import CapacityError
from phaseline.lab.op_groups import group_bounds, op_groups
from phaseline.lab.steps import StepBench, StepSize, step_bench
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.machine import Ceilings
from phaseline.program.cost import decode_work, prefill_work
from support.engines import assert_idle
from support.kimi import write_kimi
from support.models import half_windowed
from support.tiny import write_llama

CEILINGS = Ceilings(1e9, 4e9, ((1, 4e9), (1 << 20, 1e9)), 1e-5, 3e-5)  # the more bytes, the slower


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_llama(tmp_path_factory.mktemp("steps") / "tiny.gguf", context=128, format="Q4_1", layers=3)
    engine = load(path, threads=1, chunk=48, max_running=4)
    yield engine
    engine.close()


def test_sizes_are_priced_as_the_cost_model_has_them() -> None:
    assert StepSize(48).work(2) == prefill_work(48)
    assert StepSize(48, all_rows=True).work(2) == prefill_work(48, all_rows=True)
    assert StepSize(1, 100, 3).work(4) == decode_work(100, streams=3, kv_bytes=4)


def test_a_step_takes_time_and_its_operations_take_it(engine: Engine) -> None:
    sizes = [StepSize(48), StepSize(24, all_rows=True), StepSize(1, 64), StepSize(1, 100, 3)]
    with step_bench(PhaselineSystem(engine), sizes) as bench:
        for size in sizes:
            assert bench.seconds(size) > 0
            whole, parts = bench.op_seconds(size)
            assert parts.shape == (len(engine.executor.program.ops),)
            assert 0 < parts.sum() <= whole
        assert bench.empty_op_seconds().shape == parts.shape
    assert_idle(engine)


def test_streams_are_stored_as_the_engine_stores_them(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream's decode step sees what the engine sees behind the same tokens."""
    seen: list[np.ndarray] = []
    forward = engine.executor.forward

    def watched(step: object, pages: np.ndarray) -> np.ndarray:
        seen.append(forward(step, pages))
        return seen[-1]

    monkeypatch.setattr(engine.executor, "forward", watched)
    size = StepSize(1, 100, 3)
    with step_bench(PhaselineSystem(engine), [size]) as bench:
        bench.seconds(size)
        tokens = [list(each) for each in bench.tokens]
    ours = seen[-1]
    assert ours.shape == (3, engine.executor.program.vocab)
    for stream in range(3):
        seen.clear()
        engine.generate([*tokens[0][:100], tokens[stream][100]], SamplingParams(max_tokens=1))
        assert np.array_equal(seen[-1][-1], ours[stream]), "the others' state is a copy of the first one's"


def test_a_long_context_is_stored_in_the_pages_of_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode step behind 300 positions, whose sliding layer has pages for fewer: as with pages for all of them."""
    path = write_llama(tmp_path / "tiny.gguf", context=512, format="Q4_1")
    model_program = phaseline.engine.load.model_program
    monkeypatch.setattr(
        phaseline.engine.load,
        "model_program",
        lambda *args: (model_program(*args)[0], half_windowed(model_program(*args)[1], 40)),
    )
    engine = load(path, threads=1, chunk=16, max_running=2)
    assert engine.scheduler.table._groups[1].ids.count * 32 < 300
    seen: list[np.ndarray] = []
    forward = engine.executor.forward
    monkeypatch.setattr(engine.executor, "forward", lambda *args: seen.append(forward(*args)) or seen[-1])
    size = StepSize(1, 300, 2)
    with step_bench(PhaselineSystem(engine), [size]) as bench:
        bench.seconds(size)
        tokens = [list(each) for each in bench.tokens]
    ours = seen[-1]
    for stream in range(2):
        engine.generate([*tokens[0][:300], tokens[stream][300]], SamplingParams(max_tokens=1))
        assert np.array_equal(seen[-1][-1], ours[stream])
    assert_idle(engine)
    engine.close()


def test_what_streams_carry_on_is_stored_as_the_engine_stores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in chunks, copied to another stream, and not begun from what an earlier one left."""
    engine = load(write_kimi(tmp_path / "tiny.gguf", context=512), threads=1, chunk=48, max_running=2)
    seen: list[np.ndarray] = []
    forward = engine.executor.forward
    monkeypatch.setattr(engine.executor, "forward", lambda *args: seen.append(forward(*args)) or seen[-1])
    size = StepSize(1, 200, 2)
    for seed in (0, 1):
        with step_bench(PhaselineSystem(engine), [size], seed) as bench:
            bench.seconds(size)
            tokens = [list(each) for each in bench.tokens]
        ours = seen[-1]
        for stream in range(2):
            engine.generate([*tokens[0][:200], tokens[stream][200]], SamplingParams(max_tokens=1))
            assert np.array_equal(seen[-1][-1], ours[stream])
    assert_idle(engine)
    engine.close()


def test_cached_prefixes_survive_a_bench(engine: Engine) -> None:
    prompt = list(range(2, 90))
    before = engine.generate(prompt, SamplingParams(max_tokens=4)).token_ids
    with step_bench(PhaselineSystem(engine), [StepSize(48), StepSize(1, 100, 2)]) as bench:
        bench.seconds(StepSize(48))
    after = engine.generate(prompt, SamplingParams(max_tokens=4))
    assert after.cached_tokens > 0 and after.token_ids == before


def test_what_is_too_large_is_refused(engine: Engine) -> None:
    system = PhaselineSystem(engine)
    for sizes, said in (
        ([StepSize(53)], "a step of 53 rows: this engine was loaded for 52"),
        ([StepSize(1, 10, 5)], "all 4 sequence slots are taken"),
        ([StepSize(1, 128)], "a sequence has at most"),
    ):
        with pytest.raises(CapacityError, match=said), step_bench(system, sizes):
            pass
    assert_idle(engine)


def test_a_bench_that_fails_gives_its_pages_back(engine: Engine) -> None:
    def fail(bench: StepBench) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), step_bench(PhaselineSystem(engine), [StepSize(4)]) as bench:
        fail(bench)
    assert_idle(engine)


def test_operations_are_grouped_over_layers_and_bounds_add_up(engine: Engine) -> None:
    program, work = engine.executor.program, prefill_work(40)
    groups = op_groups(program)
    assert [(g.label, len(g.numbers)) for g in groups] == [
        ("embed token_embd", 1),
        ("linear attn_q attn_k attn_v", 3),
        ("rope", 6),
        ("attend", 3),
        ("linear attn_output", 3),
        ("linear ffn_gate ffn_up", 3),
        ("linear ffn_down", 3),
        ("select rows", 1),
        ("linear output", 1),
    ]
    assert sorted(n for g in groups for n in g.numbers) == list(range(len(program.ops)))
    empty = np.arange(len(program.ops), dtype=np.float64)
    parts, whole = [group_bounds(program, g, work, CEILINGS, empty) for g in groups], bounds(program, [work], CEILINGS)
    assert sum(p.compute for p in parts) == pytest.approx(whole.compute)
    assert sum(p.bandwidth for p in parts) == pytest.approx(whole.bandwidth)
    assert sum(p.cost.flops for p in parts) == pytest.approx(whole.cost.flops)
    assert sum(p.launch for p in parts) == empty.sum()
    assert groups[2].total(empty) == sum(empty[n] for n in groups[2].numbers)
