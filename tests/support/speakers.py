"""Servers of one's own making, down to the byte."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

STREAM = b"Content-Type: text/event-stream\r\n"
CHUNK = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
DONE = CHUNK + b"data: [DONE]\n\n"

Speaker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(speak: Speaker) -> AsyncIterator[str]:
    """Let `speak` have each connection, which is closed when it returns; yields the address."""
    conversations: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, OSError):
                await speak(reader, writer)
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversations.add(asyncio.create_task(converse(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for conversation in conversations:
            conversation.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)


class Answering:
    """A speaker with one answer per request, in order: bytes to send, seconds to wait, None to close the connection.

    `connections` tells by which connection, counted from 0, each request came.
    """

    def __init__(self, *answers: Sequence[bytes | float | None]) -> None:
        self._answers = iter(answers)
        self._opened = count()
        self.connections: list[int] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(self._opened)
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.findall(rb"Content-Length: (\d+)", head)[0]))
            self.connections.append(number)
            for part in next(self._answers):
                if part is None:
                    return
                if isinstance(part, bytes):
                    writer.write(part)
                else:
                    await asyncio.sleep(part)


def counted(content: bytes, kind: bytes = STREAM) -> bytes:
    """An answer that announces its length."""
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (kind, len(content), content)
