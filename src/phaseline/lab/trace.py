"""Raw facts of one request, as its client saw them. Everything else is derived from these (`metrics`), at any time."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Self

from phaseline.errors import FileFormatError, PhaselineError

META = "meta"  # the channel of bytes that carried neither text nor a token: headers, roles, usage, keep-alives


@dataclass(frozen=True, slots=True)
class Event:
    """Bytes that arrived together, stamped on arrival with a monotonic clock (nanoseconds).

    `channel` names what they carried ("text", "reasoning", "tool" ...), or is META.
    `tokens` counts the tokens in them; None where the system does not tell, never 0 for unknown.
    """

    t_ns: int
    channel: str
    tokens: int | None = None

    @property
    def bears_tokens(self) -> bool:
        """A token arrived: counted, or text whose count is unknown."""
        return self.channel != META and self.tokens != 0


@dataclass(frozen=True, slots=True)
class Trace:
    """One request: when it was due, sent and over (nanoseconds, one clock), and each arrival between.

    `due_ns` is None in a closed loop, where nothing is due. Counts, `cached_tokens` and `finish_reason` are the
    server's own words, None where it says nothing. `error` makes the request a failed one, whatever arrived before.
    Raises PhaselineError if time runs backwards.
    """

    sent_ns: int
    end_ns: int
    events: tuple[Event, ...] = ()
    due_ns: int | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    timings: Mapping[str, Any] | None = None  # as llama.cpp's server spells them

    def __post_init__(self) -> None:
        times = [self.sent_ns, *(event.t_ns for event in self.events), self.end_ns]
        for earlier, later in pairwise(times):
            if later < earlier:
                raise PhaselineError(f"a trace must be in order of time: {later} ns follows {earlier} ns")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; an event is [t_ns, channel, tokens]."""
        return asdict(self) | {"events": [[event.t_ns, event.channel, event.tokens] for event in self.events]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. Raises FileFormatError for anything else."""
        try:
            trace = cls(**{**data, "events": tuple(Event(*event) for event in data["events"])})
        except (KeyError, TypeError, PhaselineError) as error:
            raise FileFormatError(f"not a trace: {error}") from error
        numbers = [trace.sent_ns, trace.end_ns, trace.due_ns]
        numbers += [trace.prompt_tokens, trace.cached_tokens, trace.output_tokens]
        numbers += [number for event in trace.events for number in (event.t_ns, event.tokens)]
        if not all(number is None or (type(number) is int and number >= 0) for number in numbers):
            raise FileFormatError("not a trace: times (ns) and token counts must be whole numbers, not negative")
        return trace
