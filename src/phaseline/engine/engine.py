"""The engine: requests in, deltas out, one step after the other."""

import asyncio
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, overload

from numpy.typing import NDArray

from phaseline.engine.completion import Completion, Sink
from phaseline.engine.interrupts import Uninterrupted
from phaseline.engine.prompts import Cover, Prompt, is_one, token_ids
from phaseline.engine.sampler import Sampler, prompt_logprobs, sample_batch
from phaseline.engine.scheduler import Plan, Scheduler
from phaseline.engine.sequence import Sequence
from phaseline.engine.types import Delta, FinishReason, Request, SamplingParams, TokenLogprob
from phaseline.engine.validate import check_room, validate, validate_params
from phaseline.errors import PhaselineError, RequestError
from phaseline.execute.base import Executor
from phaseline.files.chat import render_chat
from phaseline.files.tokenizer import Tokenizer


@dataclass(slots=True)
class Generation:
    """A finished completion. `token_times_s` are seconds from submission to each token's arrival."""

    prompt_token_ids: Seq[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: Seq[TokenLogprob | None] | None = None
    cached_tokens: int = 0

    def add(self, delta: Delta, seconds: float) -> None:
        """Append what a delta brought."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.token_times_s += [seconds] * len(delta.token_ids)
        self.logprobs += delta.logprobs
        self.prompt_logprobs = delta.prompt_logprobs if delta.prompt_logprobs is not None else self.prompt_logprobs
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.cached_tokens = delta.cached_tokens


class Engine:
    """Serves requests on one executor, batched continuously.

    `submit`, `step` and `abort` are the whole loop; `generate` and `stream` drive it. Threads and asyncio tasks may
    call them at once: a lock lets one step run at a time, and whoever steps puts everybody's deltas where their
    owners find them. An interrupt stops a step's computation, never its bookkeeping. A step that fails ends every
    live request with the executor's error; the engine goes on.
    """

    def __init__(self, executor: Executor, scheduler: Scheduler, tokenizer: Tokenizer | None = None) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self._eos: frozenset[int] = tokenizer.eos_ids if tokenizer else frozenset()
        self._completions: dict[Sequence, Completion] = {}
        self._unclaimed: list[Delta | BaseException] = []  # what `step` will return, of requests that came by `submit`
        self._aborts: deque[str] = deque()
        self._lock = threading.Lock()
        self._driver: asyncio.Task[None] | None = None
        self._closed = False

    # The loop.

    def submit(self, request: Request) -> None:
        """Queue a request, whose deltas `step` returns.

        Raises RequestError or CapacityError if it cannot be served as asked.
        """
        self._submit(replace(request, prompt=token_ids(request.prompt)), self._keep)

    def step(self) -> list[Delta]:
        """Run one step; return what was added to submitted requests, by this step or by steps of other threads.

        Raises the executor's error if that has ended them.
        """
        self._pump()
        with self._lock:
            items, self._unclaimed = self._unclaimed, []
            failed = next((item for item in items if isinstance(item, BaseException)), None)
            if failed:  # what else has come is returned by the next call
                self._unclaimed = [item for item in items if item is not failed]
                raise failed
        return [item for item in items if isinstance(item, Delta)]

    def abort(self, request_id: str) -> None:
        """Cancel a request, queued or running; its pages are back at once, or when the step that runs now has ended.

        Unknown ids are ignored.
        """
        self._aborts.append(request_id)
        self._settle()

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do or to return."""
        return self._busy or bool(self._unclaimed)

    @property
    def context(self) -> int:
        """Most tokens that a prompt and its answer may have together."""
        return self.scheduler.context

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back threads and memory; live requests end with an error."""
        with self._lock, Uninterrupted():
            if not self._closed:
                self._closed = True
                self._fail(PhaselineError("the engine was closed"))
                self.executor.close()

    # Drivers of the loop.

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str, yet one prompt
        self, prompt: Prompt, params: None = None, *, on_delta: Callable[[Delta], None] = ...
    ) -> Generation: ...
    @overload
    def generate(
        self, prompt: Seq[Prompt], params: None = None, *, on_delta: Callable[[Delta], None] = ...
    ) -> list[Generation]: ...
    @overload
    def generate(
        self,
        prompt: Prompt | Seq[Prompt],
        params: SamplingParams | None = None,
        *,
        on_delta: Callable[[Delta], None] = ...,
    ) -> Any: ...  # n, which types can't see, decides
    def generate(
        self,
        prompt: Prompt | Seq[Prompt],
        params: SamplingParams | None = None,
        *,
        on_delta: Callable[[Delta], None] = lambda delta: None,
    ) -> Any:
        """Complete one prompt (text or token ids, in a sequence or a numpy array) or several at once.

        Returns a Generation for one prompt with n = 1, else a list: of the n completions, or of each prompt's
        result. If interrupted, the requests are cancelled and the exception goes on.

        Raises RequestError or CapacityError if a prompt cannot be served as asked.
        """
        params = SamplingParams() if params is None else params
        if is_one(prompt):
            return self._collect([prompt], params, on_delta)[0]
        return self._collect(list(prompt), params, on_delta)  # type: ignore[arg-type]

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Delta]:
        """Deltas of one request as they come, of all its n completions. Leaving the loop early cancels it."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Delta | BaseException] = asyncio.Queue()
        request = self._request(prompt, SamplingParams() if params is None else params)
        left = False

        def sink(item: Delta | BaseException) -> None:
            try:
                loop.call_soon_threadsafe(queue.put_nowait, item)
            except RuntimeError:  # the loop was closed over an open stream
                self._aborts.append(request.id)

        def enter() -> None:
            self._submit(request, sink)
            if left:  # while this waited for a step to end
                self.abort(request.id)

        remaining = request.params.n
        try:
            await asyncio.to_thread(enter)
            if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
                self._driver = asyncio.create_task(self._drive())
            while remaining:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                remaining -= item.finish_reason is not None
        finally:
            left = True
            if remaining:
                self.abort(request.id)

    def chat_prompt(self, messages: Seq[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation in the file's own template."""
        if self.tokenizer is None:
            raise RequestError("this engine has no tokenizer")
        return self.tokenizer.encode(render_chat(self.tokenizer, messages))

    # Inside.

    def _collect(self, prompts: list[Prompt], params: SamplingParams, on_delta: Callable[[Delta], None]) -> list[Any]:
        requests = [self._request(p, params) for p in prompts]
        inbox: deque[tuple[float, Delta | BaseException]] = deque()
        start = time.perf_counter()

        def sink(item: Delta | BaseException) -> None:
            inbox.append((time.perf_counter() - start, item))

        try:
            for request in requests:
                self._submit(request, sink)
            results = {r.id: [Generation(r.prompt) for _ in range(params.n)] for r in requests}
            open_ends = len(requests) * params.n
            while open_ends:
                self._pump()
                while inbox:
                    seconds, item = inbox.popleft()
                    if isinstance(item, BaseException):
                        raise item
                    results[item.request_id][item.index].add(item, seconds)
                    open_ends -= item.finish_reason is not None
                    on_delta(item)
        finally:
            for request in requests:
                self.abort(request.id)  # does nothing to those that are done
        return [r[0] if params.n == 1 else r for r in results.values()]

    def _submit(self, request: Request, sink: Sink) -> None:
        validate(request, vocab=self.executor.program.vocab, context=self.scheduler.context)
        if request.params.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer; this engine has none (stop_ids work)")
        params, vocab = request.params, self.executor.program.vocab
        seed = secrets.randbits(64) if params.seed is None else params.seed
        ends = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else self._eos)
        with self._lock, Uninterrupted():
            if self._closed:
                raise PhaselineError("the engine is closed")
            for sequence in self.scheduler.add(request):
                sampler = Sampler(
                    params, vocab=vocab, seed=seed, prompt=request.prompt, stop_ids=ends, index=sequence.index
                )
                self._completions[sequence] = Completion(sequence, sampler, self.tokenizer, ends, sink)

    def _keep(self, item: Delta | BaseException) -> None:
        self._unclaimed.append(item)

    def _pump(self) -> None:
        """One step, its deltas handed to their sinks."""
        with self._lock, Uninterrupted() as block:
            try:
                self._step(block)
            except Exception as error:
                if not self._completions:
                    raise
                self._fail(error)
        self._settle()

    def _step(self, block: Uninterrupted) -> None:
        self._apply_aborts()
        began = time.perf_counter()
        plan = self.scheduler.plan()
        if plan is None:
            return
        if plan.copies:
            self.executor.copy_pages(plan.copies)
        with block.let_in():  # a plan that is not committed has changed nothing
            logits = self.executor.forward(plan.step, self.scheduler.table.matrix)
        self._score_prompts(plan, logits)
        tokens = self._sample(plan, logits)
        chosen = {s: (t, logits[r]) for s, t, r in zip(plan.sampled, tokens, plan.rows, strict=True)}
        for sequence in self.scheduler.commit(plan, tokens):
            if sequence in self._completions:  # it is not where another completion of its request has failed
                try:
                    self._advance(sequence, chosen.get(sequence))
                except PhaselineError as error:
                    self._fail(error, sequence.request.id)
        self.scheduler.observe(plan, time.perf_counter() - began)

    @property
    def _busy(self) -> bool:
        return self.scheduler.has_work or bool(self._aborts)

    async def _drive(self) -> None:
        while self._busy:
            await asyncio.to_thread(self._pump)

    def _settle(self) -> None:
        """Apply what was cancelled, unless a step is running: whoever runs it comes here next."""
        while self._aborts and self._lock.acquire(blocking=False):
            try:
                with Uninterrupted():
                    self._apply_aborts()
            finally:
                self._lock.release()

    def _fail(self, error: BaseException, only: str | None = None) -> None:
        """End every live request with `error`, or only the one of that id. The lock is held."""
        ended = [s for s in self._completions if only in (None, s.request.id)]
        sinks = {self._completions.pop(sequence).sink for sequence in ended}
        for request_id in {s.request.id for s in ended}:
            self.scheduler.abort(request_id)
        for sink in sinks:
            sink(error)

    def _sample(self, plan: Plan, logits: NDArray[Any]) -> list[int]:
        """A token for each of `plan.sampled`. Where none can be drawn, that request fails; its token means nothing."""
        samplers = [self._completions[s].sampler for s in plan.sampled]
        positions = [len(s.tokens) for s in plan.sampled]
        try:
            return sample_batch(samplers, logits, positions, plan.rows)
        except PhaselineError:  # some row is unfit, and nothing was counted: one by one, to find it
            tokens = []
            for sequence, sampler, row, position in zip(plan.sampled, samplers, plan.rows, positions, strict=True):
                try:
                    tokens.append(sampler.sample(logits[row], position))
                except PhaselineError as error:
                    self._fail(error, sequence.request.id)
                    tokens.append(0)
            return tokens

    def _request(self, prompt: Prompt, params: SamplingParams) -> Request:
        validate_params(params, vocab=self.executor.program.vocab)
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError("this engine has no tokenizer: give token ids")
            if len(prompt) > self.context:  # perhaps so long that finding its tokens is work for nothing
                fewest = self._cover.fewest(prompt)
                check_room(
                    fewest, params.max_tokens, self.context, f"prompt of at least {fewest} tokens", "the context"
                )
            prompt = self.tokenizer.encode(prompt)
        return Request(secrets.token_hex(8), token_ids(prompt), params)

    @cached_property
    def _cover(self) -> Cover:
        assert self.tokenizer is not None
        return Cover(self.tokenizer)

    def _apply_aborts(self) -> None:
        while self._aborts:
            request_id = self._aborts.popleft()
            if self.scheduler.abort(request_id):
                for sequence in [s for s in self._completions if s.request.id == request_id]:
                    completion = self._completions.pop(sequence)
                    completion.sink(completion.end(FinishReason.ABORT))

    def _advance(self, sequence: Sequence, chosen: tuple[int, NDArray[Any]] | None) -> None:
        completion = self._completions[sequence]
        if chosen is None:  # max_tokens is 0
            delta = completion.end(FinishReason.LENGTH)
        else:
            token, row = chosen
            top = sequence.request.params.logprobs
            delta = completion.advance(token, () if top is None else [completion.sampler.logprob(row, token, top)])
        if delta.finish_reason:
            self.scheduler.finish(sequence)
            del self._completions[sequence]
        completion.sink(delta)

    def _score_prompts(self, plan: Plan, logits: NDArray[Any]) -> None:
        """Log-probabilities of prompt tokens: the row at position p tells of the token at p + 1."""
        first = 0
        for sequence, segment in zip(plan.sequences, plan.step.segments, strict=True):
            rows, first = logits[first : first + segment.wanted], first + segment.wanted
            top = sequence.request.params.prompt_logprobs
            if top is None or not sequence.scores_prompt:
                continue
            targets = sequence.request.prompt[segment.start + 1 : segment.start + 1 + len(rows)]
            scored = prompt_logprobs(rows[: len(targets)], targets, top)
            for completion in (self._completions[s] for s in (sequence, *sequence.forks)):
                # A prompt that was preempted midway is scored again from its start.
                completion.prompt_logprobs[segment.start :] = scored
