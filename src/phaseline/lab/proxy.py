"""A proxy that makes a server slower by known shares of its phases, for a guard to find out."""

import asyncio
import re
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from phaseline.errors import RequestError
from phaseline.lab.contenders import Reading, StreamContender
from phaseline.lab.prompts import WORDS, Vocabulary
from phaseline.lab.systems.base import Ask, StreamSystem

_PACKET = 1 << 16
_CONTENT = re.compile(rb'"(?:content|reasoning_content|reasoning|text)"\s*:\s*"[^"]')  # of a server-sent event
_HOST = re.compile(rb"(?<=\r\nHost: )[^\r\n]*", re.IGNORECASE)
_COARSE_S = 0.002  # an event loop may wake up so much too late; the rest is waited for by the thread


@asynccontextmanager
async def delaying(base_url: str, prefill: float = 0.0, decode: float = 0.0) -> AsyncGenerator[str, None]:
    """Stand before a server; yields the base URL to ask instead.

    What comes up to the first event with content comes later by the share `prefill` of the time since the request; what
    follows, by the share `decode` of the time since that event. Bytes are passed on as they are, but for the Host
    header. A connection carries one request at a time. Raises RequestError for a bad URL.
    """
    url = urlsplit(base_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise RequestError(f"not the base URL of a server: {base_url!r}; for example http://127.0.0.1:8000")
    tls = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if tls else 80)
    conversations: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(url.hostname, port, ssl=tls)
        except OSError:
            writer.transport.abort()
            return
        pace = Pace(prefill, decode)
        try:
            await _relay(reader, writer, *there, pace, url.netloc.encode())
        finally:
            writer.transport.abort()
            there[1].transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(converse(reader, writer))
        conversations.add(task)
        task.add_done_callback(conversations.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}{url.path}"
    finally:
        listener.close()
        for task in conversations:
            task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)


class ProxiedContender:
    """A server behind such a proxy; `make` gives the system for a base URL. Without delays it is a fair control."""

    prompted = True

    def __init__(
        self,
        name: str,
        base_url: str,
        make: Callable[[str], StreamSystem],
        slow: Mapping[str, float],
        vocabulary: Vocabulary = WORDS,
    ) -> None:
        self.name, self.vocabulary = name, vocabulary
        self._base_url, self._make, self._slow = base_url, make, dict(slow)
        self._open = AsyncExitStack()
        self._behind: StreamContender | None = None

    async def start(self) -> None:
        if self._behind is None:
            url = await self._open.enter_async_context(delaying(self._base_url, **self._slow))
            self._behind = StreamContender(self.name, lambda: self._make(url), self.vocabulary, lasting=True)
            await self._behind.start()
            self._open.push_async_callback(self._behind.close)

    async def serve(self, ask: Ask) -> Reading:
        assert self._behind  # it was started
        return await self._behind.serve(ask)

    async def stop(self) -> None:
        """It goes on."""

    async def describe(self) -> Mapping[str, Any]:
        assert self._behind
        return {**await self._behind.describe(), "behind_proxy_of": self._base_url, "slowed": self._slow}

    async def close(self) -> None:
        await self._open.aclose()


@dataclass(slots=True)
class Pace:
    """When to pass on what has come, on the monotonic clock (seconds)."""

    prefill: float
    decode: float
    asked: float = 0.0
    first: tuple[float, float] | None = None  # of the first content: when it came, when it goes

    def ask(self, now: float) -> None:
        """A request goes out."""
        self.asked, self.first = now, None

    def due(self, came: float, data: bytes) -> float:
        """When bytes that came then are to be passed on."""
        if self.first is not None:
            return self.first[1] + (came - self.first[0]) * (1 + self.decode)
        goes = self.asked + (came - self.asked) * (1 + self.prefill)
        if _CONTENT.search(data):
            self.first = came, goes
        return goes


async def _relay(
    near: asyncio.StreamReader,
    near_out: asyncio.StreamWriter,
    far: asyncio.StreamReader,
    far_out: asyncio.StreamWriter,
    pace: Pace,
    host: bytes,
) -> None:
    """Until one side is done. What the server sends is stamped on arrival, however long the one before it is held."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def requests() -> None:
        while data := await near.read(_PACKET):
            pace.ask(time.monotonic())
            far_out.write(_HOST.sub(host, data, count=1))
            await far_out.drain()

    async def arrivals() -> None:
        try:
            while data := await far.read(_PACKET):
                waiting.put_nowait((time.monotonic(), data))
        finally:
            waiting.put_nowait((0.0, b""))

    async def departures() -> None:
        while True:
            came, data = await waiting.get()
            if not data:
                return
            await _sleep_until(pace.due(came, data))
            near_out.write(data)
            await near_out.drain()

    tasks = [asyncio.create_task(work()) for work in (requests, arrivals, departures)]
    try:
        await asyncio.wait([tasks[0], tasks[2]], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sleep_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > _COARSE_S:
        await asyncio.sleep(left - _COARSE_S)
    time.sleep(max(0.0, moment - time.monotonic()))
