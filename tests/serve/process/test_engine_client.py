"""EngineClient over a real engine process: what it streams is what an engine in this process says."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from phaseline import load
from phaseline.engine.types import Delta, FinishReason, Progress, Request, SamplingParams
from phaseline.errors import CapacityError, RequestError
from phaseline.serve.config import ServeConfig
from phaseline.serve.errors import EngineDied, NotRead, TimedOut, Unavailable
from phaseline.serve.process.engine_client import EngineClient, State
from phaseline.serve.process.messages import StepReport
from phaseline.serve.process.stream import Stream, Way

PROMPT = list(range(40, 100))


def params(max_tokens: int = 12, **others: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True, "seed": 1, "temperature": 1.0, **others})


@asynccontextmanager
async def ready_client(model: Path, **settings: Any) -> AsyncIterator[EngineClient]:
    """A client whose engine reads prompts in chunks of 16 tokens."""
    client = EngineClient(ServeConfig(str(model), {"threads": 1, "chunk": 16, "memory": 600 << 20}, **settings))
    await client.start()
    try:
        assert await client.ready()
        yield client
    finally:
        await client.close()


def with_client(model: Path, job: Callable[[EngineClient], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with ready_client(model, **settings) as client:
            await job(client)

    asyncio.run(main())


async def read(client: EngineClient, request: Request) -> list[Delta | Progress]:
    async with client.submit(request) as stream:
        return [item async for item in coming(stream)]


async def coming(stream: Stream) -> AsyncIterator[Delta | Progress]:
    """What comes of a stream, as it comes, until it is done."""
    while not stream.exhausted:
        rung = asyncio.Event()
        stream.bell = rung.set
        if (item := stream.take()) is not None:
            yield item
        else:
            await rung.wait()


def tokens(items: list[Delta | Progress], index: int = 0) -> list[int]:
    return [token for item in items if isinstance(item, Delta) and item.index == index for token in item.token_ids]


def test_streams_are_what_an_engine_says(tiny: Path) -> None:
    with load(tiny, threads=1) as engine:
        expected = [engine.generate(PROMPT[i:], params(seed=i, n=2)) for i in range(4)]

    async def job(client: EngineClient) -> None:
        requests = [Request(f"r{i}", PROMPT[i:], params(seed=i, n=2)) for i in range(4)]
        found = await asyncio.gather(*(read(client, request) for request in requests))
        for items, completions in zip(found, expected, strict=True):
            for index, completion in enumerate(completions):
                assert tokens(items, index) == completion.token_ids
                deltas = [d for d in items if isinstance(d, Delta) and d.index == index]
                assert "".join(d.text for d in deltas) == completion.text
                assert [d.finish_reason for d in deltas if d.finish_reason] == [FinishReason.LENGTH]
        assert client.in_flight == 0

    with_client(tiny, job)


def test_progress_of_a_prompt_is_told_chunk_by_chunk(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        items = await read(client, Request("r", PROMPT, params(2), progress=True))
        told = [item for item in items if isinstance(item, Progress)]
        assert [(p.done, p.total, p.cached) for p in told] == [(16, 60, 0), (32, 60, 0), (48, 60, 0), (60, 60, 0)]
        seconds = [p.seconds for p in told]
        assert seconds == sorted(seconds) and seconds[0] > 0
        assert isinstance(items[3], Progress) and isinstance(items[4], Delta)  # the last of it before the first token

    with_client(tiny, job)


def test_a_stream_knows_when_its_steps_were(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        reports: list[StepReport] = []
        client.watch(reports.append)
        async with client.submit(Request("r", PROMPT, params(5))) as stream:
            assert stream.began_ns == stream.first_ns == stream.last_ns == 0
            assert [item async for item in coming(stream)]
        steps = [r for r in reports if r.prefill or r.decode]
        ends = [r.t_ns for r in steps if r.deltas]
        assert (stream.first_ns, stream.last_ns) == (ends[0], ends[-1])
        assert stream.began_ns == steps[0].t_ns - round(steps[0].seconds * 1e9)
        assert stream.accepted_ns <= stream.began_ns < steps[0].t_ns < stream.first_ns < stream.last_ns

    with_client(tiny, job)


def test_reports_account_for_every_row_and_token(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        reports: list[StepReport] = []
        client.watch(reports.append)
        lengths = (60, 45, 3, 17)
        items = await asyncio.gather(*(read(client, Request(str(n), PROMPT[:n], params(9))) for n in lengths))
        for n, got in zip(lengths, items, strict=True):
            chunks = [(start, count) for r in reports for id, start, count in r.prefill if id == str(n)]
            cached, starts = got[0].cached_tokens, [start for start, _ in chunks]
            assert starts == [cached + sum(c for _, c in chunks[:i]) for i in range(len(chunks))]
            assert cached + sum(count for _, count in chunks) == n
            assert sum(id == str(n) for r in reports for id, _ in r.decode) == 8  # the first token came of the prompt
            told = [d for r in reports for d in r.deltas if d.request_id == str(n)]
            assert told == got and len(tokens(got)) == 9
        assert all(sum(count for _, _, count in r.prefill) <= client.facts.chunk for r in reports)
        assert [r.t_ns for r in reports] == sorted(r.t_ns for r in reports)
        last = reports[-1]
        assert (last.running, last.waiting, last.queued_prefill_tokens) == (0, 0, 0)
        assert last.cached_tokens == sum(got[0].cached_tokens for got in items) > 0
        assert last.free_pages == last.pages == client.facts.pages

    with_client(tiny, job)


class Passed:
    """Takes what comes of a stream as it comes, and after each of it is open for ten events; `fault`: the number of the
    event that can't be written."""

    def __init__(self, stream: Stream, fault: int = 0) -> None:
        self.errors, self._fault = list[Exception](), fault
        self.open, self.texts, self.passed, self.done = False, list[str](), 0, asyncio.Event()
        self._stream = stream
        stream.bell, stream.ways[0] = self.ring, Way(self, self.write, b"[", b"]")

    def ring(self) -> None:
        while (item := self._stream.take()) is not None:
            assert isinstance(item, Delta)
            self.texts.append(item.text)
        self.open, self._room = True, 10
        if self._stream.done:
            self.done.set()

    def write(self, event: bytes) -> bool:
        assert self.open
        self.passed += 1
        if self.passed == self._fault:
            raise OSError("a defect")
        self.texts += json.loads(event)
        self._room -= 1
        return self._room > 0

    def failed(self, error: Exception) -> None:
        self.open = False
        self.errors.append(error)


