"""Our own engine as a system under test, in this process."""

from collections.abc import Sequence
from typing import Any

from phaseline.engine.engine import Engine
from phaseline.engine.types import Request, SamplingParams
from phaseline.errors import UnsupportedError
from phaseline.execute.native import NativeExecutor
from phaseline.lab.systems.base import Arrival


class PhaselineSystem:
    """Drives an engine step by step. `mode` and `chunk` may change between streams: the weights stay loaded."""

    def __init__(self, engine: Engine) -> None:
        if not isinstance(engine.executor, NativeExecutor):
            raise UnsupportedError("numerics reference is the specification, not a system to measure: use fast")
        self._engine = engine
        self.executor = engine.executor

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
        self.executor.mode = "chunk" if mode == "walk" else mode
        self._engine.scheduler.chunk = 1 if mode == "walk" else chunk

    def start(self, stream: int, prompt: Sequence[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=0)
        self._engine.submit(Request(str(stream), list(prompt), params))

    def poll(self) -> list[Arrival]:
        return [
            Arrival(int(d.request_id), len(d.token_ids), d.finish_reason is not None) for d in self._engine.step()
        ]

    def cancel(self, stream: int) -> None:
        self._engine.abort(str(stream))

    def build(self) -> dict[str, Any]:
        """What produced the figures, for the record."""
        return {"level": self.executor.level, "threads": self.executor.team.size, "page_size": self.executor.page_size}
