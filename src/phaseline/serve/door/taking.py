"""Taking what comes of several streams, in the very call that brings it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from phaseline.engine.types import Delta, Progress
from phaseline.errors import PhaselineError
from phaseline.serve.process.stream import Stream, nothing

Later = Callable[[], Awaitable[None]]  # what is yet to be done, and waited for
Take = Callable[[int, Delta | Progress], Later | None]


class Taking:
    """Calls `take` with all that comes, and the number of its stream: at once, within the engine's report. Only
    what that leaves for later is done by the task that runs this; what comes meanwhile waits in the streams.
    It is `open` to events that go by a stream's `ways` while nothing waits that came before.
    """

    def __init__(self, streams: Sequence[Stream], take: Take) -> None:
        self.open = False
        self._streams, self._take = streams, take
        self._turn: asyncio.Future[Later | None]  # what the task is to do next; None: nothing is left

    async def run(self) -> None:
        """Until all have ended. Raises what ends one of them, or what `take` raises."""
        loop = asyncio.get_running_loop()
        bells = [partial(self._ring, number, stream) for number, stream in enumerate(self._streams)]
        try:
            while True:
                self._turn = loop.create_future()
                for bell, stream in zip(bells, self._streams, strict=True):
                    stream.bell = bell
                    bell()  # something may be there already
                later = await self._turn
                if later is None:
                    return
                await later()
        finally:
            for stream in self._streams:
                stream.bell = nothing
                stream.ways.clear()
            self.open = False
            del self._turn, self._take  # whose error, and whose scope, would keep all of this in memory

    def failed(self, error: Exception) -> None:
        """An event could not be written: the task's matter, as in `_ring`."""
        self.open = False
        if not self._turn.done():
            self._turn.set_exception(error)

    def _ring(self, number: int, stream: Stream) -> None:
        if self._turn.done():
            return
        try:
            while (item := stream.take()) is not None:
                if later := self._take(number, item):
                    self._turn.set_result(later)
                    return
            if stream.done and all(each.exhausted for each in self._streams):
                self._turn.set_result(None)
        except PhaselineError as error:
            self._turn.set_exception(error.with_traceback(None))  # which holds the callers, who hold the error
        except Exception as error:  # the task's matter, not that of the engine's report
            self._turn.set_exception(error)
        finally:
            self.open = not self._turn.done()
