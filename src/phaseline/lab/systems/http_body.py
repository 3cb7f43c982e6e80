"""The framing of an HTTP/1.1 body (RFC 9112, section 6), taken off as bytes arrive: pure state machines."""

import re
from collections.abc import Mapping
from typing import Protocol

from phaseline.lab.systems.base import StreamFault

_LINE_LIMIT = 4096  # bytes of a chunk's size line, or of a trailer field
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Body(Protocol):
    """`done`: all of it has come. `spare`: bytes came after its end, which are no part of it."""

    done: bool
    spare: bool

    def feed(self, data: bytes) -> bytes:
        """The part of the content in these bytes. Raises StreamFault for a broken frame."""

    def finish(self) -> None:
        """The connection ended. Raises StreamFault if that cuts the body short."""


def body_of(status: int, headers: Mapping[str, str]) -> Body:
    """How the body of an answer is framed. `headers` has lower-case names. Raises StreamFault if it can't be told."""
    coding, length = headers.get("transfer-encoding", "").lower(), headers.get("content-length")
    if coding == "chunked":
        return ChunkedBody()
    if coding or (length is not None and not length.isdecimal()):
        raise StreamFault(f"unreadable HTTP body: transfer-encoding {coding!r}, content-length {length!r}")
    if status in (204, 304):
        return CountedBody(0)
    return OpenBody() if length is None else CountedBody(int(length))


class CountedBody:
    """As many bytes as its header announced."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done, self.spare = not length, False

    def feed(self, data: bytes) -> bytes:
        self.spare = len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        self.done = not self._left
        return data

    def finish(self) -> None:
        raise StreamFault(f"the connection broke off {self._left} bytes before the end of the answer")


class OpenBody:
    """Everything up to the end of the connection."""

    done = spare = False

    def feed(self, data: bytes) -> bytes:
        return data

    def finish(self) -> None:
        self.done = True


class ChunkedBody:
    """Chunks, each behind its size, up to an empty one."""

    def __init__(self) -> None:
        self.done = self.spare = False
        self._held = b""
        self._left = 0  # bytes of the current chunk that have not come
        self._line = "size"  # what the next line is: a size, the end of a chunk, or a trailer field

    def feed(self, data: bytes) -> bytes:
        self._held += data
        content = bytearray()
        while not self.done:
            part = self._held[: self._left]
            content += part
            self._left -= len(part)
            line, end, rest = self._held[len(part) :].partition(b"\r\n")
            if self._left or not end:
                self._held = line
                break
            self._held = rest
            self._take(line)
        if len(self._held) > _LINE_LIMIT and not self.done:
            raise StreamFault(f"broken HTTP chunk: {self._held[:80]!r}")
        self.spare = self.done and bool(self._held)
        return bytes(content)

    def _take(self, line: bytes) -> None:
        if self._line == "size":
            size = line.partition(b";")[0].strip()
            if not _SIZE.fullmatch(size):
                raise StreamFault(f"broken HTTP chunk: {line[:80]!r} is not a size")
            self._left = int(size, 16)
            self._line = "end" if self._left else "trailer"
        elif self._line == "trailer":
            self.done = not line
        elif line:
            raise StreamFault(f"broken HTTP chunk: {line[:80]!r} follows where it should end")
        else:
            self._line = "size"

    def finish(self) -> None:
        raise StreamFault("the connection broke off in the middle of the answer")
