"""The engine: requests in, deltas out, by a call that waits or by a stream."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

from phaseline.engine.loop import EngineLoop
from phaseline.engine.prompts import Cover, Prompt, is_one, token_ids
from phaseline.engine.types import Delta, FinishReason, Progress, Request, SamplingParams, TokenLogprob
from phaseline.engine.validate import check_room, validate_params
from phaseline.errors import RequestError
from phaseline.files.chat import render_chat


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


class Engine(EngineLoop):
    """The loop and its drivers: `generate` and `stream`, which threads and asyncio tasks may call at once."""

    _driver: asyncio.Task[None] | None = None

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
        queue: asyncio.Queue[Delta | Progress | BaseException] = asyncio.Queue()
        request = self._request(prompt, SamplingParams() if params is None else params)
        left = False

        def sink(item: Delta | Progress | BaseException) -> None:
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
                assert isinstance(item, Delta)
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
        inbox: deque[tuple[float, Delta | Progress | BaseException]] = deque()
        start = time.perf_counter()

        def sink(item: Delta | Progress | BaseException) -> None:
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
                    assert isinstance(item, Delta)
                    results[item.request_id][item.index].add(item, seconds)
                    open_ends -= item.finish_reason is not None
                    on_delta(item)
        finally:
            for request in requests:
                self.abort(request.id)  # does nothing to those that are done
        return [r[0] if params.n == 1 else r for r in results.values()]

    async def _drive(self) -> None:
        while self._busy:
            await asyncio.to_thread(self._pump)

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
