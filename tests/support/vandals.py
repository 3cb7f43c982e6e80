"""Clients who break off, dawdle, stand still or talk nonsense, each in a way of its own."""

import asyncio
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from support.crowd import Case

_HEAD = "POST {path} HTTP/1.1\r\nHost: [::]\r\nContent-Type: application/json\r\n"
NONSENSE: Sequence[bytes] = (
    b"{",
    b"[" * 10_000,
    b'{"prompt": "\xff"}',
    b'{"prompt": "x", "temperature": NaN}',
    b'{"prompt": "x", "temperature": 1e400}',
    b'{"prompt": "x", "max_tokens": 1e400}',
    b'{"prompt": "x", "n": 1000000000}',
    b'{"prompt": "x", "prompt": 5}',
    b'{"prompt": [1e9]}',
    b'{"prompt": "x", "stop": ["y"%s]}' % (b', "z"' * 5000),
    b'{"prompt": "x", "logit_bias": {"1": 1%s}}' % b"".join(b', "%d": 1' % i for i in range(2, 5000)),
    b'{"prompt": "x", "logprobs": 1000000}',
    b'{"prompt": "x", "seed": %s}' % (b"9" * 5000),
)


class Vandal:
    """One connection to `address`. What it does is `rng`'s choice; `case` is what it asks for, where it asks."""

    def __init__(self, address: tuple[str, int], rng: random.Random, case: Case) -> None:
        self._address, self._rng, self._case = address, rng, case
        self._ways: Sequence[Callable[[], Awaitable[None]]] = (
            self._connect,
            self._break_off,
            self._break_off,
            self._leave_soon,
            self._leave_soon,
            self._leave_in_the_midst,
            self._leave_in_the_midst,
            self._stand_still,
            self._dribble,
            self._chunk_on,
            self._pipe,
            self._babble,
            self._err_and_go_on,
        )

    async def __call__(self) -> None:
        """Do it. A connection that the server cuts off is all right."""
        await asyncio.sleep(self._rng.random() * 0.5)
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        if self._rng.random() < 0.5:  # it will end with a reset instead of an orderly close
            self._set(socket.SO_LINGER, struct.pack("ii", 1, 0))
        way = self._rng.choice(self._ways)
        try:
            await asyncio.wait_for(way(), 30)
        except TimeoutError:
            raise AssertionError(f"{way.__name__} came to no end: {self._case}") from None
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writer.close()

    def _request(self, body: Any, path: str = "") -> bytes:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = _HEAD.format(path=path or self._case.path)
        return f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent

    def _set(self, option: int, value: int | bytes) -> None:
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, value)

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _connect(self) -> None:
        await asyncio.sleep(self._rng.random() * 0.2)

    async def _break_off(self) -> None:
        whole = self._request(self._case.body)
        await self._send(whole[: self._rng.randrange(1, len(whole))])
        await asyncio.sleep(self._rng.random() * 0.2)

    async def _leave_soon(self) -> None:
        """While it is queued, or its prompt is read."""
        await self._send(self._request(self._case.body))
        await asyncio.sleep(self._rng.random() * 0.1)

    async def _leave_in_the_midst(self) -> None:
        await self._send(self._request(self._case.body | {"stream": True, "max_tokens": 1000, "ignore_eos": True}))
        await self._reader.readexactly(self._rng.randrange(1, 20_000))

    async def _stand_still(self) -> None:
        """Ask for much, and read nothing."""
        self._set(socket.SO_RCVBUF, 4096)
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]
        more = {"stream": True, "max_tokens": 1000, "ignore_eos": True, "n": 1}
        await self._send(self._request(self._case.body | more))
        await asyncio.sleep(1.5)

    async def _dribble(self) -> None:
        for byte in self._request(self._case.body)[: self._rng.randrange(1, 40)]:
            await self._send(bytes([byte]))
            await asyncio.sleep(0.05)

    async def _chunk_on(self) -> None:
        """A body without an end."""
        await self._send(f"{_HEAD.format(path=self._case.path)}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(self._rng.randrange(40)):
            await self._send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")

    async def _pipe(self) -> None:
        await self._send(self._request(self._case.body) * 20)
        await asyncio.sleep(self._rng.random() * 0.3)

    async def _babble(self) -> None:
        await self._send(self._rng.randbytes(self._rng.randrange(1, 5000)))
        await self._reader.read()

    async def _err_and_go_on(self) -> None:
        """A connection outlives errors: what is asked on it next is answered."""
        for nonsense in self._rng.sample(NONSENSE, 3):
            await self._send(self._request(nonsense, "/v1/completions"))
            assert await self._status() in (400, 429), nonsense
        await self._send(b"GET /health HTTP/1.1\r\nHost: [::]\r\n\r\n")
        assert await self._status() == 200

    async def _status(self) -> int:
        """That of an answer with a Content-Length, which is read to its end."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        await self._reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
        return int(head.split()[1])
