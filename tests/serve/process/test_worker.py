"""The engine's side of the socket over executors that fail: whose request ends, how, and who goes on."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline.engine.engine import Engine
from phaseline.engine.types import Request
from phaseline.program.step import Step
from phaseline.serve.process.compiling import Compiling
from phaseline.serve.process.engine_process import Channel, Worker
from phaseline.serve.process.messages import Close, StepReport, submit
from support.engines import assert_idle, make_engine, meddler, sampled
from support.wire import Wire


@contextmanager
def served(engine: Engine) -> Iterator[Wire]:
    """The engine served in a thread; idle again at the end."""
    ours, theirs = socket.socketpair()
    with ours, theirs, Compiling(engine) as compiling:
        worker = threading.Thread(target=Worker(engine, Channel(theirs), compiling).serve)
        worker.start()
        wire = Wire(ours)
        try:
            yield wire
        finally:
            wire.send(Close())
            worker.join(20)
    assert_idle(engine)


@pytest.fixture
def engine(tiny: Path) -> Engine:
    return make_engine(tiny)


def test_a_step_that_fails_ends_every_request_and_not_the_engine(engine: Engine) -> None:
    with served(engine) as wire:
        expected = wire.generate("before")
        for number in range(6):
            wire.send(submit(Request(str(number), [50 + number], sampled(5000, n=1 + number % 2))))
        wire.until(lambda r: len(r.deltas) >= 4)

        def fail(_: Step) -> None:
            raise MemoryError("no more")

        meddler(engine).before = fail
        failed: list[Any] = []
        while len(failed) < 6:
            failed += wire.report().failed
        meddler(engine).before = lambda step: None
        assert sorted((f.request_id, f.kind, f.message) for f in failed) == [
            (str(number), "MemoryError", "no more") for number in range(6)
        ]
        assert wire.generate("after") == expected


def test_a_row_that_makes_no_sense_ends_its_own_request(engine: Engine) -> None:
    with served(engine) as wire:
        expected = wire.generate("alone")
        wire.send(submit(Request("other", [50, 60, 70], sampled(4000))))
        wire.until(lambda r: bool(r.deltas))

        def spoil(logits: Any) -> Any:
            rows = logits.copy()
            rows[1:] = np.nan
            return rows

        meddler(engine).after = spoil
        wire.send(submit(Request("bad", [7] * 40, sampled())))
        reports = wire.until(lambda r: bool(r.failed))
        meddler(engine).after = lambda logits: logits
        assert [(f.request_id, f.kind) for r in reports for f in r.failed] == [("bad", "PhaselineError")]
        assert [d.request_id for d in reports[-1].deltas] == ["other"]
        ended = wire.until(lambda r: any(d.finish_reason for d in r.deltas))
        assert all(isinstance(r, StepReport) and not r.failed for r in ended)
        assert wire.generate("again") == expected
