"""What takes turns in a comparison: anything that can be asked again and again, and whose phases can be told apart."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.drive import follow
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.prompts import WORDS, Vocabulary
from phaseline.lab.systems.base import Ask, Piece, StreamSystem
from phaseline.lab.trace import Trace

PHASES = ("prefill", "decode")
SETTLE_S = 0.05  # between turns: the threads of whoever ran before fall asleep
_CACHED = 0.1  # of a prompt: from there on its prefill was not measured

Answer = str | tuple[int, ...]  # text, or token ids


@dataclass(frozen=True, slots=True)
class Reading:
    """What one ask brought. `costs`: seconds by phase, in a unit that is the contender's own: only ratios hold.

    `trace` is None where a command did the measuring, `answer` where it is not known.
    """

    costs: Mapping[str, float]
    answer: Answer | None
    trace: Trace | None


class Contender(Protocol):
    """One side of a comparison. `start` and `stop` come in turns; `close` ends it all.

    prompted     it serves what it is asked; else (a command) it does work of its own, the same each time
    vocabulary   what its random prompts are made of
    """

    name: str
    prompted: bool
    vocabulary: Vocabulary

    async def start(self) -> None:
        """Begin a run of its own: a new process, where it has one."""

    async def serve(self, ask: Ask) -> Reading:
        """Serve one ask, alone. Raises PhaselineError if it fails, or if not all of its phases can be told."""

    async def stop(self) -> None:
        """End the run."""

    async def describe(self) -> Mapping[str, Any]:
        """What is known of it, for the record. It is running."""

    async def close(self) -> None:
        """Give everything back."""


class StreamContender:
    """A system of streams; `make` opens it.

    One in this process is opened anew for each start: where its weights happen to lie in memory can make it several
    percent faster or slower for as long as it lives. A `lasting` one, a server, is opened once.
    """

    prompted = True

    def __init__(
        self, name: str, make: Callable[[], StreamSystem], vocabulary: Vocabulary = WORDS, *, lasting: bool = False
    ) -> None:
        self.name, self.vocabulary = name, vocabulary
        self._make, self._lasting = make, lasting
        self._system: StreamSystem | None = None

    async def start(self) -> None:
        if self._system is None:
            self._system = self._make()

    async def serve(self, ask: Ask) -> Reading:
        listener = _Listener(self._running)
        trace = await follow(listener, ask)
        return read_trace(self.name, trace, ask, listener.text or None)

    async def stop(self) -> None:
        if not self._lasting:
            await self.close()

    async def describe(self) -> Mapping[str, Any]:
        return await self._running.describe()

    async def close(self) -> None:
        system, self._system = self._system, None
        if system is not None:
            await system.close()

    @property
    def _running(self) -> StreamSystem:
        assert self._system is not None  # it was started
        return self._system


class _Listener:
    """Passes a system's streams on, and keeps their text."""

    def __init__(self, system: StreamSystem) -> None:
        self.name, self.text = system.name, ""
        self._system = system
        self.describe, self.close = system.describe, system.close

    async def generate(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        stream = self._system.generate(ask)
        try:
            async for pieces in stream:
                yield pieces
                self.text += "".join(piece.text for piece in pieces)
        finally:
            await stream.aclose()


def read_trace(name: str, trace: Trace, ask: Ask, answer: Answer | None) -> Reading:
    """The phases of a trace: its TTFT and, if more than one token was asked for, its TPOT.

    Raises PhaselineError for a failed stream, or for one without a TPOT.
    """
    if trace.error is not None:
        raise PhaselineError(f"{name} failed: {trace.error}")
    metrics = trace_metrics(trace)
    if metrics.ttft is None:
        raise PhaselineError(f"{name} brought no token")
    costs = {"prefill": metrics.ttft}
    if ask.max_tokens > 1:
        if not metrics.tpot:
            raise PhaselineError(f"{name}: asked for {ask.max_tokens} tokens, its answer came at once: it has no TPOT")
        costs["decode"] = metrics.tpot
    return Reading(costs, answer, trace)


def refuse_cached(name: str, trace: Trace | None) -> None:
    """Raises PhaselineError for a prompt that a prefix cache has served: its prefill was not measured."""
    if trace and trace.cached_tokens and trace.cached_tokens > _CACHED * (trace.prompt_tokens or 0):
        raise PhaselineError(
            f"{name} took {trace.cached_tokens} of {trace.prompt_tokens} prompt tokens from a prefix cache, though no "
            "two prompts begin alike: its prefill cannot be measured"
        )


def common_vocabulary(contenders: Sequence[Contender]) -> Vocabulary:
    """What all of them can be asked with: token ids where all take them, else words.

    Raises RequestError if none of them takes prompts.
    """
    known = [one.vocabulary for one in contenders if one.prompted]
    if not known:
        raise RequestError("none of these takes prompts: they are commands")
    ids = [one for one in known if isinstance(one, range)]
    return min(ids, key=len) if len(ids) == len(known) else WORDS
