"""Many callers at once: threads, streams, cancellation and failure, each leaving the others as they were."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from phaseline.engine.engine import Engine, Generation
from phaseline.engine.types import Delta, FinishReason, Request
from phaseline.errors import RequestError
from phaseline.program.step import Step
from support.engines import (
    PAGE,
    assert_idle,
    bystander,
    collect,
    eventually,
    in_threads,
    make_engine,
    meddler,
    sampled,
    tokens_of,
)
from support.tiny import write_llama

CONTEXT = 1024
PROMPTS = [[5 + i] * (3 + 9 * i) for i in range(6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("concurrency") / "tiny.gguf", context=CONTEXT)


@pytest.fixture
def engine(model: Path) -> Engine:
    return make_engine(model)


def alone(engine: Engine, max_tokens: int = 12) -> list[list[int]]:
    return [engine.generate(prompt, sampled(max_tokens)).token_ids for prompt in PROMPTS]


# Streams.


def test_streams_at_once_each_bring_their_own(engine: Engine) -> None:
    expected = alone(engine)

    async def main() -> list[list[Delta]]:
        return await asyncio.gather(*(collect(engine, prompt) for prompt in PROMPTS))

    for deltas, tokens in zip(asyncio.run(main()), expected, strict=True):
        assert [token for delta in deltas for token in delta.token_ids] == tokens
        assert [delta.finish_reason for delta in deltas] == [None] * 11 + [FinishReason.LENGTH]
    assert_idle(engine)


def test_a_stream_of_several_completions_ends_with_the_last(engine: Engine) -> None:
    expected: list[Generation] = engine.generate(PROMPTS[1], sampled(n=3))
    deltas = asyncio.run(collect(engine, PROMPTS[1], n=3))
    drawn = [[t for d in deltas if d.index == index for t in d.token_ids] for index in range(3)]
    assert drawn == [each.token_ids for each in expected]
    assert sum(delta.finish_reason is not None for delta in deltas) == 3


def test_text_and_prompt_logprobs_stream_too(engine: Engine) -> None:
    whole = engine.generate("the tent", sampled(prompt_logprobs=0))

    async def main() -> list[Delta]:
        return [delta async for delta in engine.stream("the tent", sampled(prompt_logprobs=0))]

    deltas = asyncio.run(main())
    assert "".join(delta.text for delta in deltas) == whole.text
    assert deltas[0].prompt_logprobs == whole.prompt_logprobs
    assert {delta.prompt_logprobs for delta in deltas[1:]} == {None}


def test_one_engine_serves_loop_after_loop(engine: Engine) -> None:
    first, second = (asyncio.run(collect(engine, PROMPTS[0])) for _ in range(2))
    assert [d.token_ids for d in first] == [d.token_ids for d in second]
    assert_idle(engine)


def test_loops_in_two_threads_share_an_engine(engine: Engine) -> None:
    expected = alone(engine)
    got: dict[int, list[int]] = {}

    def job(i: int) -> Callable[[], None]:
        def run() -> None:
            got[i] = [t for d in asyncio.run(collect(engine, PROMPTS[i])) for t in d.token_ids]

        return run

    assert in_threads(*(job(i) for i in range(len(PROMPTS)))) == [None] * len(PROMPTS)
    assert [got[i] for i in range(len(PROMPTS))] == expected
    assert_idle(engine)


def test_a_refused_stream_raises_and_leaves_nothing(engine: Engine) -> None:
    with bystander(engine), pytest.raises(RequestError, match="prompt"):
        asyncio.run(collect(engine, []))


async def leave_by_break(engine: Engine) -> None:
    async for delta in engine.stream([5] * 40, sampled(900)):
        if delta.token_ids:
            break


async def leave_by_close(engine: Engine) -> None:
    stream = engine.stream([5] * 40, sampled(900))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def leave_by_cancel(engine: Engine) -> None:
    task = asyncio.create_task(collect(engine, [5] * 40, 900))
    await eventually(lambda: bool(engine.scheduler.running))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_close, leave_by_cancel])
def test_leaving_a_stream_early_gives_its_pages_back(
    engine: Engine, leave: Callable[[Engine], Awaitable[None]]
) -> None:
    expected = engine.generate(PROMPTS[1], sampled(200)).token_ids
    table = engine.scheduler.table

    async def main() -> list[Delta]:
        other = asyncio.create_task(collect(engine, PROMPTS[1], 200))
        await eventually(lambda: bool(engine.scheduler.running))
        await leave(engine)
        most = -(-(len(PROMPTS[1]) + 200) // PAGE)
        await eventually(lambda: table.pages - table.free_pages <= most)
        return await other

    assert [t for d in asyncio.run(main()) for t in d.token_ids] == expected
    assert_idle(engine)


def test_a_stream_cancelled_in_the_queue_never_runs(model: Path) -> None:
    engine = make_engine(model, max_running=1)
    expected = engine.generate(PROMPTS[1], sampled(200)).token_ids

    async def main() -> list[Delta]:
        other = asyncio.create_task(collect(engine, PROMPTS[1], 200))
        await eventually(lambda: bool(engine.scheduler.running))
        queued = asyncio.create_task(collect(engine, PROMPTS[2], 200))
        await eventually(lambda: bool(engine.scheduler.waiting))
        queued.cancel()
        await asyncio.gather(queued, return_exceptions=True)
        return await other

    assert [t for d in asyncio.run(main()) for t in d.token_ids] == expected
    assert_idle(engine)


def test_a_stream_left_while_its_request_waits_for_a_step_never_runs(engine: Engine) -> None:
    """It is cancelled when the engine, busy with a step, has not yet heard of it."""
    inside, go_on = threading.Event(), threading.Event()

    def hold(step: Step) -> None:
        inside.set()
        go_on.wait(60)

    async def main() -> None:
        busy = asyncio.create_task(collect(engine, PROMPTS[1]))
        await asyncio.to_thread(inside.wait, 60)
        left = asyncio.create_task(collect(engine, PROMPTS[2], 900))
        await asyncio.sleep(0.05)  # its thread waits for the step to end
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        meddler(engine).before = lambda step: None
        go_on.set()
        await busy

    meddler(engine).before = hold
    asyncio.run(main())
    assert meddler(engine).begun < 100
    assert_idle(engine)


def test_a_loop_closed_over_an_open_stream_harms_nobody(engine: Engine) -> None:
    loop = asyncio.new_event_loop()
    stream = engine.stream([5] * 4, sampled(900))
    loop.run_until_complete(anext(stream))
    loop.run_until_complete(loop.shutdown_default_executor())
    driver = engine._driver
    assert driver is not None
    driver.cancel()
    loop.run_until_complete(asyncio.gather(driver, return_exceptions=True))
    loop.close()
    assert engine.generate(PROMPTS[1], sampled()).token_ids == alone(engine)[1]
    assert_idle(engine)


# Threads.


def test_threads_generate_at_once(engine: Engine) -> None:
    expected = alone(engine, 60)
    got: dict[int, Generation] = {}
    spoke_in: dict[int, set[int]] = {i: set() for i in range(len(PROMPTS))}

    def job(i: int) -> Callable[[], None]:
        def run() -> None:
            home = threading.get_ident()
            got[i] = engine.generate(
                PROMPTS[i], sampled(60), on_delta=lambda d: spoke_in[i].add(threading.get_ident() - home)
            )

        return run

    assert in_threads(*(job(i) for i in range(len(PROMPTS)))) == [None] * len(PROMPTS)
    assert [got[i].token_ids for i in range(len(PROMPTS))] == expected
    assert all(each.token_times_s == sorted(each.token_times_s) for each in got.values())
    assert all(apart == {0} for apart in spoke_in.values()), "a callback ran in another caller's thread"
    assert_idle(engine)


def test_a_callback_that_raises_harms_only_its_own_request(engine: Engine) -> None:
    expected = alone(engine, 100)[1]
    got: list[list[int]] = []

    def fail(delta: Delta) -> None:
        raise BrokenPipeError

    def careful() -> None:
        got.append(engine.generate(PROMPTS[1], sampled(100)).token_ids)

    def careless() -> None:
        for _ in range(20):
            with pytest.raises(BrokenPipeError):
                engine.generate(PROMPTS[2], sampled(100), on_delta=fail)

    assert in_threads(careful, careless, careful) == [None] * 3
    assert got == [expected] * 2
    assert_idle(engine)


def test_stepping_and_generating_mix(engine: Engine) -> None:
    """Who only steps gets what he submitted, and no more; neither takes the other's tokens."""
    expected = alone(engine, 100)
    generated: list[list[int]] = []
    submitted: list[Delta] = []

    def step() -> None:
        for i in range(10):
            engine.submit(Request(f"r{i}", PROMPTS[1], sampled(100)))
            while sum(delta.finish_reason is not None for delta in submitted) <= i:
                submitted.extend(engine.step())

    def generate() -> None:
        for _ in range(10):
            generated.append(engine.generate(PROMPTS[2], sampled(100)).token_ids)

    assert in_threads(step, generate) == [None] * 2
    assert all(tokens == expected[2] for tokens in generated)
    assert all(tokens_of(submitted, f"r{i}") == expected[1] for i in range(10))
    assert_idle(engine)


