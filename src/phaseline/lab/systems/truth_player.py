"""Lets the time of a script pass, for the server and for its twin alike."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import groupby

from phaseline.lab.systems.truth_engine import Costs, Demand, Simulation
from phaseline.lab.systems.truth_script import Burst, Script


class Player:
    """Lets the time of a script pass."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._engine = _Engine(script.engine) if script.engine else None

    async def play(self, received: float, prompt: int, tokens: int) -> AsyncGenerator[Sequence[Burst], None]:
        """Bursts that come out together, when they do, up to the script's fault.

        `received` is on the monotonic clock, in seconds; an engine heeds the request's prompt and tokens.
        """
        left = self._script.fault.after if self._script.fault else None
        async with aclosing(self._bursts(Demand(received, prompt, tokens))) as bursts:
            while left != 0 and (together := await anext(bursts, None)):
                yield together[:left]
                left = None if left is None else max(0, left - len(together))

    async def _bursts(self, demand: Demand) -> AsyncGenerator[Sequence[Burst], None]:
        if self._engine:
            async with aclosing(self._engine.serve(demand)) as times:
                async for at in times:
                    yield [Burst(at - demand.at)]
            return
        for at, together in groupby(self._script.bursts, key=lambda burst: burst.at):
            await sleep_until(demand.at + at)
            yield list(together)


class _Engine:
    """Runs a simulation against the clock; its steps end when they should, however late it was told to look."""

    def __init__(self, costs: Costs) -> None:
        self._simulation: Simulation[int] = Simulation(costs)
        self._queues: dict[int, asyncio.Queue[float]] = {}
        self._running: asyncio.Task[None] | None = None
        self._admitted = 0

    async def serve(self, demand: Demand) -> AsyncGenerator[float, None]:
        """The time of each token of a stream, when it has come. Closing it gives the stream up."""
        key = self._admitted
        self._admitted += 1
        queue = self._queues[key] = asyncio.Queue()
        self._simulation.admit(key, demand)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(demand.at))
        try:
            for _ in range(demand.tokens):
                yield await queue.get()
        finally:
            self._simulation.drop(key)
            del self._queues[key]

    async def _run(self, now: float) -> None:
        while step := self._simulation.step(now):
            await sleep_until(step.end)
            for key in step.yields:
                if key in self._queues:  # it may have been given up during the step
                    self._queues[key].put_nowait(step.end)
            now = step.end


async def sleep_until(moment: float) -> None:
    """Until the monotonic clock (seconds) shows that much."""
    await asyncio.sleep(moment - time.monotonic())
