"""A small HTTP/1.1 client for measuring: it hands over the bytes of an answer as the kernel hands them over.

A general client would do, were it not for its cost per packet, which is added to every event it reports and multiplied
by the number of streams. No proxies, redirects or compression either: each would come between the server and the clock.
"""

import asyncio
import json
import os
import re
import select
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from phaseline import __version__
from phaseline.errors import RequestError
from phaseline.lab.systems.base import StreamFault
from phaseline.lab.systems.http_body import Body, body_of

_BASE_URL = re.compile(r"(https?)://((\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9.-]+)(?::(\d{1,5}))?)((?:/[!-.0->@-~]+)*)/*")
_PACKET = 1 << 16
_ANSWER_LIMIT = 64 << 20  # bytes of an answer that is read whole


class Answer:
    """A status, headers (names in lower case), and a body still to come."""

    def __init__(self, reader: asyncio.StreamReader, status: int, reason: str, headers: Mapping[str, str]) -> None:
        self.status, self.reason, self.headers = status, reason, headers
        self._reader = reader
        self._body: Body = body_of(status, headers)

    @property
    def reusable(self) -> bool:
        """The answer is over, and its connection may carry another."""
        closes = "close" in self.headers.get("connection", "").lower() or self._reader.at_eof()
        return self._body.done and not self._body.spare and not closes

    async def packets(self) -> AsyncIterator[bytes]:
        """The body, in the portions in which it arrives. Raises StreamFault if it breaks off."""
        while not self._body.done:
            data = await self._reader.read(_PACKET)
            if not data:
                self._body.finish()
                return
            if content := self._body.feed(data):
                yield content

    async def read(self, limit: int = _ANSWER_LIMIT) -> bytes:
        """The whole body, or so much of it that it exceeds the limit."""
        content = bytearray()
        async for packet in self.packets():
            content += packet
            if len(content) > limit:
                break
        return bytes(content)

    async def text(self) -> str:
        """The whole body. Raises StreamFault, with what the server says, unless this is a success."""
        content = await self.read()
        if self.status != 200:
            raise StreamFault(f"the server answered {self.status} {self.reason}: {_reason_in(content)}")
        return content.decode(errors="replace")

    async def json(self) -> Any:
        """The whole body as JSON. Raises StreamFault unless this is a success and JSON."""
        text = await self.text()
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise StreamFault(f"the server's answer is not JSON: {text[:200]!r}") from None


