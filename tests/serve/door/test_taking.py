"""What streams bring reaches its taker in order: in the call that brings it, or when the taker is ready again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from phaseline.engine.types import Delta, FinishReason, Progress, Request, SamplingParams
from phaseline.errors import PhaselineError
from phaseline.serve.door.taking import Later, Taking
from phaseline.serve.errors import NotRead
from phaseline.serve.process.stream import Stream, Way

ROOM = 4


class Takers:
    """Streams and what was taken of them, as (stream, token). While it is `busy`, each item has to wait for that."""

    def __init__(self, streams: int) -> None:
        self.streams = [Stream(Request(str(i), [1], SamplingParams()), lambda _: None, ROOM) for i in range(streams)]
        self.taken: list[tuple[int, int]] = []
        self.busy: asyncio.Event | None = None
        self.taking = Taking(self.streams, self.take)

    def take(self, number: int, item: Delta | Progress) -> Later | None:
        assert isinstance(item, Delta)
        self.taken.append((number, item.token_ids[0]))
        wait: Any = self.busy.wait if self.busy else None
        return wait

    def put(self, number: int, token: int, *, last: bool = False) -> None:
        reason = FinishReason.LENGTH if last else None
        self.streams[number].put(Delta(str(number), 0, [token], "", finish_reason=reason), t_ns=1)


def run(job: Callable[[Takers, "asyncio.Task[None]"], Awaitable[None]], streams: int = 1) -> None:
    async def main() -> None:
        takers = Takers(streams)
        takers.put(0, 0)  # before anybody listens
        task = asyncio.create_task(takers.taking.run())
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await job(takers, task)

    asyncio.run(main())


def test_what_comes_is_taken_at_once() -> None:
    async def job(takers: Takers, task: "asyncio.Task[None]") -> None:
        assert takers.taken == [(0, 0)]
        for token in range(1, 2 * ROOM):
            takers.put(0, token)
            assert takers.taken[-1] == (0, token)
        takers.put(0, 99, last=True)
        await task
        assert len(takers.taken) == 2 * ROOM + 1

    run(job)


def test_all_streams_are_taken_until_the_last_has_ended() -> None:
    async def job(takers: Takers, task: "asyncio.Task[None]") -> None:
        takers.put(1, 5, last=True)
        takers.put(0, 6)
        await asyncio.sleep(0)
        assert not task.done()
        takers.put(0, 7, last=True)
        await task
        assert takers.taken == [(0, 0), (1, 5), (0, 6), (0, 7)]

    run(job, streams=2)


def test_nothing_is_taken_while_something_is_waited_for_and_nothing_is_lost() -> None:
    async def job(takers: Takers, task: "asyncio.Task[None]") -> None:
        busy = takers.busy = asyncio.Event()
        takers.put(0, 1)
        for token in (2, 3):
            takers.put(0, token)
            takers.put(1, token)
            await asyncio.sleep(0)
        takers.put(0, 4, last=True)
        takers.put(1, 4, last=True)
        assert takers.taken == [(0, 0), (0, 1)]
        again = takers.busy = asyncio.Event()
        busy.set()
        await asyncio.sleep(0.01)
        assert takers.taken == [(0, 0), (0, 1), (0, 2)]
        takers.busy = None
        again.set()
        await task
        assert [token for number, token in takers.taken if number == 0] == [0, 1, 2, 3, 4]
        assert [token for number, token in takers.taken if number == 1] == [2, 3, 4]

    run(job, streams=2)


def test_who_is_busy_for_too_long_gets_what_was_kept_and_then_the_error() -> None:
    async def job(takers: Takers, task: "asyncio.Task[None]") -> None:
        busy = takers.busy = asyncio.Event()
        for token in range(1, ROOM + 3):
            takers.put(0, token)
        assert takers.streams[0].done
        takers.busy = None
        busy.set()
        with pytest.raises(NotRead):
            await task
        assert takers.taken == [(0, token) for token in range(ROOM + 2)]

    run(job)


def test_an_error_ends_it_though_others_go_on() -> None:
    async def job(takers: Takers, task: "asyncio.Task[None]") -> None:
        takers.streams[0].fail(PhaselineError("it died"))
        takers.put(1, 5)
        with pytest.raises(PhaselineError, match="it died"):
            await task

    run(job, streams=2)


def test_what_the_taker_raises_is_not_the_reports_matter() -> None:
    async def job(takers: Takers, task: "asyncio.Task[None]") -> None:
        takers.streams[0].put(Progress("0", 1, 2, 0, 0.0), t_ns=1)  # which `take` above does not expect
        with pytest.raises(AssertionError):
            await task
        takers.put(0, 1)
        assert takers.taken == [(0, 0)]

    run(job)


def test_who_has_left_takes_nothing_more() -> None:
    async def job(takers: Takers, task: "asyncio.Task[None]") -> None:
        task.cancel()
        await asyncio.wait([task])
        takers.put(0, 1)
        assert takers.taken == [(0, 0)]

    run(job)


def test_events_may_go_past_while_nothing_waits() -> None:
    async def job(takers: Takers, task: "asyncio.Task[None]") -> None:
        taking = takers.taking
        assert taking.open
        busy = takers.busy = asyncio.Event()
        takers.put(0, 1)
        assert not taking.open
        takers.put(1, 2)
        takers.busy = None
        busy.set()
        await asyncio.sleep(0.01)
        assert taking.open and takers.taken == [(0, 0), (0, 1), (1, 2)]
        taking.open = False  # a connection is full
        takers.put(0, 3, last=True)
        assert taking.open
        takers.put(1, 4, last=True)
        assert not taking.open
        await task

    run(job, streams=2)


def test_an_event_that_cannot_be_written_is_the_tasks_matter() -> None:
    async def job(takers: Takers, task: "asyncio.Task[None]") -> None:
        takers.streams[0].ways[0] = Way(takers.taking, lambda event: True, b"", b"")
        for _ in range(2):  # events of two completions, in the same report
            takers.taking.failed(OSError("a defect"))
            assert not takers.taking.open
        with pytest.raises(OSError, match="a defect"):
            await task
        assert not takers.streams[0].ways

    run(job)
