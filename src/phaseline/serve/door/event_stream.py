"""Server-sent events on their way out."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.types import Send

from phaseline.serve.door.connection import Connection
from phaseline.serve.door.taking import Later

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


class EventStream:
    """Writes prepared bytes to a connection. The answer begins with the first of them: what fails before has a status
    of its own. What follows goes past ASGI's layers: none of them looks at more than the head.

    A reader who takes nothing for `patience` seconds while bytes wait is given up: `give_up` is called.
    """

    def __init__(self, send: Send, connection: Connection, patience: float, give_up: Callable[[], object]) -> None:
        self.begun = False
        self._send, self.write_now, self._flow = send, connection.write_chunk, connection.flow
        self._patience, self._give_up = patience, give_up
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None
        self._timer = self._loop.call_later(patience, self._look)

    def write(self, data: bytes) -> Later | None:
        """Send one event or several: at once, or where that can't be by what is returned, and nothing else before."""
        if self._flow.write_paused or not self.begun:
            return partial(self._write_later, data)
        self.write_now(data)
        return None

    async def end(self) -> None:
        """Nothing follows."""
        await self._waiting(self._send({"type": "http.response.body"}))

    def close(self) -> None:
        """Look no further; to be called whatever happened."""
        self._timer.cancel()

    async def _write_later(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._waiting(self._flow.drain())
        self.write_now(data)

    async def _waiting(self, sent: Awaitable[None]) -> None:
        self._waits_since = self._loop.time()
        await sent
        self._waits_since = None

    def _look(self) -> None:
        waits = 0.0 if self._waits_since is None else self._loop.time() - self._waits_since
        if waits >= self._patience:
            self._give_up()
        else:
            self._timer = self._loop.call_later(self._patience - waits, self._look)
