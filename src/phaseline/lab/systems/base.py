"""What the lab asks of a system under test. Systems carry no clocks: `lab.drive` stamps what they do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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
