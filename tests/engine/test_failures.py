"""What goes wrong in a step: executors that fail, engines that close, users who press Ctrl-C."""

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from phaseline.engine.engine import Engine
from phaseline.engine.interrupts import Uninterrupted
from phaseline.engine.types import Delta, FinishReason, Request
from phaseline.errors import PhaselineError
from phaseline.program.step import Step
from phaseline.state.pages import PageTable
from support.engines import (
    assert_idle,
    bystander,
    collect,
    drain,
    eventually,
    in_threads,
    make_engine,
    meddler,
    sampled,
    tokens_of,
)
from support.tiny import write_llama

T = TypeVar("T")
PROMPTS = [[5 + i] * (3 + 9 * i) for i in range(4)]


class BrokenError(Exception):
    """What an executor raises here."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("failures") / "tiny.gguf", context=1024)


@pytest.fixture
def engine(model: Path) -> Engine:
    return make_engine(model)


def raise_broken(step: Step) -> None:
    raise BrokenError("the executor broke")


def test_a_failure_ends_every_live_request_and_not_the_engine(model: Path) -> None:
    engine = make_engine(model, max_running=2)
    expected = engine.generate(PROMPTS[1], sampled()).token_ids

    async def main() -> list[BaseException | list[Delta]]:
        tasks = [asyncio.create_task(collect(engine, PROMPTS[i], 900)) for i in range(4)]  # two run, two wait
        await eventually(lambda: len(engine.scheduler.running) == 2 and len(engine.scheduler.waiting) == 2)
        meddler(engine).before = raise_broken
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(main())] == [BrokenError] * 4
    assert_idle(engine)
    with pytest.raises(BrokenError):
        engine.generate([PROMPTS[0], PROMPTS[1]], sampled())
    meddler(engine).before = lambda step: None
    assert engine.generate(PROMPTS[1], sampled()).token_ids == expected
    assert_idle(engine)


def test_a_failure_reaches_threads_and_submitters_once(engine: Engine) -> None:
    expected = engine.generate(PROMPTS[1], sampled()).token_ids
    for i in range(3):
        engine.submit(Request(f"r{i}", PROMPTS[i], sampled()))
    engine.step()
    meddler(engine).before = raise_broken
    generate = [lambda: engine.generate(PROMPTS[3], sampled())] * 2
    assert [type(error) for error in in_threads(*generate)] == [BrokenError] * 2
    meddler(engine).before = lambda step: None
    with pytest.raises(BrokenError):
        engine.step()
    assert engine.step() == []
    engine.submit(Request("r1", PROMPTS[1], sampled()))
    assert tokens_of(drain(engine), "r1") == expected
    assert_idle(engine)


def test_logits_without_an_answer_are_a_failure(engine: Engine) -> None:
    meddler(engine).after = lambda logits: logits * np.float32(np.nan)
    with pytest.raises(PhaselineError, match="no token can be sampled"):
        engine.generate(PROMPTS[0], sampled())
    assert_idle(engine)


def test_what_is_cancelled_during_a_step_is_gone_after_it(engine: Engine) -> None:
    engine.submit(Request("gone", [9] * 40, sampled(100)))
    meddler(engine).before = lambda step: engine.abort("gone")
    assert [delta.finish_reason for delta in engine.step()] == [FinishReason.ABORT]
    assert_idle(engine)


def test_closing_ends_what_is_live_and_refuses_what_comes(engine: Engine) -> None:
    meddler(engine).before = lambda step: time.sleep(0.001)  # so that it lives when that is seen

    async def main() -> Any:
        task = asyncio.create_task(collect(engine, PROMPTS[0], 900))
        await eventually(lambda: bool(engine.scheduler.running))
        await asyncio.to_thread(engine.close)
        return await asyncio.gather(task, return_exceptions=True)

    (outcome,) = asyncio.run(main())
    assert isinstance(outcome, PhaselineError) and "closed" in str(outcome)
    assert_idle(engine)
    engine.close()
    with pytest.raises(PhaselineError, match="closed"):
        engine.generate(PROMPTS[0], sampled())


# Ctrl-C.


@pytest.fixture
def keyboard() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, whatever the shell that started the tests made of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that a long prompt takes far longer than the native code takes to notice Ctrl-C."""
    path = tmp_path_factory.mktemp("failures") / "slow.gguf"
    return write_llama(path, layers=12, width=256, ff=1024, context=2048)


@pytest.mark.usefixtures("keyboard")
@pytest.mark.parametrize("mode", ["chunk", "layer", "eager"])
def test_ctrl_c_inside_a_native_step_leaves_the_engine_as_it_was(slow_model: Path, mode: str) -> None:
    engine = make_engine(slow_model, pages=128, chunk=2047, mode=mode)
    expected = engine.generate(PROMPTS[1], sampled()).token_ids
    meddled = meddler(engine)
    with bystander(engine) as deltas:
        before = meddled.ended

        def press_soon(step: Step) -> None:
            threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT)).start()

        meddled.before = press_soon
        with pytest.raises(KeyboardInterrupt):
            engine.generate([5] * 1900, sampled())
        meddled.before = lambda step: None
        assert (meddled.begun - before, meddled.ended - before) == (1, 0), "it was not the step that was interrupted"
        assert {s.request.id for s in engine.scheduler.running} == {"bystander"}
        assert engine.generate(PROMPTS[1], sampled()).token_ids == expected
        deltas += drain(engine)


