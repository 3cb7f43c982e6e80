"""Server-sent events from bytes that arrive in any portions: a pure, incremental parser with bounded memory.

Follows the event stream format of the HTML standard (section 9.2.6), with two differences that suit a measurement: a
line that is no field of the standard is refused, where a browser would skip it, because it betrays a broken server; and
an event that the end of the stream cuts off before its blank line still counts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from phaseline.lab.systems.base import StreamFault

LIMIT = 1 << 20  # bytes that one event, or one line, may take
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its lines of data joined by newlines, and its name ("message" unless the server gives one)."""

    data: str
    name: str = "message"


class EventParser:
    """Feed it bytes as they come: however they were split, the same events come out, each as soon as it is complete.

    Raises StreamFault, after the events before it, for a line or an event above `limit` bytes or an unknown field.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._line = bytearray()  # the beginning of a line whose end has not come
        self._data: list[str] = []
        self._size = 0  # bytes of the event so far
        self._name = ""
        self._first = True
        self._after_return = False  # the last byte was a CR, which ended a line: a LF right after it belongs to it

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """The events that these bytes complete. Exhaust it before the next call."""
        if self._after_return and data:
            data = data.removeprefix(b"\n")
            self._after_return = False
        self._after_return |= data.endswith(b"\r")
        *lines, rest = _LINE_END.split(data)
        for line in lines:
            self._extend(line)
            yield from self._end_line()
        self._extend(rest)

    def finish(self) -> Iterator[ServerEvent]:
        """The event that the end of the stream completes, if any."""
        if self._line:
            yield from self._end_line()
        yield from self._end_line()

    def _extend(self, part: bytes) -> None:
        self._line += part
        self._size += len(part)
        if self._size > self._limit:
            raise StreamFault(f"an event of more than {self._limit} bytes, which begins {bytes(self._line[:80])!r}")

    def _end_line(self) -> Iterator[ServerEvent]:
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            line, self._first = line.removeprefix(_BYTE_ORDER_MARK), False
        if not line:
            if self._data:
                yield ServerEvent("\n".join(self._data), self._name or "message")
            self._data, self._name, self._size = [], "", 0
            return
        field, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode(errors="replace")  # as the standard has it
        if field == b"data":
            self._data.append(text)
        elif field == b"event":
            self._name = text
        elif not field:  # a comment, often sent to keep the connection alive: it may go on for ever
            self._size -= len(line)
        elif field not in (b"id", b"retry"):
            raise StreamFault(f"not a server-sent event: {line[:200].decode(errors='replace')!r}")
