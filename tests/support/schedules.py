"""Requests run on a real executor under any schedule, with every promise of the engine checked as they run."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.engine.engine import Engine
from phaseline.engine.scheduler import Scheduler
from phaseline.engine.types import FinishReason, Request, TokenLogprob
from phaseline.execute.base import Executor
from phaseline.program.step import Step
from phaseline.state.pages import PageTable

Key = tuple[str, int]  # request id, index of the completion


@dataclass
class Answer:
    """One completion: its tokens, and for each position whose logits were wanted the bits of that row."""

    tokens: list[int] = field(default_factory=list)
    logits: dict[int, bytes] = field(default_factory=dict)
    scores: list[TokenLogprob | None] = field(default_factory=list)  # of the prompt's tokens, if asked for
    cached: int = 0
    reason: FinishReason | None = None


class Recorder:
    """A real executor that also keeps each row of logits under the completion and the position it belongs to."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self.program, self.page_size = executor.program, executor.page_size
        self.answers: dict[Key, Answer] = defaultdict(Answer)
        self.steps: list[Step] = []
        self._executor, self._scheduler = executor, scheduler

    def forward(self, step: Step, pages: NDArray[np.int32]) -> NDArray[Any]:
        logits = self._executor.forward(step, pages)
        self.steps.append(step)
        owners = {s.slot: s for s in self._scheduler.running}
        rows = iter(logits)
        for segment in step.segments:
            owner = owners[segment.slot]
            kept = self.answers[owner.request.id, owner.index].logits
            end = segment.start + len(segment.tokens)
            for position in range(end - segment.wanted, end):
                bits = next(rows).tobytes()
                # A preempted prompt whose log-probabilities are wanted is scored twice.
                assert bits == kept.setdefault(position, bits) or logits.dtype == np.float64
        return logits

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        self._executor.copy_pages(copies)

    def close(self) -> None:
        """The executor belongs to whoever made it."""


class Bench:
    """An engine of its own scheduler and page table over a borrowed executor, checked after every step.

    Pages hold NaN until they are written, and again once they are free.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        chunk: int,
        pages: int | Sequence[int],
        max_running: int = 8,
        policy: str = "mixed",
        context: int | None = None,
    ) -> None:
        context = context or executor.program.context
        max_pages = -(-context // executor.page_size)
        self.table = PageTable(pages, executor.page_size, max_running, max_pages, executor.program.state)
        self.scheduler = Scheduler(self.table, context=context, chunk=chunk, max_running=max_running, policy=policy)
        self.recorder = Recorder(executor, self.scheduler)
        self.engine = Engine(self.recorder, self.scheduler)
        self.preempted = False
        self._poisoned: list[set[int]] = [set() for _ in executor.program.state]
        self._memory = executor._pool.groups  # type: ignore[attr-defined]
        self._poison()

    def step(self) -> None:
        """One step of the engine; what it brings is added to the answers."""
        for delta in self.engine.step():
            answer = self.recorder.answers[delta.request_id, delta.index]
            answer.tokens += delta.token_ids
            answer.cached, answer.reason = delta.cached_tokens, delta.finish_reason
            answer.scores += delta.prompt_logprobs or ()
        self.table.check()
        self._poison()
        live = [*self.scheduler.running, *self.scheduler.waiting]
        self.preempted = self.preempted or any(sequence.preemptions for sequence in live)

    def run(self, requests: Iterable[Request], *, every: int = 0) -> dict[Key, Answer]:
        """Submit the requests, `every` steps apart (0: all at once), and serve them to their ends."""
        for request in requests:
            self.engine.submit(request)
            for _ in range(every):
                self.step()
        while self.engine.has_work:
            self.step()
        self.check_idle()
        return self.recorder.answers

    def _poison(self) -> None:
        for g, (group, arrays) in enumerate(zip(self.table._groups, self._memory, strict=True)):
            free = set(group.ids._free)
            for page in free - self._poisoned[g]:
                for array in arrays.values():
                    array[page].view(np.uint8).fill(0xFF)  # NaN in every type
            self._poisoned[g] = free

    def check_idle(self) -> None:
        """Nothing is held any more, but for the cache, which can be forgotten."""
        assert not self.engine.has_work
        assert self.table.free_pages == self.table.pages
        self.table.check()


@dataclass
class Alone:
    """What requests bring when each is served by itself, token by token: what any other schedule is held against."""

    executor: Executor
    pages: int
    context: int | None = None
    _known: dict[str, dict[int, Answer]] = field(default_factory=dict)

    def __call__(self, request: Request) -> dict[Key, Answer]:
        name = repr((request.prompt, request.params))
        if name not in self._known:
            bench = Bench(self.executor, chunk=1, pages=self.pages, max_running=request.params.n, context=self.context)
            self._known[name] = {index: answer for (_, index), answer in bench.run([request]).items()}
        return {(request.id, index): answer for index, answer in self._known[name].items()}

    def check(self, requests: Iterable[Request], answers: Mapping[Key, Answer], *, bits: bool) -> None:
        """Each request got the tokens, and with `bits` exactly the logits, that it gets alone."""
        for request in requests:
            for key, alone in self(request).items():
                answer = answers[key]
                assert (answer.tokens, answer.reason) == (alone.tokens, alone.reason)
                assert not bits or (answer.logits, answer.scores) == (alone.logits, alone.scores)
                assert len(answer.scores) == len(alone.scores)
