"""The life of each request, as the engine's reports tell it: queued, admitted, first token, further tokens, end.

No clock is read here: a request begins at the moment it was handed over, all else happens at the end of a step.
Moments are nanoseconds of the monotonic clock, spans are seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from phaseline.engine.types import Delta, FinishReason, Request
from phaseline.serve.process.messages import StepReport

FAILED = "error"  # the reason of a request that the engine ended otherwise than by its tokens
_SHOWN = 6  # last characters of a request's id that others may see


@dataclass(slots=True)
class Answer:
    """One of a request's n completions: when its tokens came."""

    first_ns: int
    last_ns: int
    tokens: int
    at_first: int  # tokens that came at once with the first

    @property
    def per_token(self) -> float | None:
        """Seconds between tokens, on average; None where no token came after the first."""
        later = self.tokens - self.at_first
        return (self.last_ns - self.first_ns) / 1e9 / later if later else None


@dataclass(slots=True)
class Life:
    """One request from its arrival on. `number` counts requests; no two have the same."""

    number: int
    id: str
    prompt: int
    arrived_ns: int
    open: int  # completions that have not ended
    admitted_ns: int | None = None  # begin of the first step that read some of the prompt
    first_ns: int | None = None
    ended_ns: int | None = None
    reason: str | None = None
    cached: int = 0
    answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The end of the id, enough to find one's own; without the number of the prompt among those of one body."""
        whole, _, number = self.id.rpartition("-")
        return (whole if whole and number.isdigit() else self.id)[-_SHOWN:]

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.tokens for answer in self.answers.values())


@dataclass(slots=True)
class Seen:
    """What one report told of the requests: who was admitted, got a first token, or ended, and all gaps between
    tokens, in seconds; a gap that brought k tokens is k of gap / k."""

    admitted: list[Life] = field(default_factory=list)
    started: list[Life] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    answered: list[tuple[Life, Answer]] = field(default_factory=list)  # completions that ended by themselves
    ended: list[Life] = field(default_factory=list)


class Lives:
    """Requests that are queued or running."""

    def __init__(self) -> None:
        self._live: dict[str, Life] = {}
        self._count = 0

    def __iter__(self) -> Iterator[Life]:
        return iter(self._live.values())

    def get(self, request_id: str) -> Life | None:
        """The life of a request that has not ended."""
        return self._live.get(request_id)

    def arrived(self, request: Request, t_ns: int) -> Life:
        """A request was handed to the engine's process."""
        self._count += 1
        life = Life(self._count, request.id, len(request.prompt), t_ns, request.params.n)
        self._live[request.id] = life
        return life

    def lost(self, t_ns: int) -> list[Life]:
        """The engine has ended, and all of them with it."""
        lost, self._live = list(self._live.values()), {}
        for life in lost:
            life.ended_ns, life.reason = t_ns, FAILED
        return lost

    def read(self, report: StepReport) -> Seen:
        """Take in one report."""
        seen = Seen()
        for request_id, _, _ in report.prefill:
            life = self._live.get(request_id)
            if life and life.admitted_ns is None:
                life.admitted_ns = report.began_ns
                seen.admitted.append(life)
        for delta in report.deltas:
            if life := self._live.get(delta.request_id):
                self._advance(life, delta, report.t_ns, seen)
        for failed in report.failed:
            if life := self._live.pop(failed.request_id, None):
                life.ended_ns, life.reason = report.t_ns, FAILED
                seen.ended.append(life)
        return seen

    def _advance(self, life: Life, delta: Delta, now: int, seen: Seen) -> None:
        life.cached = delta.cached_tokens
        came = len(delta.token_ids)
        answer = life.answers.get(delta.index)
        if answer and came:
            seen.gaps += [(now - answer.last_ns) / 1e9 / came] * came
            answer.last_ns, answer.tokens = now, answer.tokens + came
        elif came:
            answer = life.answers[delta.index] = Answer(now, now, came, came)
            if life.first_ns is None:
                life.first_ns = now
                seen.started.append(life)
        if delta.finish_reason is None:
            return
        if answer and delta.finish_reason is not FinishReason.ABORT:
            seen.answered.append((life, answer))
        life.open -= 1
        if life.open == 0:
            life.ended_ns, life.reason = now, delta.finish_reason.value
            seen.ended.append(self._live.pop(life.id))
