"""Our own engine as a system under test, in this process: step by step, or as streams."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.engine.engine import Engine
from phaseline.engine.policy import ItlBudget
from phaseline.engine.step_cost import Reach, StepCost
from phaseline.engine.types import Delta, Request, SamplingParams
from phaseline.errors import CapacityError, PhaselineError, UnsupportedError
from phaseline.execute.native import NativeExecutor
from phaseline.lab.systems.base import Arrival, Ask, Piece, StreamFault
from phaseline.lab.trace import META
from phaseline.program.ir import Program
from phaseline.program.state import Recurrent


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

    def configure(self, mode: str, chunk: int, itl_budget_ms: float | None = None) -> None:
        """How prompts are read from now on: walk is a chunk of one; a budget begins to learn what steps cost."""
        chunk = 1 if mode == "walk" else chunk
        most = self.executor.max_rows - self.max_running
        if min(chunk, self.context * self.max_running) > most:
            raise CapacityError(f"chunk = {chunk}: the engine was loaded for chunks of at most {most}")
        self.executor.mode = "chunk" if mode == "walk" else mode
        self._engine.scheduler.chunk = chunk
        cost = StepCost(Reach.of(self.executor.program))
        self._engine.scheduler.itl_budget = None if itl_budget_ms is None else ItlBudget(itl_budget_ms, cost)

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

    def holds(self, streams: int, positions: int) -> bool:
        """Whether the pool has pages for so many streams of so many positions at once."""
        scheduler = self._engine.scheduler
        return scheduler.table.holds(streams, positions, scheduler.chunk)

    def line(self) -> tuple[int, int, int]:
        """Streams that run, streams that wait, and how often these have been preempted."""
        scheduler = self._engine.scheduler
        preempted = sum(s.preemptions for s in (*scheduler.running, *scheduler.waiting))
        return len(scheduler.running), len(scheduler.waiting), preempted

    @contextmanager
    def slots(self, lengths: Sequence[int]) -> Iterator[tuple[list[int], NDArray[np.int32]]]:
        """Rows of the page table with room for so many positions each, and the table: for steps run straight on the
        executor. What they write is forgotten at the end. Where windows slide, positions further apart than a window
        and a step share a page, the later in place of the earlier. What streams carry on from step to step has two
        pages of each: see `carried_on`. Raises CapacityError if there is no room.
        """
        table, slots = self._engine.scheduler.table, list[int]()
        try:
            for length in lengths:
                slots.append(table.open((), reuse=False)[0])
                if table.stride is not None and table.grow(slots[-1], 1):
                    table.fill(slots[-1], [0])  # so that it holds a snapshot to read beside the one to write
                if not table.grow(slots[-1], table.in_hand(length, self.executor.max_rows), ahead=length):
                    raise CapacityError(f"no room for {len(lengths)} streams of up to {max(lengths)} positions")
            pages = table.matrix.copy()
            for slot, length in zip(slots, lengths, strict=True):
                for spec, row in zip(self.executor.program.state, pages[:, slot], strict=True):
                    row = row[: 2 if isinstance(spec, Recurrent) else -(-length // table.page_size)]
                    row[:] = np.resize(row[row >= 0], len(row))
            yield slots, pages
        finally:
            for slot in slots:
                table.close(slot)

    def build(self) -> dict[str, Any]:
        """What produced the figures, for the record."""
        return {"level": self.executor.level, "threads": self.executor.team.size, "page_size": self.executor.page_size}


def carried_on(program: Program, pages: NDArray[np.int32], turn: int) -> NDArray[np.int32]:
    """The page table for step `turn` of streams, which reads what the step before it wrote; the first reads nothing."""
    pages = pages.copy()
    for spec, group in zip(program.state, pages, strict=True):
        if isinstance(spec, Recurrent):
            group[:, :2] = group[:, [1, 0] if turn % 2 else [0, 1]]
            group[:, 0] = group[:, 0] if turn else -1
    return pages


class PhaselineStreams:
    """The same engine as a system of streams. When no stream has anything to hand out, one runs the engine's next step.

    A step keeps the event loop, and so the clock, waiting: what becomes due meanwhile is sent when it ends, which is
    also when the engine could first have taken it.
    """

    name = "phaseline"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arrived: dict[str, deque[Delta]] = {}
        self._ids = count()

    async def generate(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        request = self._request(ask)
        self._arrived[request.id] = arrived = deque[Delta]()
        ended = False
        try:
            self._engine.submit(request)
            while not ended:
                while not arrived:
                    if not any(self._arrived.values()):  # everybody has taken what the last step brought
                        self._step()
                    await asyncio.sleep(0)
                delta = arrived.popleft()
                ended = delta.finish_reason is not None
                yield _pieces(delta, request)
        except PhaselineError as error:
            raise StreamFault(str(error)) from error
        finally:
            del self._arrived[request.id]
            if not ended:
                self._engine.abort(request.id)

    def stepwise(self) -> PhaselineSystem:
        """The same engine, driven step by step."""
        return PhaselineSystem(self._engine)

    async def describe(self) -> Mapping[str, Any]:
        scheduler = self._engine.scheduler
        facts = {"context": scheduler.context, "chunk": scheduler.chunk, "max_running": scheduler.max_running}
        if isinstance(self._engine.executor, NativeExecutor):
            facts |= self.stepwise().build()
        return facts

    async def close(self) -> None:
        self._engine.close()

    def _step(self) -> None:
        for delta in self._engine.step():
            if delta.request_id in self._arrived:
                self._arrived[delta.request_id].append(delta)

    def _request(self, ask: Ask) -> Request:
        prompt = ask.prompt
        if isinstance(prompt, str):
            if self._engine.tokenizer is None:
                raise StreamFault("this engine has no tokenizer: ask with token ids")
            prompt = self._engine.tokenizer.encode(prompt)
        least = 0 if ask.min_tokens is None else ask.min_tokens
        options = {"seed": 0} | dict(ask.options)
        params = SamplingParams(max_tokens=ask.max_tokens, min_tokens=least, ignore_eos=ask.ignore_eos, **options)
        return Request(f"ask-{next(self._ids)}", list(prompt), params)


def _pieces(delta: Delta, request: Request) -> list[Piece]:
    pieces = [Piece("text", len(delta.token_ids), delta.text)] if delta.token_ids else []
    if delta.finish_reason is not None:
        facts = {
            "prompt_tokens": len(request.prompt),
            "cached_tokens": delta.cached_tokens,
            "finish_reason": delta.finish_reason.value,
        }
        pieces.append(Piece(META, facts=facts))
    return pieces
