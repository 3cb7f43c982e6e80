"""Connections that are kept, and closed by the server just when they are used again."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from phaseline.lab.systems.base import StreamFault
from phaseline.lab.systems.http_door import Door

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def asked_twice(close: Callable[[asyncio.StreamWriter], None], answers: int, part: bytes = b"") -> int:
    """Two requests to a server that answers so many on each connection, and closes it when the next one comes, after
    `part` of an answer; gives the number of connections it took."""
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, OSError):
            for _ in range(answers):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(ANSWER)
            await reader.read(1)
            writer.write(part)
        close(writer)
        with suppress(OSError):
            await writer.wait_closed()

    async def ask() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        door = Door(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            for _ in range(2):
                assert await door.get("/") == {}
        finally:
            door.close()
            server.close()
            await asyncio.gather(*(task for task in served if task))

    asyncio.run(ask())
    return len(served)


def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("close", [closed, reset])
def test_a_request_that_was_never_read_takes_another_connection(close: Callable[[asyncio.StreamWriter], None]) -> None:
    assert asked_twice(close, answers=1) == 2


def test_a_connection_that_stays_open_is_used_again() -> None:
    assert asked_twice(closed, answers=2) == 1


def test_a_new_connection_that_is_closed_is_a_fault() -> None:
    with pytest.raises(StreamFault, match=r"the server closed the connection before it answered$"):
        asked_twice(closed, answers=0)


def test_an_answer_that_has_begun_is_not_asked_for_again() -> None:
    with pytest.raises(StreamFault, match="before it answered, after 'HTTP'"):
        asked_twice(closed, answers=1, part=b"HTTP")