class Door:
    """One server, by its base URL. Connections are kept and reused, as many as there are streams at once.

    To be used, and closed, within one event loop. `verify` is True for the system's authorities, the path of a file
    with others, or False for none. `connect_s` bounds the opening of a connection. Raises RequestError for a bad URL.
    """

    def __init__(
        self, base_url: str, *, api_key: str | None = None, verify: bool | str = True, connect_s: float | None = 10.0
    ) -> None:
        found = _BASE_URL.fullmatch(base_url)
        if not found or int(found[4] or 0) > 65535:
            raise RequestError(f"not the base URL of a server: {base_url!r}; for example http://127.0.0.1:8000")
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise RequestError("an API key consists of printable ASCII characters")
        scheme, authority, host, port, self.path = found.groups()
        self.url = f"{scheme}://{authority}{self.path}"
        self._host = host.strip("[]")
        self._tls = _tls(verify) if scheme == "https" else None
        self._port = int(port or (443 if self._tls else 80))
        self._connect_s = connect_s
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._headers = {
            "Host": authority,
            "User-Agent": f"phaseline/{__version__}",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
        }
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @asynccontextmanager
    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> AsyncGenerator[Answer, None]:
        """POST a JSON body, or GET without one, and hand over the answer once its headers are there.

        Leaving the block before the end of the answer closes the connection. Raises StreamFault.
        """
        try:
            reader, writer, answer = await self._answered(self._request(path, body))
            try:
                yield answer
            finally:
                if answer.reusable:
                    self._idle.append((reader, writer))
                else:
                    writer.transport.abort()
        except OSError as error:  # TLS errors are among them
            raise StreamFault(f"the connection to {self.url} broke: {error or type(error).__name__}") from error

    async def get(self, path: str) -> Any:
        """The JSON that the server has there. Raises StreamFault, also if it takes longer than a connection may."""
        try:
            async with asyncio.timeout(self._connect_s), self.ask(path) as answer:
                return await answer.json()
        except TimeoutError:
            raise StreamFault(f"timeout: {self.url}{path} did not answer in {self._connect_s} s") from None

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()

    async def _answered(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Answer]:
        """Send a request and read the head of its answer.

        A kept connection may be closed by the server while the request is on its way, which it then never reads: as
        long as not a byte of an answer has come, another connection takes the request.
        """
        while True:
            reader, writer, kept = await self._connection()
            answer = None
            try:
                writer.write(request)
                answer = await _head(reader)
                return reader, writer, answer
            except (_Unanswered, ConnectionError):
                if not kept:
                    raise
            finally:
                if answer is None:
                    writer.transport.abort()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]:
        """A connection, and whether it was used before."""
        while self._idle:
            reader, writer = self._idle.pop()
            if _is_quiet(writer.get_extra_info("socket")) and not reader.at_eof():
                return reader, writer, True
            writer.transport.abort()
        try:
            async with asyncio.timeout(self._connect_s):
                return *await asyncio.open_connection(self._host, self._port, ssl=self._tls), False
        except TimeoutError:
            raise StreamFault(f"timeout: no connection to {self.url} in {self._connect_s} s") from None
        except (OSError, UnicodeError) as error:  # the latter for a name that can't be a host's
            raise StreamFault(f"cannot connect to {self.url}: {_reason(error)}") from error

    def _request(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        headers = dict(self._headers)
        if body is not None:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
        lines = [f"{'GET' if body is None else 'POST'} {self.path}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


class _Unanswered(StreamFault):
    """The connection was closed without a byte of an answer."""


async def _head(reader: asyncio.StreamReader) -> Answer:
    while True:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError as error:
            said = "the server closed the connection before it answered"
            if not error.partial:
                raise _Unanswered(said) from None
            raise StreamFault(f"{said}, after {_excerpt(error.partial)!r}") from None
        except asyncio.LimitOverrunError:
            raise StreamFault("the headers of the answer are endless") from None
        first, *lines = head[:-4].split("\r\n")
        version, _, rest = first.partition(" ")
        code, _, reason = rest.partition(" ")
        if not version.startswith("HTTP/1.") or len(code) != 3 or not code.isdecimal():
            raise StreamFault(f"not an HTTP answer: {first[:80]!r}")
        if code.startswith("1"):  # an interim answer: the one that counts follows
            continue
        fields = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        return Answer(reader, int(code), reason, headers)


def _reason(error: Exception) -> str:
    """Why there is no connection, in words alone."""
    if isinstance(error, ConnectionError | TimeoutError) and error.errno:  # asyncio has words of its own for these
        return os.strerror(error.errno)
    return re.sub(r"\[Errno -?\d+\] ", "", str(error))


def _is_quiet(connection: socket.socket) -> bool:
    """Nothing waits to be read: an idle connection where something does has been closed, or speaks out of turn."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0)


def _tls(verify: bool | str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    except OSError as error:
        raise RequestError(f"cannot read certificates from {verify}: {error}") from error
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _reason_in(content: bytes) -> str:
    """What an error body says, in the spellings of the common servers."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    told = body.get("error", body.get("detail", body.get("message"))) if isinstance(body, dict) else None
    if isinstance(told, dict):
        told = told.get("message")
    return str(told) if told else _excerpt(content)


def _excerpt(content: bytes) -> str:
    return content[:200].decode(errors="replace")
