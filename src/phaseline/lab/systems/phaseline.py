"""Our own engine as a system under test, in this process."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from phaseline.engine.engine import Engine
from phaseline.engine.types import Request, SamplingParams
from phaseline.errors import CapacityError, UnsupportedError
from phaseline.execute.native import NativeExecutor
from phaseline.lab.systems.base import Arrival


class PhaselineSystem:
    """Drives an engine step by step. `mode` and `chunk` may change between streams: the weights stay loaded."""

    def __init__(self, engine: Engine) -> None:
        if not isinstance(engine.executor, NativeExecutor):
            raise UnsupportedError("numerics reference is the specification, not a system to measure: use fast")
        self._engine = engine
        self.executor = engine.executor
        self._streams: dict[str, int] = {}  # by request id, used once: of cancelled ones the engine may speak later
        self._ids = count()

    @property
    def context(self) -> int:
        """Positions that one stream may hold."""
        return self._engine.scheduler.context

    @property
    def max_running(self) -> int:
        """Streams that may run at once."""
        return self._engine.scheduler.max_running

    def configure(self, mode: str, chunk: int) -> None:
        """How prompts are read from now on: walk is a chunk of one."""
        chunk = 1 if mode == "walk" else chunk
        most = self.executor.max_rows - self.max_running
        if min(chunk, self.context * self.max_running) > most:
            raise CapacityError(f"chunk = {chunk}: the engine was loaded for chunks of at most {most}")
        self.executor.mode = "chunk" if mode == "walk" else mode
        self._engine.scheduler.chunk = chunk

    def start(self, stream: int, prompt: Sequence[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=0)
        request = Request(f"stream-{next(self._ids)}", list(prompt), params)
        self._engine.submit(request)
        self._streams[request.id] = stream

    def poll(self) -> list[Arrival]:
        arrivals = []
        for delta in self._engine.step():
            stream, last = self._streams.get(delta.request_id), delta.finish_reason is not None
            if stream is not None:
                arrivals.append(Arrival(stream, len(delta.token_ids), last))
                if last:
                    del self._streams[delta.request_id]
        return arrivals

    def cancel(self, stream: int) -> None:
        for request_id in [r for r, s in self._streams.items() if s == stream]:
            del self._streams[request_id]
            self._engine.abort(request_id)

    def build(self) -> dict[str, Any]:
        """What produced the figures, for the record."""
        return {"level": self.executor.level, "threads": self.executor.team.size, "page_size": self.executor.page_size}
