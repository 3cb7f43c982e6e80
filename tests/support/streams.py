"""What one stream of a system brings, gathered."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from phaseline.lab.systems.base import Ask, Piece, StreamFault
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.timeouts import Timeouts
from phaseline.lab.systems.truth_script import Script
from phaseline.lab.systems.truth_server import serving
from phaseline.lab.trace import META

T = TypeVar("T")

ASK = Ask("one two three", max_tokens=5)


@dataclass
class Stream:
    """`times` are seconds from the ask; `fault` is what the stream ended with, if it failed."""

    batches: list[list[Piece]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    fault: str | None = None

    @property
    def content(self) -> list[Piece]:
        return [piece for batch in self.batches for piece in batch if piece.channel != META]

    @property
    def content_times(self) -> list[float]:
        """Of each batch with content."""
        return [t for t, batch in zip(self.times, self.batches, strict=True) if any(p.channel != META for p in batch)]

    @property
    def facts(self) -> dict[str, Any]:
        return {name: value for batch in self.batches for piece in batch for name, value in piece.facts.items()}


async def follow(system: Any, ask: Ask = ASK) -> Stream:
    """One stream to its end, be it good or bad."""
    stream, started = Stream(), time.monotonic()
    try:
        async with aclosing(system.generate(ask)) as batches:
            async for batch in batches:
                stream.times.append(time.monotonic() - started)
                stream.batches.append(list(batch))
    except StreamFault as fault:
        stream.fault = str(fault)
    return stream


async def follow_and_close(system: Any, ask: Ask = ASK) -> Stream:
    """The only stream of a system."""
    try:
        return await follow(system, ask)
    finally:
        await system.close()


def over_http(script: Script, ask: Ask = ASK, **settings: Any) -> Stream:
    """One stream from a truth server."""
    return asking(script, lambda system: follow(system, ask), **settings)


def asking(script: Script, work: Callable[[OpenAISystem], Awaitable[T]], **settings: Any) -> T:
    async def ask() -> T:
        async with serving(script) as url:
            system = OpenAISystem(url, **{"model": "truth", "timeouts": Timeouts(5, 5, 5, 10), **settings})
            try:
                return await work(system)
            finally:
                await system.close()

    return asyncio.run(ask())
