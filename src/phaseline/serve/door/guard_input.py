"""What stands before every handler: the Host, the API key, the size of a body."""

import asyncio
import hmac
from collections.abc import Collection, Iterable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phaseline.serve.door.hosts import check_host
from phaseline.serve.door.problems import Problem

_LINGER = 64 << 20  # bytes of a refused body that are read and dropped, so that its sender comes to see the answer
_PATIENCE = 60  # seconds that a body may take


class Guard:
    """Before `app`: refuses a request whose Host is none of `hosts` (None: any will do), one without one of `keys` (if
    there are any, and its path is not an open one), a body of more than `max_body` bytes, and one that would make the
    bodies of all requests under way more than `max_bodies`. `scope["state"]["key"]` is the key that was given, or None.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] | None,
        keys: Iterable[str],
        open_paths: Iterable[str],
        max_body: int,
        max_bodies: int,
    ) -> None:
        self._app, self._hosts, self._open = app, hosts, frozenset(open_paths)
        self._max_body, self._max_bodies, self._held = max_body, max_bodies, 0
        self._keys = {key: key.encode() for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        if self._hosts is not None:
            try:
                check_host(headers.get(b"host"), self._hosts)
            except Problem as problem:
                return await _refuse(problem, receive, send)
        key = self._key(headers.get(b"authorization", b""))
        scope.setdefault("state", {})["key"] = key
        if self._keys and key is None and scope["path"] not in self._open:
            return await _refuse(_UNAUTHORIZED, receive, send)
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            return await self._app(scope, receive, send)
        body = bytearray()  # to join parts of many MB would take as long as to copy them, and all at once
        try:
            try:
                await self._read(headers.get(b"content-length", b""), receive, body)
            except Problem as problem:
                self._drop(body)
                return await _refuse(problem, receive, send)
            await self._app(scope, _replay(body, receive), send)
        finally:
            self._drop(body)

    def _key(self, header: bytes) -> str | None:
        """The key that the header names. Every key is compared, in a time that says nothing about it."""
        scheme, _, given = header.partition(b" ")
        found = None
        for key, spelt in self._keys.items():
            if hmac.compare_digest(given.strip(), spelt):
                found = key
        return found if scheme.lower() == b"bearer" else None

    async def _read(self, length: bytes, receive: Receive, body: bytearray) -> None:
        """The whole of it, into `body`; Problem if it is too large, finds no room or does not come."""
        if length.isdigit() and int(length[:20]) > self._max_body:
            raise self._too_large()
        more = True
        try:
            async with asyncio.timeout(_PATIENCE):
                while more:
                    message = await receive()
                    part = message.get("body", b"")
                    body += part
                    self._held += len(part)
                    if len(body) > self._max_body:
                        raise self._too_large()
                    if self._held > self._max_bodies:
                        raise Problem(503, "too many large bodies are under way: come again later", headers=_LATER)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Problem(408, f"the body did not come within {_PATIENCE} seconds", headers=_CLOSE) from None

    def _drop(self, body: bytearray) -> None:
        self._held -= len(body)
        with suppress(BufferError):  # a reader's thread still looks at it, though nobody waits for that any more
            body.clear()

    def _too_large(self) -> Problem:
        message = f"the body is larger than {self._max_body} bytes, the most that is read"
        return Problem(413, message, code="body_too_large", headers=_CLOSE)


_CLOSE = {"Connection": "close"}
_LATER = _CLOSE | {"Retry-After": "1"}
_UNAUTHORIZED = Problem(
    401,
    "a valid API key is needed, in the header `Authorization: Bearer KEY`",
    type="authentication_error",
    code="invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"} | _CLOSE,
)


def _replay(body: bytearray, receive: Receive) -> Receive:
    """`receive` once more from the start, the body in one message, then as it goes on."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _refuse(problem: Problem, receive: Receive, send: Send) -> None:
    """Answer, then read on for a while: a connection closed over unread bytes would take the answer with it."""
    body = problem.body()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} | problem.headers
    spelt = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": spelt})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    taken, more = 0, True
    try:
        async with asyncio.timeout(_PATIENCE):
            while more and taken < _LINGER:
                message = await receive()
                taken += len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        pass
    await send({"type": "http.response.body"})
