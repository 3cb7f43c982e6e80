"""Stream: the answers to one request on their way from the engine's reports to whoever asked."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from phaseline.engine.types import Delta, Progress, Request
from phaseline.serve.errors import NotRead


class Stream:
    """An async iterator of one request's Deltas and Progress, in order, of all its n completions; then it ends.

    It raises the error that ended the request, after what came before. As a context manager it cancels on leaving what
    is not done. It holds at most `room` items: who takes nothing while more come loses the request to NotRead.

    Times are of time.monotonic_ns: when it was `accepted_ns`, when the step began that first read from its prompt
    (`began_ns`), when the steps ended that made its first and its latest token (`first_ns`, `last_ns`); 0 until then.
    """

    def __init__(self, request: Request, leave: Callable[["Stream"], None], room: int) -> None:
        self.request = request
        self.accepted_ns = time.monotonic_ns()
        self.began_ns = self.first_ns = self.last_ns = 0
        self.timer: asyncio.TimerHandle | None = None  # ends it when its time is over
        self._leave = leave
        self._room = room
        self._items: deque[Delta | Progress] = deque()
        self._open_ends = request.params.n
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether the engine has said the last of it."""
        return self._open_ends == 0

    @property
    def done(self) -> bool:
        """Whether nothing further comes: it is finished, or ended with an error."""
        return self.finished or self._error is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta | Progress:
        while not self._items:
            if self._error:
                raise self._error
            if self.finished:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._items.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave(self)

    # What the client does with it.

    def put(self, item: Delta | Progress, t_ns: int) -> None:
        """Something came, of a step that ended at `t_ns`."""
        if self.done:
            return
        if isinstance(item, Delta):
            if item.token_ids:
                self.first_ns = self.first_ns or t_ns
                self.last_ns = t_ns
            self._open_ends -= item.finish_reason is not None
        if len(self._items) >= self._room:
            self.fail(NotRead(f"{self._room} answers were not read: the connection is too slow, or stands still"))
            self._leave(self)
            return
        self._items.append(item)
        self._wake()

    def fail(self, error: Exception) -> None:
        """The request ends with an error."""
        if not self.done:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._reader and not self._reader.done():
            self._reader.set_result(None)
