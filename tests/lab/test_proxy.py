"""The delaying proxy: bytes as they were, times as they were asked for."""

import asyncio
import time

import pytest

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.contenders import Reading
from phaseline.lab.proxy import Pace, ProxiedContender, delaying
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.truth_script import Script, Wire, steady
from phaseline.lab.systems.truth_server import serving
from support.streams import Stream, follow

SCRIPT = Script(steady(0.02, 0.005, 12), wire=Wire(counts="token_ids", role=True, comments=True))
ROLE, FIRST, LATER = (
    b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": " b"}}]}\n\n',
)


def test_the_phases_are_stretched_each_by_its_share() -> None:
    pace = Pace(prefill=0.5, decode=0.1)
    pace.ask(100.0)
    assert pace.due(100.2, b"HTTP/1.1 200 OK\r\n\r\n") == pytest.approx(100.3)
    assert pace.due(100.4, ROLE) == pytest.approx(100.6)
    assert pace.due(101.0, FIRST) == pytest.approx(101.5)
    assert pace.due(101.0, LATER) == pytest.approx(101.5)
    assert pace.due(103.0, LATER) == pytest.approx(101.5 + 2.2)
    pace.ask(200.0)  # the next request on the same connection
    assert pace.due(201.0, FIRST) == pytest.approx(201.5)


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning", "text"])
def test_content_is_known_by_its_keys(key: str) -> None:
    pace = Pace(prefill=1.0, decode=0.0)
    pace.ask(0.0)
    assert pace.due(1.0, b'data: {"%s": "", "role": "x"}' % key.encode()) == 2.0
    assert pace.due(2.0, b'data: {"%s":"x"}' % key.encode()) == 4.0
    assert pace.due(3.0, b"anything") == 5.0


def through(prefill: float = 0.0, decode: float = 0.0, asks: int = 1) -> tuple[list[Stream], float]:
    async def ask() -> list[Stream]:
        async with serving(SCRIPT) as url, delaying(url, prefill, decode) as slow:
            system = OpenAISystem(slow, "truth")
            try:
                return [await follow(system, Ask("one two three", 12)) for _ in range(asks)]
            finally:
                await system.close()

    began = time.monotonic()
    return asyncio.run(ask()), time.monotonic() - began


def test_all_that_comes_is_passed_on() -> None:
    streams, _ = through(asks=2)
    for stream in streams:
        assert stream.fault is None and sum(piece.tokens or 0 for piece in stream.content) == 12
        assert "".join(piece.text for piece in stream.content) == "tok " * 12
        assert stream.facts["prompt_tokens"] == 3


def test_what_is_slowed_takes_longer() -> None:
    (stream,), _ = through(prefill=4.0)
    assert stream.content_times[0] >= 0.02 * 5 - 0.001
    (stream,), _ = through(decode=4.0)
    assert stream.content_times[-1] - stream.content_times[0] >= 0.005 * 11 * 5 - 0.015  # stamps of this busy process
    assert sum(piece.tokens or 0 for piece in stream.content) == 12


def serve(base_url: str, slow: dict[str, float]) -> tuple[Reading, dict[str, object]]:
    async def ask() -> tuple[Reading, dict[str, object]]:
        contender = ProxiedContender("it", base_url, lambda url: OpenAISystem(url, "truth"), slow)
        try:
            for _ in range(2):  # it goes on between its turns
                await contender.start()
                reading = await contender.serve(Ask("one two three", 12))
                await contender.stop()
            return reading, dict(await contender.describe())
        finally:
            await contender.close()

    return asyncio.run(ask())


def test_a_contender_behind_a_proxy() -> None:
    async def scene() -> None:
        async with serving(SCRIPT) as url:
            reading, told = await asyncio.to_thread(serve, url, {"prefill": 4.0})
            assert reading.costs["prefill"] >= 0.099 and reading.answer == "tok " * 12
            assert told["behind_proxy_of"] == url and told["slowed"] == {"prefill": 4.0}

    asyncio.run(scene())


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(PhaselineError, match=r"it failed: .*connection"):
        serve("http://127.0.0.1:9", {})


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://"])
def test_what_is_no_server(url: str) -> None:
    with pytest.raises(RequestError, match="not the base URL"):
        serve(url, {})
