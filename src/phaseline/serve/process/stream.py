"""Stream: the answers to one request on their way from the engine's reports to whoever asked."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

from phaseline.engine.types import Delta, Progress, Request
from phaseline.serve.errors import NotRead


def nothing() -> None:
    """The bell of a stream that nobody listens to."""


class Taker(Protocol):
    """Whoever takes what comes of streams."""

    open: bool  # nothing that came waits, nor would an event

    def failed(self, error: Exception) -> None:
        """An event could not be written."""


class Way(NamedTuple):
    """How a completion's further texts get out without being put here, while its taker is open: each as an event, as
    JSON between two pieces."""

    taker: Taker
    write: Callable[[bytes], bool]  # whether the taker stays open
    head: bytes
    tail: bytes


class Stream:
    """One request's Deltas and Progress, in order, of all its n completions, to `take`. `bell` is called, within the
    loop's handling of the engine's report, when there is something to take or the stream is `done`.

    As a context manager it cancels on leaving what is not done. It holds at most `room` items: who takes nothing while
    more come loses the request to NotRead.

    Times are of time.monotonic_ns: when it was `accepted_ns`, when the step began that first read from its prompt
    (`began_ns`), when the steps ended that made its first and its latest token (`first_ns`, `last_ns`); 0 until then.
    `tokens` counts those that were taken, or went by one of the `ways`; `cached`: of the prompt, in the prefix cache.
    """

    def __init__(self, request: Request, leave: Callable[["Stream"], None], room: int) -> None:
        self.request = request
        self.accepted_ns = time.monotonic_ns()
        self.began_ns = self.first_ns = self.last_ns = 0
        self.timer: asyncio.TimerHandle | None = None  # ends it when its time is over
        self.bell: Callable[[], None] = nothing
        self.ways: dict[int, Way] = {}  # of completions whose events, but the last, differ in nothing but their text
        self.tokens = 0
        self.cached: int | None = None  # None until something was taken
        self.done = False  # nothing further comes: the engine has said the last of it, or it ended with an error
        self._leave = leave
        self._room = room
        self._items: deque[Delta | Progress] = deque()
        self._open_ends = request.params.n
        self._error: Exception | None = None

    @property
    def finished(self) -> bool:
        """Whether the engine has said the last of it."""
        return self._open_ends == 0

    @property
    def exhausted(self) -> bool:
        """Whether the engine has said the last of it and all was taken."""
        return not self._open_ends and not self._items

    def take(self) -> Delta | Progress | None:
        """The next item; None if there is none now. Raises the error that ended the request, after what came before."""
        if self._items:
            item = self._items.popleft()
            if isinstance(item, Delta):
                self.tokens += len(item.token_ids)
                if self.cached is None:
                    self.cached = item.cached_tokens  # later ones count what a preemption left, too
            return item
        if self._error:
            raise self._error
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._error = None  # whose traceback holds who took it, and this
        self._leave(self)

    # What the client does with it.

    def put(self, item: Delta | Progress, t_ns: int) -> None:
        """Something came, of a step that ended at `t_ns`."""
        if self.done:
            return
        if len(self._items) >= self._room:
            self.fail(NotRead(f"{self._room} answers were not read: the connection is too slow, or stands still"))
            return
        self._items.append(item)
        if isinstance(item, Delta):
            if item.token_ids:
                self.first_ns = self.first_ns or t_ns
                self.last_ns = t_ns
            if item.finish_reason is not None:
                self._open_ends -= 1
                self.done = self._open_ends == 0
        self.bell()

    def passed(self, delta: Delta, t_ns: int) -> None:
        """Something went by one of the `ways`, of a step that ended at `t_ns`."""
        self.tokens += len(delta.token_ids)
        self.last_ns = t_ns

    def fail(self, error: Exception) -> None:
        """The request ends with an error."""
        if not self.done:
            self._error, self.done = error, True
            self.bell()
