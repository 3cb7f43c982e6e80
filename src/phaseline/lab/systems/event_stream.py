"""One answer, from bytes to pieces: what every server that speaks server-sent events has in common."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from phaseline.lab.systems.base import Piece, StreamFault
from phaseline.lab.systems.http_door import Answer
from phaseline.lab.systems.sse import EventParser, ServerEvent
from phaseline.lab.trace import META

_TAIL_S = 0.2  # how long the end of an answer may take after its last event, if its connection is to be reused


class EventReader(Protocol):
    """What the events of one answer mean. `finished`: the generation has ended; `closed`: nothing follows."""

    finished: bool
    closed: bool

    def read(self, event: ServerEvent) -> Sequence[Piece]:
        """The pieces in an event. Raises StreamFault for an error, or for what makes no sense."""


async def read_pieces(answer: Answer, reader: EventReader) -> AsyncGenerator[Sequence[Piece], None]:
    """Everything an answer brings, as it arrives; bytes without content (headers, keep-alives) are a META piece.

    Raises StreamFault for an error, before the stream or in it, for garbage, and for a stream that ends too early.
    """
    if answer.status != 200:
        await answer.text()  # raises, with what the server says
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "text/event-stream":
        said = (await answer.read(1 << 16))[:200].decode(errors="replace")
        raise StreamFault(f"the server answered with {kind or 'no content type'}, not text/event-stream: {said!r}")
    yield [Piece(META)]

    parser = EventParser()
    async for packet in answer.packets():
        pieces: list[Piece] = []
        fault = None
        try:
            for event in parser.feed(packet):
                pieces += reader.read(event)
        except StreamFault as error:  # what came before it in the same packet did come
            fault = error
        yield pieces or [Piece(META)]
        if fault:
            raise fault
        if reader.closed:
            break
    else:
        for event in parser.finish():
            yield reader.read(event) or [Piece(META)]
    if not reader.finished:
        raise StreamFault("the stream ended without finish: neither a finish reason nor an end mark came")
    with suppress(TimeoutError, StreamFault):  # the answer is complete; this only frees its connection
        async with asyncio.timeout(_TAIL_S):
            await answer.read()


def parse(event: ServerEvent) -> Mapping[str, Any]:
    """The JSON object in an event. Raises StreamFault for anything else, and for an error the server reports in it."""
    try:
        chunk = json.loads(event.data)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise nonsense(event.data)
    error = chunk.get("error") or (chunk if event.name == "error" or chunk.get("object") == "error" else None)
    if error:
        told = error.get("message", error) if isinstance(error, dict) else error
        raise StreamFault(f"the server reports an error in the stream: {told}")
    return chunk


def nonsense(found: object) -> StreamFault:
    return StreamFault(f"the stream brought what makes no sense: {str(found)[:200]!r}")


def count(value: object) -> int | None:
    """A number of tokens that a server reports, None where it does not. Raises StreamFault for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise nonsense(f"a number of tokens of {value!r}")
    return value
