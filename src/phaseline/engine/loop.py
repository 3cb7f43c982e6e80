"""The loop: requests in, one step after the other, what each step added out."""

import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import msgspec
from numpy.typing import NDArray

from phaseline.engine.completion import Completion, Sink
from phaseline.engine.interrupts import Uninterrupted
from phaseline.engine.prompts import token_ids
from phaseline.engine.sampler import Sampler, prompt_logprobs, sample_batch
from phaseline.engine.scheduler import Plan, Scheduler
from phaseline.engine.sequence import Sequence
from phaseline.engine.types import Delta, FinishReason, Progress, Request, SamplingParams
from phaseline.engine.validate import validate, validate_params
from phaseline.errors import PhaselineError, RequestError
from phaseline.execute.base import Executor
from phaseline.files.tokenizer import Tokenizer

if TYPE_CHECKING:  # llguidance takes longer to import than much that needs no grammar
    from phaseline.engine.constraint import Constraint, Grammars


class StepRows(msgspec.Struct, frozen=True):
    """Whose rows a step had, and how long it took."""

    prefill: list[tuple[str, int, int]]  # (request, first position, count) of each chunk
    decode: list[tuple[str, int]]  # (request, which of its n completions)
    seconds: float


@dataclass(frozen=True, slots=True)
class Counts:
    """How busy an engine is. Reading it costs the same however long the queue is."""

    running: int  # sequences
    waiting: int  # requests, and sequences that were preempted
    free_pages: list[int]  # of each state group, cached ones included
    queued_prefill_tokens: int  # left to read of prompts, as far as the prefix cache is not seen to have them
    cached_tokens: int  # prompt tokens that the prefix cache has served since the start
    preemptions: int  # since the start


