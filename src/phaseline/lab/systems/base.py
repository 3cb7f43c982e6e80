"""What the lab asks of a system under test. Systems carry no clocks: `lab.drive` stamps what they do."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from phaseline.errors import PhaselineError


@dataclass(frozen=True, slots=True)
class Arrival:
    """Tokens of one stream that have just come out."""

    stream: int
    tokens: int
    last: bool  # nothing follows on this stream


class System(Protocol):
    """An engine that takes token ids and hands out tokens as they come."""

    def start(self, stream: int, prompt: Sequence[int], max_tokens: int) -> None:
        """Begin to serve a prompt; exactly `max_tokens` tokens will follow."""

    def poll(self) -> list[Arrival]:
        """Let the system work until something comes out, or until one step is done."""

    def cancel(self, stream: int) -> None:
        """Give a stream up."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one stream asks of a system: a prompt, as text or as token ids, and how much to generate."""

    prompt: str | Sequence[int]
    max_tokens: int
    min_tokens: int | None = None  # equal to max_tokens where the length must not vary; None: the system's own end
    ignore_eos: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # passed on as they are: temperature, seed ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that arrived on a stream. Systems carry no clocks: whoever reads pieces stamps them.

    channel: "text", "reasoning", "tool" or trace.META. tokens: how many tokens it carries, None where the system does
    not tell. facts: what the server itself reported with it, in Trace's names (prompt_tokens, cached_tokens,
    output_tokens, finish_reason) and `timings` as llama.cpp spells them.
    """

    channel: str
    tokens: int | None = None
    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


class StreamFault(PhaselineError):
    """A stream failed after it was asked for: refused, broken off, an error inside it, garbage, or a timeout."""


class StreamSystem(Protocol):
    """A system under test, in this process or behind a door."""

    name: str

    def generate(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        """Serve one stream: yields together what arrived together, as it arrives. Raises StreamFault if it fails.

        Closing the iterator cancels the stream.
        """

    async def describe(self) -> Mapping[str, Any]:
        """What the system says of itself: model, version, limits; for the record."""

    async def close(self) -> None:
        """Give back connections, threads and memory."""