# Cancellation.


def test_abort_ends_a_running_request_with_what_it_has(engine: Engine) -> None:
    expected = alone(engine)[1]

    def stop(delta: Delta) -> None:
        if len(seen := [*seen_ids, *delta.token_ids]) >= 5:
            engine.abort(delta.request_id)
        seen_ids[:] = seen

    seen_ids: list[int] = []
    with bystander(engine):
        answer = engine.generate(PROMPTS[1], sampled(), on_delta=stop)
        assert (answer.token_ids, answer.finish_reason) == (expected[:5], FinishReason.ABORT)


def test_abort_of_queued_running_and_unknown_requests(model: Path) -> None:
    engine = make_engine(model, max_running=2)
    with bystander(engine) as deltas:
        engine.submit(Request("running", PROMPTS[1], sampled(100)))
        engine.submit(Request("queued", PROMPTS[2], sampled(100)))
        deltas += engine.step()
        assert [s.request.id for s in engine.scheduler.waiting] == ["queued"]
        for name in ("queued", "running", "unknown", "running"):
            engine.abort(name)
        assert [s.request.id for s in engine.scheduler.running] == ["bystander"]
        deltas += engine.step()
        ended = {d.request_id: d.finish_reason for d in deltas if d.finish_reason}
        assert ended == {"queued": FinishReason.ABORT, "running": FinishReason.ABORT}
        engine.submit(Request("running", PROMPTS[1], sampled(4)))  # the id is free again
