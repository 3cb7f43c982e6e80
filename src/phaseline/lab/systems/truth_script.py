"""What a truth server is told to do: when tokens come out, how that is put on the wire, and what goes wrong."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Self

from phaseline.errors import FileFormatError, RequestError
from phaseline.lab.systems.truth_engine import Costs

COUNTS = ("none", "token_ids", "logprobs", "usage")
USAGES = ("empty", "null", "missing", "last", "none", "refused")
FAULTS = ("refuse", "error", "die", "hang", "garbage", "huge")
CHANNELS = ("text", "reasoning", "tool")


@dataclass(frozen=True, slots=True)
class Burst:
    """Tokens that come out together, `at` seconds after the request was received."""

    at: float
    tokens: int = 1
    channel: str = "text"


@dataclass(frozen=True, slots=True)
class Wire:
    """How a server speaks. Bursts of the same time go out in one packet, all else in packets of its own."""

    headers_at: float = 0.0  # seconds after the request was received
    role: bool = True  # a first chunk with a role and no text, right after the headers of a chat
    counts: str = "none"  # how a chunk tells its number of tokens; "usage": a running count in each
    usage: str = "empty"  # choices of the usage chunk; or "last": in the last chunk; "refused": asking for it is a 400
    cached_tokens: int | None = None
    timings: bool = False  # llama.cpp's, with the finish reason
    finish_reason: str | None = "length"
    done: bool = True  # [DONE]
    token_text: str = "tok "
    newline: str = "\n"
    space: bool = True  # behind "data:"
    pretty: bool = False  # JSON over several lines of data
    comments: bool = False  # one before each event
    names: bool = False  # "event: message" in each event
    final_blank: bool = True  # behind the last event
    cut: int | None = None  # bytes per packet, which splits events, and characters
    pause: float = 0.001  # seconds between such packets
    content_type: str = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, after so many bursts; "refuse" comes instead of the answer, with `status`."""

    kind: str
    after: int = 0
    status: int = 503


@dataclass(frozen=True, slots=True)
class Script:
    """Either `bursts`, the same for each request, or an `engine` that all requests share and that heeds what they ask.

    `model` None: the server has two models, so that a client must choose. Raises RequestError if it makes no sense.
    """

    bursts: tuple[Burst, ...] = ()
    engine: Costs | None = None
    wire: Wire = field(default_factory=Wire)
    fault: Fault | None = None
    model: str | None = "truth"

    def __post_init__(self) -> None:
        if bool(self.bursts) == bool(self.engine):
            raise RequestError("a script has either bursts or an engine")
        if any(b.tokens < 1 or b.at < 0 or b.channel not in CHANNELS for b in self.bursts):
            raise RequestError(f"a burst has at least 1 token, a time of at least 0, and a channel of {CHANNELS}")
        if any(later.at < earlier.at for earlier, later in pairwise(self.bursts)):
            raise RequestError("bursts come in order of time")
        for value, known in ((self.wire.counts, COUNTS), (self.wire.usage, USAGES)):
            if value not in known:
                raise RequestError(f"{value!r} is not one of {known}")
        if self.fault and self.fault.kind not in FAULTS:
            raise RequestError(f"a fault is one of {FAULTS}, not {self.fault.kind!r}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`; what is left out takes its default. Raises FileFormatError for anything else."""
        try:
            data = json.loads(text)
            parts: Mapping[str, Any] = {
                "bursts": tuple(Burst(**burst) for burst in data.pop("bursts", ())),
                "engine": Costs(**engine) if (engine := data.pop("engine", None)) else None,
                "wire": Wire(**data.pop("wire", {})),
                "fault": Fault(**fault) if (fault := data.pop("fault", None)) else None,
            }
            return cls(**parts, **data)
        except (ValueError, TypeError, AttributeError, RequestError) as error:
            raise FileFormatError(f"not a script: {error}") from error


def steady(first: float, gap: float, bursts: int, tokens: int = 1, channel: str = "text") -> tuple[Burst, ...]:
    """Bursts of the same size: the first after `first` seconds, then one each `gap` seconds."""
    return tuple(Burst(first + gap * n, tokens, channel) for n in range(bursts))


def count_tokens(prompt: str | Sequence[int]) -> int:
    """Tokens of a prompt as a truth system counts them: its ids, or its words."""
    return len(prompt.split() if isinstance(prompt, str) else prompt)