class Keyed(PageTable):
    """A page table during whose n-th call Ctrl-C is pressed, before or after it has done its work."""

    presses_at = 0

    def open(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self._press_around(super().open, *args, **kwargs)

    def grow(self, *args: Any, **kwargs: Any) -> bool:
        return self._press_around(super().grow, *args, **kwargs)

    def take_copies(self) -> list[tuple[int, int, int]]:
        return self._press_around(super().take_copies)

    def fill(self, *args: Any) -> None:
        self._press_around(super().fill, *args)

    def fork(self, *args: Any) -> int:
        return self._press_around(super().fork, *args)

    def close(self, *args: Any) -> None:
        self._press_around(super().close, *args)

    def _press_around(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self._press_if_due()
        result = call(*args, **kwargs)
        self._press_if_due()
        return result

    def _press_if_due(self) -> None:
        self.presses_at -= 1
        if self.presses_at == 0:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("keyboard")
def test_ctrl_c_between_steps_never_tears_the_books(model: Path) -> None:
    engine = make_engine(model, pages=5, table=Keyed)  # few enough that the youngest is preempted
    table = engine.scheduler.table
    assert isinstance(table, Keyed)
    moments = 0
    for moment in range(1, 10_000):
        with bystander(engine):
            table.presses_at = moment
            try:
                engine.generate([7] * 40, sampled(30, n=2))
            except KeyboardInterrupt:
                moments += 1
            else:
                table.presses_at = 0
                break
    assert moments > 300


@pytest.mark.usefixtures("keyboard")
def test_ctrl_c_while_a_step_is_planned_keeps_it_from_starting(model: Path) -> None:
    engine = make_engine(model, table=Keyed)
    table = engine.scheduler.table
    assert isinstance(table, Keyed)
    table.presses_at = 1
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS[0], sampled())
    assert meddler(engine).begun == 0
    assert_idle(engine)


@pytest.mark.usefixtures("keyboard")
def test_a_handler_of_the_callers_own_is_called_once_and_put_back(engine: Engine) -> None:
    pressed: list[int] = []

    def note(number: int, frame: object) -> None:
        pressed.append(number)

    signal.signal(signal.SIGINT, note)
    meddler(engine).before = lambda step: signal.raise_signal(signal.SIGINT)
    assert len(engine.generate(PROMPTS[0], sampled(1)).token_ids) == 1
    assert pressed == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is note


@pytest.mark.usefixtures("keyboard")
def test_between_the_steps_of_a_live_request_ctrl_c_is_the_callers(engine: Engine) -> None:
    with bystander(engine) as deltas:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        deltas += engine.step()
    assert_idle(engine)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("keyboard")
def test_engines_that_work_in_turns_share_the_way_to_the_handler(model: Path) -> None:
    """Whoever begins or ends first: each press is heard once, and held back by whose books are open."""
    one, other = make_engine(model), make_engine(model)
    for turn in range(5):
        for begins, ends in ((one, other), (other, one)):
            begins.submit(Request(f"{turn}", [turn + 3], sampled(1)))
            ends.step()
    one.submit(Request("pressed", [3], sampled(1)))
    meddler(one).before = lambda step: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        one.step()
    meddler(one).before = lambda step: None
    drain(one)
    drain(other)
    assert_idle(one)
    assert_idle(other)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("keyboard")
def test_the_handler_is_put_back_though_requests_of_other_threads_go_on(engine: Engine) -> None:
    in_threads(lambda: engine.submit(Request("theirs", PROMPTS[0], sampled(3))))
    engine.step()
    assert engine.has_work
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    in_threads(lambda: drain(engine))
    assert_idle(engine)


@pytest.mark.usefixtures("keyboard")
def test_ctrl_c_as_the_last_block_ends_leaves_no_gate_behind() -> None:
    def busy() -> bool:
        signal.raise_signal(signal.SIGINT)
        return False

    with pytest.raises(KeyboardInterrupt), Uninterrupted(busy):
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_engine_that_is_forgotten_is_gone_at_once(model: Path) -> None:
    engine = make_engine(model)
    engine.generate(PROMPTS[0], sampled())
    seen = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("keyboard")
def test_a_handler_set_in_the_middle_of_a_request_stays(engine: Engine) -> None:
    pressed: list[int] = []

    def note(number: int, frame: object) -> None:
        pressed.append(number)

    with bystander(engine) as deltas:
        signal.signal(signal.SIGINT, note)
        meddler(engine).before = lambda step: signal.raise_signal(signal.SIGINT)
        deltas += engine.step()
        meddler(engine).before = lambda step: None
    assert pressed == [signal.SIGINT]
    assert_idle(engine)
    assert signal.getsignal(signal.SIGINT) is note
