"""Server-sent events on their way out."""

import asyncio
from collections.abc import Callable

from starlette.types import Message, Send

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


class EventStream:
    """Writes prepared bytes. The answer begins with the first of them: what fails before has a status of its own.

    A reader who takes nothing for `patience` seconds while bytes wait is given up: `give_up` is called.
    """

    def __init__(self, send: Send, patience: float, give_up: Callable[[], object]) -> None:
        self.begun = False
        self._send, self._patience, self._give_up = send, patience, give_up
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None
        self._timer = self._loop.call_later(patience, self._look)

    async def write(self, data: bytes) -> None:
        """Send one event or several; waits while the connection is full."""
        if not self.begun:
            self.begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._body({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """Nothing follows."""
        await self._body({"type": "http.response.body"})

    def close(self) -> None:
        """Look no further; to be called whatever happened."""
        self._timer.cancel()

    async def _body(self, message: Message) -> None:
        self._waits_since = self._loop.time()
        await self._send(message)
        self._waits_since = None

    def _look(self) -> None:
        waits = 0.0 if self._waits_since is None else self._loop.time() - self._waits_since
        if waits >= self._patience:
            self._give_up()
        else:
            self._timer = self._loop.call_later(self._patience - waits, self._look)
