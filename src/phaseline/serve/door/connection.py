"""One client's connection: uvicorn's, bounded in the time and the bytes that a request may take to arrive."""

import asyncio
from typing import Any
from weakref import proxy

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD = 64 << 10  # bytes of a request's first line and headers

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """Closes where a request's head is not complete after `timeout_keep_alive` seconds, or its body stands still for as
    long, and where a head is longer than MAX_HEAD. uvicorn by itself closes between requests alone.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True  # of the first request, or of one that has begun
        self._arriving = True
        self._head = 0  # bytes of it so far
        self._patience: asyncio.TimerHandle | None = None
        self._answered: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if not self._in_head:
            self._wait_no_more()
        elif self._head > MAX_HEAD and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        if self._arriving or self.cycle.response_complete:  # the latter where what came was no more than blank lines
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        self.pipeline.clear()
        if self._answered:  # uvicorn tells the latest request alone, which may be waiting for this one
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _unchunked(cycle, app)
        super()._start_asgi_task(cycle, app)

    def write_chunk(self, data: bytes) -> bool:
        """Send some of the body of the answer under way, whose head is sent, as ASGI's `send` would. Nothing if the
        client has left. Whether more may follow at once."""
        if self._answered and not self._answered.disconnected:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._answered.chunked_encoding else data)
        return not self.flow.write_paused

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["connection"] = proxy(self)  # which holds the scope
        self._in_head = self._arriving = True

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head, self._head = False, 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._arriving, self._head = False, 0

    def _wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _wait_no_more(self) -> None:
        if self._patience:
            self._patience.cancel()
            self._patience = None


def _unchunked(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """`app` for a client of HTTP/1.0, who knows no chunks: the connection's end is that of an answer without length."""

    async def unchunked(scope: Scope, receive: Receive, send: Send) -> None:
        endless = False

        async def sending(message: Message) -> None:
            nonlocal endless
            if message["type"] == "http.response.start":
                if endless := all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                    cycle.chunked_encoding = False
            elif endless:
                cycle.expected_content_length = len(message.get("body", b""))  # what uvicorn lets pass
            await send(message)

        await app(scope, receive, sending)

    return unchunked
