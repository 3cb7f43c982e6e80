"""Ceilings: how they are read between footprints, combined over rounds, and measured."""

from pathlib import Path

import pytest

from phaseline.execute.host import cpu_model, usable_cores
from phaseline.execute.native import NativeExecutor
from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from phaseline.lab.records import to_json
from phaseline.machine import Ceilings, Machine
from support.tiny import write_llama


def ceilings(*read: tuple[int, float]) -> Ceilings:
    return Ceilings(1e9, 2e9, read, 1e-6, 2e-6)


@pytest.mark.parametrize(
    ("footprint", "rate"),
    [(0, 80), (100, 80), (150, 70), (200, 60), (300, 45), (399, 30.15), (400, 30), (1e12, 30)],
)
def test_the_read_rate_is_interpolated_between_footprints(footprint: float, rate: float) -> None:
    assert ceilings((100, 80), (200, 60), (400, 30)).read_at(footprint) == pytest.approx(rate)


def test_one_footprint_answers_for_all() -> None:
    assert [ceilings((100, 80)).read_at(footprint) for footprint in (1, 100, 1e9)] == [80, 80, 80]


def test_the_best_of_two_rounds_is_the_faster_in_each() -> None:
    one = Ceilings(1.0, 9.0, ((10, 5.0), (20, 1.0)), 3.0, 1.0)
    other = Ceilings(2.0, 8.0, ((10, 4.0), (20, 2.0)), 2.0, 4.0)
    assert one.best(other) == other.best(one) == Ceilings(2.0, 9.0, ((10, 5.0), (20, 2.0)), 2.0, 1.0)


def test_this_machine_is_measured_and_described(tmp_path: Path) -> None:
    with open_gguf(write_llama(tmp_path / "tiny.gguf")) as file:
        executor = NativeExecutor(file, model_program(file)[1], 8, threads=2, level="portable", mode="layer")
    machine = Machine(executor, [1 << 20, 1 << 14, 1 << 20])
    measured = machine.measure(seconds=0.002)
    assert [footprint for footprint, _ in measured.read] == [1 << 14, 1 << 20]
    rates = [measured.float_flops, measured.quant_flops, *(rate for _, rate in measured.read)]
    assert all(1e6 < rate < 1e15 for rate in rates)
    assert 0 < measured.empty_plan < 1 and 0 < measured.empty_eager < 1
    assert executor.mode == "layer"
    assert measured.record()["read"][0] == {"footprint": 1 << 14, "bytes_per_s": measured.read[0][1]}
    to_json(measured.record() | machine.describe())
    described = machine.describe()
    assert (described["cpu"], described["cores"]) == (cpu_model(), usable_cores())
    assert (described["threads"], described["level"]) == (2, "portable")
