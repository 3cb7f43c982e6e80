"""What stands before every handler: the Host, the API key, the size of a body, and JSON that is JSON."""

import asyncio
import hmac
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phaseline.serve.door.hosts import check_host
from phaseline.serve.door.problems import Problem, refused

_T = TypeVar("_T")
_LINGER = 64 << 20  # bytes of a refused body that are read and dropped, so that its sender comes to see the answer
_PATIENCE = 60  # seconds that a body may take
# Nothing else runs while a body is decoded: at most some 0.1 s, which is a dict's half a microsecond a member.
_QUOTES, _OPENINGS = 1 << 18, 1 << 18


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
        parts: list[bytes] = []
        try:
            try:
                await self._read(headers.get(b"content-length", b""), receive, parts)
            except Problem as problem:
                self._drop(parts)
                return await _refuse(problem, receive, send)
            await self._app(scope, _replay(b"".join(parts), receive), send)
        finally:
            self._drop(parts)

    def _key(self, header: bytes) -> str | None:
        """The key that the header names. Every key is compared, in a time that says nothing about it."""
        scheme, _, given = header.partition(b" ")
        found = None
        for key, spelt in self._keys.items():
            if hmac.compare_digest(given.strip(), spelt):
                found = key
        return found if scheme.lower() == b"bearer" else None

    async def _read(self, length: bytes, receive: Receive, parts: list[bytes]) -> None:
        """The whole body, into `parts`; Problem if it is too large, finds no room or does not come."""
        if length.isdigit() and int(length[:20]) > self._max_body:
            raise self._too_large()
        size, more = 0, True
        try:
            async with asyncio.timeout(_PATIENCE):
                while more:
                    message = await receive()
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    self._held += len(parts[-1])
                    if size > self._max_body:
                        raise self._too_large()
                    if self._held > self._max_bodies:
                        raise Problem(503, "too many large bodies are under way: come again later", headers=_LATER)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Problem(408, f"the body did not come within {_PATIENCE} seconds", headers=_CLOSE) from None

    def _drop(self, parts: list[bytes]) -> None:
        self._held -= sum(map(len, parts))
        parts.clear()

    def _too_large(self) -> Problem:
        message = f"the body is larger than {self._max_body} bytes, the most that is read"
        return Problem(413, message, code="body_too_large", headers=_CLOSE)


def check_json(headers: Mapping[str, str]) -> None:
    """415 unless the body says that it is JSON: what a web page may send anywhere unasked is not taken."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        said = f"not {kind[:60]!r}" if kind else "and there is none"
        raise Problem(415, f"the header Content-Type must be application/json, {said}", code="unsupported_media_type")


def decode(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """The body as its struct; 400 says what is wrong and where. No NaN, no infinity, no half a character is JSON."""
    if body.count(b'"') > _QUOTES or body.count(b"[") + body.count(b"{") > _OPENINGS:
        raise Problem(400, "the body has too many strings, lists or objects", code="body_too_complex")
    try:
        body.decode()  # msgspec does not look into what it skips
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from None
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        missing = message.split("`")[1] if "required field" in message else "body"
        raise refused(place.rstrip("`").removeprefix("$.") or missing, message) from None
    except msgspec.DecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply", code="invalid_json") from None


_CLOSE = {"Connection": "close"}
_LATER = _CLOSE | {"Retry-After": "1"}
_UNAUTHORIZED = Problem(
    401,
    "a valid API key is needed, in the header `Authorization: Bearer KEY`",
    type="authentication_error",
    code="invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"} | _CLOSE,
)


def _replay(body: bytes, receive: Receive) -> Receive:
    """`receive` once more from the start, then as it goes on."""
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
