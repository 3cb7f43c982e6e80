"""Driving: what a client of a system sees, and what is left when it is interrupted."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from phaseline import load
from phaseline.engine.engine import Engine
from phaseline.errors import CapacityError, UnsupportedError
from phaseline.lab.drive import Job, drive
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.lab.trace import Trace
from support.tiny import write_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("drive") / "tiny.gguf")


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    engine = load(model, threads=1, chunk=16, max_running=2)
    yield engine
    engine.close()


JOBS = [Job([5] * 40, 8), Job([6, 7], 1), Job([8] * 3, 5)]


def check(traces: Sequence[Trace], jobs: Sequence[Job]) -> None:
    assert [sum(event.tokens or 0 for event in trace.events) for trace in traces] == [job.max_tokens for job in jobs]
    assert [trace.prompt_tokens for trace in traces] == [len(job.prompt) for job in jobs]
    assert [trace.sent_ns for trace in traces] == sorted(trace.sent_ns for trace in traces)
    for trace, job in zip(traces, jobs, strict=True):
        assert trace.end_ns == trace.events[-1].t_ns > trace.sent_ns
        assert len(trace_metrics(trace).gaps) == job.max_tokens - 1


@pytest.mark.parametrize("mode", ["walk", "eager", "layer", "chunk"])
def test_every_job_brings_its_tokens_in_order_of_time(engine: Engine, mode: str) -> None:
    system = PhaselineSystem(engine)
    system.configure(mode, 16)
    check(drive(system, JOBS), JOBS)
    assert not engine.has_work


class Impatient(PhaselineSystem):
    """Its user presses Ctrl-C while it works."""

    polls = 3

    def poll(self) -> list:  # type: ignore[type-arg]
        self.polls -= 1
        if self.polls == 0:
            raise KeyboardInterrupt
        return super().poll()


def test_an_interrupt_cancels_every_stream_and_the_next_drive_is_unharmed(engine: Engine) -> None:
    system = Impatient(engine)
    with pytest.raises(KeyboardInterrupt):
        drive(system, JOBS)  # two run, one waits
    table = engine.scheduler.table
    assert not engine.scheduler.has_work and table.free_pages == table.pages
    table.check()
    check(drive(system, JOBS), JOBS)


def test_a_refused_job_cancels_those_before_it(engine: Engine) -> None:
    system = PhaselineSystem(engine)
    with pytest.raises(CapacityError):
        drive(system, [Job([5] * 40, 8), Job([5] * 4000, 1)])
    assert not engine.scheduler.has_work
    check(drive(system, JOBS), JOBS)


def test_no_jobs_are_no_traces(engine: Engine) -> None:
    assert drive(PhaselineSystem(engine), []) == []


def test_a_chunk_beyond_what_was_loaded_is_refused(engine: Engine) -> None:
    with pytest.raises(CapacityError, match=r"chunk = 17: .* at most 16"):
        PhaselineSystem(engine).configure("chunk", 17)


def test_the_specification_is_not_a_system(model: Path) -> None:
    with pytest.raises(UnsupportedError, match="reference"):
        PhaselineSystem(load(model, numerics="reference"))
