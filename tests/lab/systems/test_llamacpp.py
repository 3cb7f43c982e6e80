"""llama.cpp's own server, in this process, through its native endpoint and through the OpenAI one."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from phaseline.errors import CapacityError, RequestError, UnsupportedError
from phaseline.lab.systems.base import Ask, Piece, StreamFault
from phaseline.lab.systems.llamacpp import LlamaCppSystem, Reader
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.sse import ServerEvent
from phaseline.lab.trace import META
from support.streams import Stream, follow
from support.tiny import write_llama

T = TypeVar("T")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llamacpp") / "tiny.gguf")


def launched(path: Path, work: Callable[[LlamaCppSystem], Awaitable[T]]) -> T:
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")

    async def run() -> T:
        system = LlamaCppSystem.launch(path, threads=1, context=256, streams=2)
        try:
            return await work(system)
        finally:
            await system.close()

    return asyncio.run(run())


def test_every_token_is_counted(tiny: Path) -> None:
    """The tiny model writes random bytes, so that many of its tokens end within a character and are held back."""

    async def work(system: LlamaCppSystem) -> tuple[dict[str, Any], list[Stream]]:
        asks = [Ask(list(range(5, 5 + n)), 60, min_tokens=60, options={"seed": n, "temperature": 1}) for n in (9, 40)]
        return dict(await system.describe()), await asyncio.gather(*(follow(system, ask) for ask in asks))

    described, streams = launched(tiny, work)
    assert described["model_path"] == str(tiny) and described["threads"] == 1 and described["total_slots"] == 2
    for prompt, stream in zip((9, 40), streams, strict=True):
        assert stream.fault is None
        counts = [piece.tokens for piece in stream.content]
        assert sum(filter(None, counts)) == 60 and None not in counts
        assert max(filter(None, counts)) > 1, "no token was held back: the test shows nothing"
        assert stream.facts["prompt_tokens"] == prompt and stream.facts["output_tokens"] == 60
        assert stream.facts["finish_reason"] == "length"
        assert stream.facts["timings"]["predicted_n"] == 60 and stream.facts["timings"]["prompt_ms"] > 0


def test_the_openai_door_tells_the_same(tiny: Path) -> None:
    async def work(system: LlamaCppSystem) -> list[Stream]:
        served = OpenAISystem((await system.describe())["base_url"], api="completions")
        counting = {"temperature": 1, "seed": 3, "timings_per_token": True}
        try:
            return [
                await follow(served, Ask([5, 6, 7], 40, ignore_eos=True, options=options)) for options in ({}, counting)
            ]
        finally:
            await served.close()

    plain, counting = launched(tiny, work)
    for stream in (plain, counting):
        assert stream.fault is None and stream.facts["output_tokens"] == 40 and stream.facts["prompt_tokens"] == 3
        assert stream.facts["finish_reason"] == "length" and stream.facts["timings"]["predicted_n"] == 40
    assert {piece.tokens for piece in plain.content} == {None}
    counts = [piece.tokens for piece in counting.content]
    assert None not in counts
    assert len(counts) < sum(filter(None, counts)) <= 40  # it may end within a character, which is not sent


def test_what_llamacpp_refuses(tiny: Path) -> None:
    async def work(system: LlamaCppSystem) -> list[str | None]:
        with pytest.raises(RequestError, match="min_tokens"):
            system.generate(Ask("a", 5, min_tokens=3))
        return [(await follow(system, Ask(prompt, 2))).fault for prompt in ([5] * 999, [10**8])]

    too_long, no_token = launched(tiny, work)
    assert too_long and "400 Bad Request" in too_long and "context size" in too_long
    assert no_token and "invalid tokens" in no_token


def test_what_is_no_model(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    with pytest.raises(UnsupportedError, match="not folders"):
        LlamaCppSystem.launch(tmp_path, threads=1)
    with pytest.raises(CapacityError, match="cannot serve"):
        LlamaCppSystem.launch(tmp_path / "none.gguf", threads=1)


def test_the_meaning_of_events() -> None:
    reader = Reader()
    assert reader.read(ServerEvent('{"content": "", "stop": false, "tokens_predicted": 1}')) == [Piece("text", 1, "")]
    assert reader.read(ServerEvent('{"content": "a", "stop": false}')) == [Piece("text", 1, "a")]  # not stated: one
    assert reader.read(ServerEvent('{"content": "b", "stop": false, "tokens_predicted": 5}')) == [Piece("text", 3, "b")]
    assert not reader.finished
    last = '{"content": "c", "stop": true, "stop_type": "eos", "tokens_predicted": 5, "timings": {"cache_n": 2}}'
    facts = {"finish_reason": "stop", "cached_tokens": 2, "output_tokens": 5, "timings": {"cache_n": 2}}
    assert reader.read(ServerEvent(last)) == [Piece("text", 0, "c"), Piece(META, facts=facts)]
    assert reader.finished


@pytest.mark.parametrize(
    "data", ["oops", '{"content": 1}', '{"error": {"message": "full"}}', '{"tokens_predicted": 2}', '{"timings": [1]}']
)
def test_garbage_and_errors(data: str) -> None:
    reader = Reader()
    reader.read(ServerEvent('{"content": "a", "tokens_predicted": 3}'))
    with pytest.raises(StreamFault):
        reader.read(ServerEvent(data))
