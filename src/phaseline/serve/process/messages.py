"""What crosses between the server's process and the engine's: frames of four bytes that give a length, then msgpack.

Down go `Load` (once), `Submit`, `Abort`, `Close`; up come `Loading`, `Ready`, `StepReport` and, last of all, `Fatal`.
"""

from typing import Any

import msgspec

from phaseline._native import PlainEvents
from phaseline.engine.types import Delta, Progress, Request
from phaseline.errors import CapacityError, FileFormatError, PhaselineError, RequestError, UnsupportedError
from phaseline.serve.errors import ProtocolError

MAX_FRAME = 64 << 20  # bytes: a prompt of ten million tokens, or the log-probabilities of some thousands


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One frame."""


class Load(_Message, frozen=True):
    """The first command: what `load` is called with."""

    model: str
    options: dict[str, Any]
    ceilings: bool = False  # measure what the machine allows, too
    check_pages: bool = False  # look for lost pages after every step


class Submit(_Message, frozen=True):
    """A request, in a wrapper that can be read where the request can't."""

    request_id: str
    request: msgspec.Raw  # of a Request


class Abort(_Message, frozen=True):
    """Cancel a request; its last delta says so."""

    request_id: str


class Close(_Message, frozen=True):
    """End the process."""


class Loading(_Message, frozen=True):
    """Bytes of weights that are ready, of how many."""

    done: int
    total: int


class PhaseCeilings(msgspec.Struct, frozen=True):
    """What this machine allows, in tokens a second: the program's costs over the measured ceilings."""

    prefill: float  # of a whole chunk, at the start of a prompt
    decode: list[tuple[int, float]]  # (streams, tokens of all of them), where there is next to nothing to attend to


class EngineFacts(msgspec.Struct, frozen=True):
    """What a loaded engine is."""

    vocab: int
    context: int  # positions of the longest sequence
    chunk: int  # most prompt tokens in a step
    max_running: int
    pages: list[int]  # of each state group
    page_size: int  # positions
    threads: int
    level: str  # instruction set
    kv_type: str
    policy: str
    itl_budget_ms: float | None = None
    ceilings: PhaseCeilings | None = None  # where they were asked for


class Ready(_Message, frozen=True):
    """Loaded: requests are taken from now on."""

    facts: EngineFacts


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """A request that ends with an error: refused as it came, or ended by what happened in a step."""

    request_id: str
    kind: str  # name of the error's class
    message: str

    def error(self) -> PhaselineError:
        """The error as the engine raised it; what is not a refusal of the request is a PhaselineError."""
        return _error(self.kind, self.message)


class StepReport(_Message, frozen=True):
    """What one step did; without rows, what is so every second while nothing runs, or where requests were refused."""

    t_ns: int  # time.monotonic_ns() when it ended, the same clock in both processes
    seconds: float
    prefill: list[tuple[str, int, int]]  # (request, first position, count) of each chunk
    decode: list[tuple[str, int]]  # (request, which of its n completions)
    deltas: list[Delta]
    progress: list[Progress]
    failed: list[Failed]
    running: int  # sequences
    waiting: int
    free_pages: list[int]  # of `pages`, cached ones included
    pages: list[int]  # of each state group
    queued_prefill_tokens: int
    cached_tokens: int  # so far
    preemptions: int  # so far

    @property
    def began_ns(self) -> int:
        """When the step began, of the same clock."""
        return self.t_ns - round(self.seconds * 1e9)


class Fatal(_Message, frozen=True):
    """Why the process is about to end."""

    kind: str  # name of the error's class
    message: str

    def error(self) -> PhaselineError:
        """The error that ended it; what is not a refusal of the model or a setting is a PhaselineError."""
        return _error(self.kind, self.message)


Command = Load | Submit | Abort | Close
Report = Loading | Ready | StepReport | Fatal

_KINDS = {kind.__name__: kind for kind in (FileFormatError, UnsupportedError, RequestError, CapacityError)}
_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
_requests = msgspec.msgpack.Decoder(Request)
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


# Of a frame that brings text alone: every text as an event, after the taker and the `write` of its stream's way.
plain_events = PlainEvents(StepReport.__name__, StepReport.__struct_fields__, Delta.__struct_fields__).of


def frame(message: Command | Report) -> bytes:
    """A message as it crosses. CapacityError if it is larger than a frame may be."""
    payload = _encoder.encode(message)
    if len(payload) > MAX_FRAME:
        raise CapacityError(f"{type(message).__name__} of {len(payload)} bytes: a frame has at most {MAX_FRAME}")
    return len(payload).to_bytes(4, "little") + payload


def submit(request: Request) -> Submit:
    """The command for a request. RequestError if it holds what no message can."""
    try:
        return Submit(request.id, msgspec.Raw(_encoder.encode(request)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RequestError(f"the request can't be sent: {error}") from None


def request_of(command: Submit) -> Request:
    """The request in a command. RequestError if it is malformed."""
    try:
        return _requests.decode(command.request)
    except _MALFORMED as error:
        raise RequestError(f"malformed request: {error}") from None


def read_command(payload: bytes) -> Command:
    """ProtocolError if it is none."""
    try:
        return _commands.decode(payload)
    except _MALFORMED as error:
        raise _malformed(payload, error) from None


def read_report(payload: bytes) -> Report:
    """ProtocolError if it is none."""
    try:
        return _reports.decode(payload)
    except _MALFORMED as error:
        raise _malformed(payload, error) from None


def _error(kind: str, message: str) -> PhaselineError:
    return _KINDS.get(kind, PhaselineError)(message)


def _malformed(payload: bytes, error: Exception) -> ProtocolError:
    return ProtocolError(f"a frame of {len(payload)} bytes is malformed: {error}")


class FrameReader:
    """Cuts a stream of bytes into frames' payloads, as far as it has come. It holds at most one frame and one piece."""

    def __init__(self) -> None:
        self.begun = bytearray()  # of the frame that has not wholly come

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """The payloads that `data` completes. ProtocolError at a length that no frame has."""
        begun = self.begun
        if begun:
            begun += data
        came = begun or data
        payloads, start, size = [], 0, len(came)
        while size - start >= 4:
            length = int.from_bytes(came[start : start + 4], "little")
            if length > MAX_FRAME:
                raise ProtocolError(f"a frame of {length} bytes is announced; there are at most {MAX_FRAME}")
            if size - start < 4 + length:
                break
            payloads.append(bytes(came[start + 4 : start + 4 + length]))
            start += 4 + length
        if begun:
            del begun[:start]
        elif start < size:
            begun += data[start:]
        return payloads