class EngineLoop:
    """Serves requests on one executor, batched continuously: `submit`, `step` and `abort`.

    Threads may call them at once: a lock lets one step run at a time, and whoever steps puts everybody's deltas where
    their owners find them. An interrupt stops a step's computation, never its bookkeeping. A step that fails ends every
    live request with the executor's error; the engine goes on.
    """

    def __init__(self, executor: Executor, scheduler: Scheduler, tokenizer: Tokenizer | None = None) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self.last_step: StepRows | None = None  # None where the latest call had nothing to run, or failed
        self._eos: frozenset[int] = tokenizer.eos_ids if tokenizer else frozenset()
        self._completions = completions = dict[Sequence, Completion]()
        self._unclaimed: list[Delta | BaseException] = []  # what `step` will return, of requests that came by `submit`
        self._aborts: deque[str] = deque()
        self._lock = threading.Lock()
        # It holds no engine: one that is forgotten is gone, with its weights, though it was not closed.
        self._uninterrupted = Uninterrupted(busy=lambda: any(each.of_main for each in completions.values()))
        self._closed = False

    def submit(self, request: Request, sink: Sink | None = None, constraint: "Constraint | None" = None) -> None:
        """Queue a request, whose deltas go to `sink` as steps make them, or to whoever calls `step`.

        A sink gets the error that ends its request, too, and must not raise. `constraint` is what `constrain` gives for
        the request's params; if it is missing and needed, it is made here. Raises RequestError or CapacityError if the
        request cannot be served as asked.
        """
        if request.progress and sink is None:
            raise RequestError("progress = True: only a request with a sink is told of its progress")
        self._submit(replace(request, prompt=token_ids(request.prompt)), sink or self._keep, constraint)

    def constrain(self, params: SamplingParams) -> "Constraint | None":
        """What keeps a text to `params.grammar`: a millisecond's work as a rule, two seconds' for a hostile grammar.

        Any thread may do it, also while a step runs. Raises RequestError if the grammar can't be followed.
        """
        validate_params(params, vocab=self.executor.program.vocab)
        return self.grammars.constraint(params.grammar, params) if params.grammar else None

    @cached_property
    def grammars(self) -> "Grammars":
        """What compiles grammars; built when first used, in some tenths of a second for a large vocabulary."""
        if self.tokenizer is None:
            raise RequestError("a grammar needs a tokenizer; this engine has none")
        from phaseline.engine.constraint import Grammars

        return Grammars(self.tokenizer)

    def step(self) -> list[Delta]:
        """Run one step; return what was added to submitted requests, by this step or by steps of other threads.

        Raises the executor's error if that has ended them.
        """
        self._pump()
        with self._lock:
            items, self._unclaimed = self._unclaimed, []
            deltas = [item for item in items if isinstance(item, Delta)]
            if len(deltas) < len(items):
                failed = next(item for item in items if isinstance(item, BaseException))
                self._unclaimed = [item for item in items if item is not failed]  # the next call returns what else came
                raise failed
        return deltas

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

    @property
    def counts(self) -> Counts:
        """How busy the engine is now."""
        scheduler = self.scheduler
        return Counts(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            free_pages=scheduler.table.group_free_pages,
            queued_prefill_tokens=scheduler.unread_tokens,
            cached_tokens=scheduler.cached_tokens,
            preemptions=scheduler.preemptions,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back threads and memory; live requests end with an error."""
        with self._lock, self._uninterrupted:
            if not self._closed:
                self._closed = True
                self._fail(PhaselineError("the engine was closed"))
                self.executor.close()

    # Inside.

    def _submit(self, request: Request, sink: Sink, constraint: "Constraint | None" = None) -> None:
        validate(request, vocab=self.executor.program.vocab, context=self.scheduler.context)
        if request.params.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer; this engine has none (stop_ids work)")
        params, vocab = request.params, self.executor.program.vocab
        seed = secrets.randbits(64) if params.seed is None else params.seed
        ends = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else self._eos)
        constraint = constraint or self.constrain(params)
        samplers = [
            Sampler(
                params,
                vocab=vocab,
                seed=seed,
                prompt=request.prompt,
                stop_ids=ends,
                index=index,
                constraint=constraint.fork() if constraint else None,
            )
            for index in range(params.n)
        ]
        of_main = threading.current_thread() is threading.main_thread()
        with self._lock, self._uninterrupted:
            if self._closed:
                raise PhaselineError("the engine is closed")
            for sequence, sampler in zip(self.scheduler.add(request), samplers, strict=True):
                self._completions[sequence] = Completion(sequence, sampler, self.tokenizer, ends, sink, of_main)

    def _keep(self, item: Delta | Progress | BaseException) -> None:
        assert not isinstance(item, Progress)  # who has no sink can't ask for it
        self._unclaimed.append(item)

    def _pump(self) -> None:
        """One step, its deltas handed to their sinks."""
        with self._lock, self._uninterrupted:
            try:
                self._step()
            except Exception as error:
                if not self._completions:
                    raise
                self._fail(error)
        self._settle()

    def _step(self) -> None:
        self._apply_aborts()
        self.last_step = None
        began = time.perf_counter()
        plan = self.scheduler.plan()
        if plan is None:
            return
        prefill, decode = self._begin(plan, began)
        if plan.copies:
            self.executor.copy_pages(plan.copies)
        # A plan that is not committed has changed nothing.
        logits = self._uninterrupted.let_in(self.executor.forward, plan.step, self.scheduler.table.matrix)
        if plan.reading:
            self._score_prompts(plan, logits)
        tokens = self._sample(plan, logits)
        chosen = dict(zip(plan.sampled, zip(tokens, plan.rows, strict=True), strict=True))
        advanced = self.scheduler.commit(plan, tokens)
        if plan.reading:
            self._tell_progress(plan)
        for sequence in advanced:
            if sequence in self._completions:  # it is not where another completion of its request has failed
                try:
                    self._advance(sequence, chosen.get(sequence), logits)
                except PhaselineError as error:
                    self._fail(error, sequence.request.id)
        seconds = time.perf_counter() - began
        self.scheduler.observe(plan, seconds)
        self.last_step = StepRows(prefill, decode, seconds)

    def _begin(self, plan: Plan, now: float) -> tuple[list[tuple[str, int, int]], list[tuple[str, int]]]:
        """Whose rows the planned step has, as in `StepRows`."""
        prefill, decode = [], []
        for sequence, segment in zip(plan.sequences, plan.step.segments, strict=True):
            request = sequence.request
            if not sequence.prefilling:
                decode.append((request.id, sequence.index))
                continue
            prefill.append((request.id, segment.start, len(segment.tokens)))
            if request.progress:
                completion = self._completions[sequence]
                completion.began = completion.began or now
        return prefill, decode

    def _tell_progress(self, plan: Plan) -> None:
        """How far the prompts are that the committed step read from, to those who asked."""
        for sequence, _ in plan.reading:
            completion = self._completions.get(sequence)
            if completion and sequence.request.progress and len(sequence.tokens) <= sequence.prompt_len + 1:
                completion.sink(completion.progress(time.perf_counter()))

    @property
    def _busy(self) -> bool:
        return self.scheduler.has_work or bool(self._aborts)

    def _settle(self) -> None:
        """Apply what was cancelled, unless a step is running: whoever runs it comes here next."""
        while self._aborts and self._lock.acquire(blocking=False):
            try:
                with self._uninterrupted:
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
        samplers, positions = [], []
        for sequence in plan.sampled:
            samplers.append(self._completions[sequence].sampler)
            positions.append(len(sequence.tokens))
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

    def _apply_aborts(self) -> None:
        while self._aborts:
            request_id = self._aborts.popleft()
            for sequence in self.scheduler.abort(request_id):
                completion = self._completions.pop(sequence)
                completion.sink(completion.end(FinishReason.ABORT))

    def _advance(self, sequence: Sequence, chosen: tuple[int, int] | None, logits: NDArray[Any]) -> None:
        """Let a token, `chosen` from a row of `logits`, out to whoever waits for it."""
        completion = self._completions[sequence]
        if chosen is None:  # max_tokens is 0
            delta = completion.end(FinishReason.LENGTH)
        else:
            token, row = chosen
            top = sequence.request.params.logprobs
            scores = () if top is None else [completion.sampler.logprob(logits[row], token, top)]
            delta = completion.advance(token, scores)
        if delta.finish_reason:
            self.scheduler.finish(sequence)
            del self._completions[sequence]
        completion.sink(delta)

    def _score_prompts(self, plan: Plan, logits: NDArray[Any]) -> None:
        """Log-probabilities of prompt tokens: the row at position p tells of the token at p + 1."""
        if not any(sequence.scores_prompt for sequence, _ in plan.reading):
            return
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
