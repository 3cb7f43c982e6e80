"""Engines over a tiny model for tests of the engine's own doors, and the executors that make trouble on purpose."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.engine.engine import Engine
from phaseline.engine.scheduler import Scheduler
from phaseline.engine.types import Delta, Request, SamplingParams
from phaseline.execute.base import Executor
from phaseline.execute.native import NativeExecutor
from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from phaseline.files.tokenizer import Tokenizer
from phaseline.program.step import Step
from phaseline.state.pages import PageTable

PAGE = NativeExecutor.page_size


class Meddler:
    """A real executor, with something done before each step, and to its logits."""

    def __init__(self, executor: Executor) -> None:
        self.program, self.page_size = executor.program, executor.page_size
        self.before: Callable[[Step], object] = lambda step: None
        self.after: Callable[[NDArray[Any]], NDArray[Any]] = lambda logits: logits
        self.begun = self.ended = 0
        self._executor = executor

    def forward(self, step: Step, pages: NDArray[np.int32]) -> NDArray[Any]:
        self.begun += 1
        self.before(step)
        logits = self._executor.forward(step, pages)
        self.ended += 1
        return self.after(logits)

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        self._executor.copy_pages(copies)

    def close(self) -> None:
        self._executor.close()


def make_engine(
    path: Path,
    *,
    pages: int = 64,
    chunk: int = 16,
    max_running: int = 4,
    tokenizer: bool = True,
    table: type[PageTable] = PageTable,
    **options: Any,
) -> Engine:
    """An engine on one thread over a native executor; `pages` sizes the pool, which `load` sizes by the context."""
    with open_gguf(path) as file:
        program = model_program(file)[1]
        executor = NativeExecutor(file, program, pages, max_rows=chunk + max_running, **options)
        words = Tokenizer.from_metadata(file.metadata) if tokenizer else None
    rows = table(pages, PAGE, max_running, -(-program.context // PAGE), program.state)
    return Engine(
        Meddler(executor), Scheduler(rows, context=program.context, chunk=chunk, max_running=max_running), words
    )


def meddler(engine: Engine) -> Meddler:
    """The executor of an engine made here."""
    assert isinstance(engine.executor, Meddler)
    return engine.executor


def sampled(max_tokens: int = 12, **others: Any) -> SamplingParams:
    """Exactly `max_tokens` tokens, drawn the same way each time."""
    return SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True, "seed": 1, "temperature": 1.0, **others})


async def collect(engine: Engine, prompt: Sequence[int], max_tokens: int = 12, **others: Any) -> list[Delta]:
    """All deltas of one stream."""
    return [delta async for delta in engine.stream(prompt, sampled(max_tokens, **others))]


async def eventually(holds: Callable[[], bool]) -> None:
    """Let other tasks run until something holds."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


def in_threads(*jobs: Callable[[], object]) -> list[BaseException | None]:
    """Run the jobs at once; what each raised."""
    raised: list[BaseException | None] = [None] * len(jobs)

    def run(i: int) -> None:
        try:
            jobs[i]()
        except BaseException as error:
            raised[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return raised


def drain(engine: Engine) -> list[Delta]:
    """All that comes until there is no work left."""
    deltas = []
    while engine.has_work:
        deltas += engine.step()
        engine.scheduler.table.check()
    return deltas


def tokens_of(deltas: Sequence[Delta], request_id: str) -> list[int]:
    """The tokens of a request's only completion."""
    return [token for delta in deltas if delta.request_id == request_id for token in delta.token_ids]


def assert_idle(engine: Engine) -> None:
    """Nothing is left of what was served: no page, no seat, nobody to tell."""
    table = engine.scheduler.table
    assert not engine.has_work
    assert not engine._completions
    table.check()
    table.clear_cache()
    assert table.free_pages == table.pages


@contextmanager
def bystander(engine: Engine) -> Iterator[list[Delta]]:
    """A request that runs while something happens to others, and gets what it gets when nothing does.

    Who steps in between adds what comes to the list.
    """
    prompt, params = list(range(40, 80)), SamplingParams(max_tokens=12, seed=3, temperature=1.0, ignore_eos=True)
    alone = engine.generate(prompt, params).token_ids
    engine.submit(Request("bystander", prompt, params))
    deltas = [*engine.step(), *engine.step(), *engine.step()]
    yield deltas
    assert tokens_of([*deltas, *drain(engine)], "bystander") == alone
    assert_idle(engine)
