"""Sequence: one of a request's n completions on its way through the engine."""

from dataclasses import dataclass, field

from phaseline.engine.types import Request


@dataclass(eq=False, slots=True)  # compared by identity
class Sequence:
    """What the scheduler remembers of one completion. `tokens` is the prompt and what was generated after it."""

    request: Request
    index: int  # which of the request's n completions
    arrival: int  # earlier is older
    limit: int  # most tokens, prompt included: max_tokens, the context and the page pool allow no more
    tokens: list[int]
    due: int = 0  # once the scheduler's `prompt_tokens` are beyond this, it has waited for too long
    forks: list["Sequence"] = field(default_factory=list)  # completions that wait for this one's prefill
    slot: int | None = None  # row of the page table while running
    computed: int = 0  # leading tokens whose state is stored
    prefill: int = 0  # tokens to compute before the next one is sampled, fixed on admission
    cached: int = 0  # prompt tokens that the prefix cache served on first admission
    preemptions: int = 0
    unread: int = 0  # while it waits: tokens to compute before the next one is sampled, as far as is known
    refused: bool = False  # while it waits: a seat or pages were missing for it, or were taken from it
    blocked_at: int = -1  # obtainable pages when admission last failed: not tried again until there are more

    @property
    def rank(self) -> tuple[int, int]:
        """Whose pages are safe from whom: the last in this order gives way first."""
        return self.request.priority, self.arrival

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def left(self) -> int:
        """Known tokens still to compute before the next one is sampled; 0 unless admitted."""
        return max(0, self.prefill - self.computed)

    @property
    def prefilling(self) -> bool:
        """Admitted, and its next step is a chunk of known tokens."""
        return self.computed < self.prefill

    @property
    def full(self) -> bool:
        """No further token may be generated: finish with `FinishReason.LENGTH`."""
        return len(self.tokens) >= self.limit

    @property
    def scores_prompt(self) -> bool:
        """Logits are wanted for every prompt position: asked for, and not complete before a first token exists."""
        return self.request.params.prompt_logprobs is not None and len(self.tokens) == self.prompt_len

    @property
    def seats(self) -> int:
        """Slots that this sequence will occupy once it has forked."""
        return 1 + len(self.forks)
