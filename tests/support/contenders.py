"""Contenders whose every figure is known beforehand, for tests of what is made of figures."""

from collections.abc import Callable, Mapping
from typing import Any

from phaseline.errors import PhaselineError
from phaseline.lab.contenders import Answer, Reading, read_trace
from phaseline.lab.prompts import WORDS, Vocabulary
from phaseline.lab.systems.base import Ask
from phaseline.lab.trace import Event, Trace


class Scripted:
    """Reads a token in `read` seconds and writes one in `write`, both multiplied by `noise()` for each ask."""

    prompted = True

    def __init__(
        self,
        name: str,
        read: float = 0.001,
        write: float = 0.01,
        *,
        noise: Callable[[], float] = lambda: 1.0,
        answer: Callable[[Ask], Answer | None] = lambda ask: (1, 2, 3),
        vocabulary: Vocabulary = WORDS,
        log: list[tuple[str, Ask]] | None = None,
    ) -> None:
        self.name, self.vocabulary = name, vocabulary
        self._read, self._write, self._noise, self._answer = read, write, noise, answer
        self.log = [] if log is None else log
        self.running = self.closed = False
        self.starts = 0
        self.fails_after: int | None = None
        self.cached = 0

    async def start(self) -> None:
        assert not self.running
        self.running = True
        self.starts += 1

    async def serve(self, ask: Ask) -> Reading:
        assert self.running
        self.log.append((self.name, ask))
        if self.fails_after is not None and len(self.log) > self.fails_after:
            raise PhaselineError(f"{self.name} failed: scripted")
        prompt = len(ask.prompt.split() if isinstance(ask.prompt, str) else ask.prompt) or 1  # a command has its own
        factor = self._noise()
        first = round(prompt * self._read * factor * 1e9)
        times = [first + round(n * self._write * factor * 1e9) for n in range(ask.max_tokens)]
        events = tuple(Event(t, "text", 1) for t in times)
        trace = Trace(0, times[-1], events, prompt_tokens=prompt, cached_tokens=self.cached)
        return read_trace(self.name, trace, ask, self._answer(ask))

    async def stop(self) -> None:
        self.running = False

    async def describe(self) -> Mapping[str, Any]:
        return {"kind": "scripted"}

    async def close(self) -> None:
        self.closed = True