def test_texts_go_by_a_way_while_it_is_open_and_are_accounted_for(tiny: Path) -> None:
    with load(tiny, threads=1) as engine:
        expected = engine.generate(PROMPT, params(200))

    async def job(client: EngineClient) -> None:
        reports: list[StepReport] = []
        client.watch(reports.append)
        async with client.submit(Request("r", PROMPT, params(200))) as stream:
            passed = Passed(stream)
            await passed.done.wait()
        assert "".join(passed.texts) == expected.text and passed.passed > 10  # more than one opening
        assert [t for r in reports for d in r.deltas for t in d.token_ids] == expected.token_ids
        assert stream.tokens == 200 and stream.last_ns == [r.t_ns for r in reports if r.deltas][-1]

    with_client(tiny, job)


def test_an_event_that_cannot_be_written_is_its_takers_matter(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        one, two = Request("one", PROMPT, params(200)), Request("two", PROMPT, params(200))
        async with client.submit(one) as first, client.submit(two) as second:
            faulty, other = Passed(first, fault=3), Passed(second)
            await asyncio.gather(faulty.done.wait(), other.done.wait())
        assert [str(error) for error in faulty.errors] == ["a defect"] and not other.errors
        assert first.tokens == second.tokens == 200 and other.passed > 3

    with_client(tiny, job)


def test_who_asks_is_told_of_all_that_went_by_a_way(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        told: list[int] = []
        client.watch(lambda report: told.append(sum(len(delta.token_ids) for delta in report.deltas)))
        async with client.submit(Request("r", PROMPT, params(30_000))) as stream:
            passed = Passed(stream)
            for _ in range(50):
                await asyncio.sleep(0.002)
                client.catch_up()
                assert sum(told) == stream.tokens >= passed.passed
        assert passed.passed

    with_client(tiny, job)


def test_a_request_that_cannot_be_served_is_refused_at_once(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        with pytest.raises(RequestError, match="temperature"):
            client.submit(Request("r", PROMPT, params(temperature=float("nan"))))
        with pytest.raises(CapacityError, match="the context holds"):
            client.submit(Request("r", [5] * 40000, params()))
        with pytest.raises(CapacityError, match="max_running"):  # what only the engine knows
            await read(client, Request("r", PROMPT, params(n=100)))
        assert len(tokens(await read(client, Request("r", PROMPT, params())))) == 12

    with_client(tiny, job)


def test_leaving_a_stream_cancels_its_request(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        reports: asyncio.Queue[StepReport] = asyncio.Queue()
        client.watch(reports.put_nowait)
        async with client.submit(Request("r", PROMPT, params(20000))) as stream:
            await anext(coming(stream))
        assert client.in_flight == 0
        ended: list[FinishReason] = []
        while not ended:
            report = await reports.get()
            ended = [delta.finish_reason for delta in report.deltas if delta.finish_reason]
        assert ended == [FinishReason.ABORT]
        assert report.running == 0 and report.free_pages == report.pages

    with_client(tiny, job)


def test_who_leaves_at_any_moment_harms_nobody(tiny: Path) -> None:
    draw = random.Random(0)
    requests = [
        Request(
            f"r{i}", PROMPT[: 20 + i % 40], params(draw.randrange(1, 60), seed=i, n=1 + i % 3 // 2), progress=i % 2 > 0
        )
        for i in range(80)
    ]
    with load(tiny, threads=1) as engine:
        expected = {
            r.id: engine.generate([r.prompt], r.params)[0]
            for r in requests
            if int(r.id[1:]) % 4 == 0 and r.params.n == 1
        }

    async def visit(client: EngineClient, request: Request) -> None:
        await asyncio.sleep(draw.random() / 5)
        if request.id in expected:
            assert tokens(await read(client, request)) == expected[request.id].token_ids
            return
        task = asyncio.create_task(read(client, request))
        await asyncio.sleep(draw.random() / 5)
        if draw.random() < 0.5:
            client.abort(request.id)
        else:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def job(client: EngineClient) -> None:
        reports: asyncio.Queue[StepReport] = asyncio.Queue()
        await asyncio.gather(*(visit(client, request) for request in requests))
        assert client.in_flight == client.admission.backlog == client.admission.waiting == 0
        client.watch(reports.put_nowait)
        while (report := await reports.get()).running or report.waiting:
            pass
        assert report.free_pages == report.pages and report.queued_prefill_tokens == 0

    with_client(tiny, job)


def test_an_abort_ends_the_stream_as_aborted(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        async with client.submit(Request("r", PROMPT, params(20000))) as stream:
            await anext(coming(stream))
            client.abort("r")
            items = [item async for item in coming(stream)]
        assert isinstance(items[-1], Delta) and items[-1].finish_reason is FinishReason.ABORT
        client.abort("r")  # and once more: nothing

    with_client(tiny, job)


def test_who_does_not_read_loses_the_request_and_others_go_on(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        async with client.submit(Request("idle", PROMPT, params(20000))) as stream:
            for name in ("other", "another"):  # each of fewer tokens than may wait, both together of more
                assert len(tokens(await read(client, Request(name, PROMPT, params(40))))) == 40
            with pytest.raises(NotRead):
                assert len([item async for item in coming(stream)]) == 50

    with_client(tiny, job, max_unread=50)


def test_a_request_has_only_so_long(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        with pytest.raises(TimedOut, match=r"0\.2 seconds"):
            await read(client, Request("r", PROMPT, params(30000)))
        assert client.in_flight == 0

    with_client(tiny, job, request_timeout=0.2)


def test_a_dead_process_ends_its_requests_and_can_be_started_again(tiny: Path) -> None:
    async def job(client: EngineClient) -> None:
        async with client.submit(Request("r", PROMPT, params(20000))) as stream:
            await anext(coming(stream))
            client.kill()
            with pytest.raises(EngineDied):
                [item async for item in coming(stream)]
        assert client.state is State.DEAD
        with pytest.raises(Unavailable):
            client.submit(Request("s", PROMPT, params()))
        assert "signal 9" in str(await client.gone())
        await client.start()
        assert client.state is State.LOADING
        with pytest.raises(Unavailable, match="loaded"):
            client.submit(Request("s", PROMPT, params()))
        assert await client.ready()
        assert len(tokens(await read(client, Request("s", PROMPT, params())))) == 12

    with_client(tiny, job)
