"""What surrounds the choices of one answer: its name, its usage and timings, its chunks as server-sent events."""

import secrets
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from phaseline.engine.types import Progress
from phaseline.serve.door.objects import PromptProgress, PromptTokensDetails, Timings, Usage
from phaseline.serve.process.stream import Stream

DONE = b"data: [DONE]\n\n"
_ENCODER = msgspec.json.Encoder()


class Envelope:
    """Names one answer and spells its chunks; what they share is encoded once."""

    def __init__(self, kind: str, model: str, prefix: str) -> None:
        """`kind`: the `object` of a chunk. `prefix`: how ids of this endpoint begin."""
        self.id, self.created, self.model = f"{prefix}-{secrets.token_hex(12)}", int(time.time()), model
        shared = {"id": self.id, "object": kind, "created": self.created, "model": model}
        self._head = b"data: " + _ENCODER.encode(shared)[:-1] + b',"choices":['

    def chunk(self, choice: Struct | None, told: bytes) -> bytes:
        """One event, of one choice or none; `told` is what `beside` spelt."""
        return b"".join((self._head, _ENCODER.encode(choice) if choice else b"", b"]", told, b"}\n\n"))


def beside(**values: Struct | Sequence[int] | None) -> bytes:
    """What a chunk says beside its choices."""
    return b"".join(b',"%s":%s' % (name.encode(), _ENCODER.encode(value)) for name, value in values.items())


class Tally:
    """Counts and times of one answer, over all its prompts and choices, as far as it has come."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = streams
        self._prompt = sum(len(stream.request.prompt) for stream in streams)

    def usage(self) -> Usage:
        """As OpenAI states it: each prompt counts once, whatever n."""
        generated = self._generated
        return Usage(self._prompt, generated, self._prompt + generated, PromptTokensDetails(self._cached))

    @property
    def _generated(self) -> int:
        return sum(stream.tokens for stream in self._streams)

    @property
    def _cached(self) -> int:
        return sum(stream.cached or 0 for stream in self._streams)

    def timings(self) -> Timings:
        """From the first step that read a prompt to the first token, and from there to the last."""
        cached, generated = self._cached, self._generated
        read = self._prompt - cached
        now = time.monotonic_ns()  # where no token was asked for
        first = min(stream.first_ns or now for stream in self._streams)
        last = max(stream.last_ns or first for stream in self._streams)
        reading = (first - min(stream.began_ns or stream.accepted_ns for stream in self._streams)) / 1e6
        generating = (last - first) / 1e6
        return Timings(
            cached,
            read,
            reading,
            _ratio(reading, read),
            _ratio(read * 1e3, reading),
            generated,
            generating,
            _ratio(generating, generated),
            _ratio(generated * 1e3, generating),
        )


def progress_of(progress: Progress) -> PromptProgress:
    """As llama.cpp has it."""
    return PromptProgress(progress.total, progress.cached, progress.done, progress.seconds * 1e3)


def event(body: bytes) -> bytes:
    """Any JSON as an event."""
    return b"data: " + body + b"\n\n"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
