"""One completion on its way out: its sampler, its text, its reasons to stop."""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from phaseline.engine.sampler import Sampler
from phaseline.engine.sequence import Sequence
from phaseline.engine.types import Delta, FinishReason, Progress, TokenLogprob
from phaseline.files.text_stream import SpeltTokens, TextStream, TokenBytes
from phaseline.files.tokenizer import Tokenizer

Sink = Callable[[Delta | Progress | BaseException], None]


class Completion:
    """Turns the sampled tokens of one sequence into deltas; one in `ends` is the last.

    `tokenizer` may be absent: then there is no text. `sink` takes the deltas to who asked, or the error that ends them.
    `of_main`: it was the main thread that asked.
    """

    def __init__(
        self,
        sequence: Sequence,
        sampler: Sampler,
        tokenizer: Tokenizer | None,
        ends: frozenset[int],
        sink: Sink,
        of_main: bool,
    ) -> None:
        params = sequence.request.params
        self.sequence = sequence
        self.sampler = sampler
        self.sink = sink
        self.of_main = of_main
        self.began: float | None = None  # when the first chunk of its prompt did, by the clock of `progress`
        self.prompt_logprobs: list[TokenLogprob | None] = []
        self._ends = ends
        # Stop strings, like the ids that end a text, count only once min_tokens are there.
        stop = () if params.min_tokens else params.stop
        self._text = TextStream(_spelling(tokenizer, params.spelt_ids), stop) if tokenizer else None
        self._started = False

    def advance(self, token: int, logprobs: Seq[TokenLogprob]) -> Delta:
        """The delta that `token` makes; its finish_reason says whether it was the last."""
        reason = None
        text = ""
        if token in self._ends:  # which the sampler keeps out before min_tokens
            reason = FinishReason.STOP
        elif self._text:
            params = self.sequence.request.params
            if params.stop and len(self.sequence.generated) == params.min_tokens + 1:
                self._text.watch(params.stop)
            text = self._text.push(token)
            if self._text.stopped:
                reason = FinishReason.STOP
        if reason is None and self.sampler.finished:
            reason = FinishReason.STOP
        if reason is None and self.sequence.full:
            reason = FinishReason.LENGTH
        return self._delta([token], text, logprobs, reason)

    def end(self, reason: FinishReason) -> Delta:
        """The delta of a completion that ends without a further token."""
        return self._delta([], "", (), reason)

    def progress(self, now: float) -> Progress:
        """How much of the prompt has been read at `now`, in seconds."""
        sequence, seconds = self.sequence, now - (now if self.began is None else self.began)
        done = min(sequence.computed, sequence.prompt_len)
        return Progress(sequence.request.id, done, sequence.prompt_len, sequence.cached, seconds)

    def _delta(self, tokens: list[int], text: str, logprobs: Seq[TokenLogprob], reason: FinishReason | None) -> Delta:
        if reason and self._text:
            text += self._text.finish()
            if self._text.stopped:  # what was held back turned out to hold a stop string
                reason = FinishReason.STOP
        first, self._started = not self._started, True
        wants_prompt = self.sequence.request.params.prompt_logprobs is not None
        return Delta(
            self.sequence.request.id,
            self.sequence.index,
            tokens,
            text,
            logprobs,
            [None, *self.prompt_logprobs] if first and wants_prompt else None,
            reason,
            self.sequence.cached,
        )


def _spelling(tokenizer: Tokenizer, spelt_ids: Seq[int]) -> TokenBytes:
    return SpeltTokens(tokenizer, spelt_ids) if spelt_ids else tokenizer
