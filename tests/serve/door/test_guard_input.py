"""Keys, sizes and raw bytes, at the server's socket."""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phaseline.engine.engine import Engine
from phaseline.serve.config import ServeConfig
from phaseline.serve.door.app import create_app
from phaseline.serve.door.guard_input import Guard
from support.server import LIMIT_S, Server, serving

BODY = {"prompt": [70 + n % 90 for n in range(100)], "max_tokens": 1}
GENERATE = b"POST /v1/completions HTTP/1.1\r\nHost: [::]\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def locked(tiny: Path) -> Iterator[Server]:
    with serving(tiny, "--api-key", "first key", "--api-key", "sécond") as running:
        yield running


@pytest.mark.parametrize(
    "given", [None, "", "first key", "Bearer", "Bearer ", "Bearer first", "Basic first key", "Bearer x"]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/nothing"])
def test_without_a_key_nothing_is_answered(locked: Server, path: str, given: str | None) -> None:
    answer = locked.ask(path, BODY, headers={} if given is None else {"Authorization": given})
    assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert answer.json["error"]["code"] == "invalid_api_key" and "first" not in answer.json["error"]["message"]


def test_any_of_the_keys_will_do_and_some_paths_need_none(locked: Server) -> None:
    for given in ("Bearer first key", "bearer first key", "Bearer sécond".encode()):
        headers: Any = {"Authorization": given}
        assert locked.ask("/v1/models", headers=headers).status == 200
    for path in ("/health", "/ready", "/metrics", "/"):
        assert locked.ask(path).status == 200
    assert locked.ask("/v1/models").status == locked.ask("/openapi.json").status == 401


def test_keys_do_not_share_prefixes(locked: Server) -> None:
    def cached(key: str, **salt: str) -> int:
        headers: Any = {"Authorization": f"Bearer {key}".encode()}
        usage = locked.ask("/v1/completions", BODY | salt, headers=headers).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached(key) for key in ("first key", "first key", "sécond", "sécond")] == [0, 96, 0, 96]
    assert [cached("first key", cache_salt=salt) for salt in "xyx"] == [0, 0, 96]
    assert cached("sécond", cache_salt="x") == 0


def exchange(server: Server, *parts: bytes) -> bytes:
    """What a connection answers to these bytes, until it is closed or as much as an answer has come."""
    with closing(socket.create_connection(server.address, LIMIT_S)) as connection:
        for part in parts:
            connection.sendall(part)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> bytes:
    """One answer with a Content-Length, or all there is where none comes."""
    got = b""
    while piece := connection.recv(1 << 16):
        got += piece
        head, blank, body = got.partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if blank and length and len(body) >= int(length[0].split(b":")[1]):
            break
    return got


def test_a_body_that_is_announced_too_large_is_refused_unread(server: Server) -> None:
    head = GENERATE + b"Content-Length: %d\r\n\r\n" % (50 << 20)
    answer = exchange(server, head + b'{"prompt": "')
    assert answer.startswith(b"HTTP/1.1 413") and b'"body_too_large"' in answer


def test_a_sender_of_a_body_that_is_too_large_sees_the_answer(server: Server) -> None:
    body = b'{"prompt": "' + b"x" * (50 << 20) + b'"}'
    answer = server.ask("/v1/completions", body)
    assert answer.status == 413 and answer.json["error"]["code"] == "body_too_large"
    assert answer.headers["connection"] == "close"


def test_a_body_without_a_length_is_counted_as_it_comes(server: Server) -> None:
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    answer = exchange(server, GENERATE + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 17)
    assert answer.startswith(b"HTTP/1.1 413")
    small = json.dumps(BODY).encode()
    answer = exchange(
        server, GENERATE + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(small), small)
    )
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # what begins a TLS connection
        b"GET / HTTP/9.9\r\n\r\n",
        GENERATE + b"Content-Length: -5\r\n\r\n",
        GENERATE + b"Content-Length: x\r\n\r\n",
        GENERATE + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ",
        GENERATE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        GENERATE + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_or_cut_off(server: Server, sent: bytes) -> None:
    with closing(socket.create_connection(server.address, LIMIT_S)) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = read_answer(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert server.ask("/health").status == 200


def test_a_body_cut_short_harms_nobody(server: Server) -> None:
    with closing(socket.create_connection(server.address, LIMIT_S)) as connection:
        connection.sendall(GENERATE + b'Content-Length: 1000\r\n\r\n{"prompt"')
    assert server.ask("/v1/completions", BODY).status == 200


def test_requests_on_one_connection_are_answered_one_after_the_other(server: Server) -> None:
    small = json.dumps(BODY).encode()
    request = GENERATE + b"Content-Length: %d\r\n\r\n%s" % (len(small), small)
    with closing(socket.create_connection(server.address, LIMIT_S)) as connection:
        connection.sendall(request * 3)
        got = b""
        while got.count(b"HTTP/1.1 200") < 3 or not got.endswith(b"}"):
            got += connection.recv(1 << 16)
    assert got.count(b'"text_completion"') == 3


def alone(app: Any, max_bodies: int) -> tuple[Callable[[], Coroutine[Any, Any, None]], list[int]]:
    """What sends a body of 40 bytes through a guard alone, and the statuses of what `app` and it answer."""
    guard = Guard(app, hosts=None, keys=(), open_paths=(), max_body=50, max_bodies=max_bodies)
    statuses = list[int]()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 40, "more_body": False}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    async def ask() -> None:
        await guard({"type": "http", "path": "/", "headers": [(b"content-length", b"40")]}, receive, send)

    return ask, statuses


def test_bodies_under_way_share_a_bound() -> None:
    """The guard alone: three bodies of 40 bytes where 100 may be held, the third while the others are answered."""
    answering = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert len((await receive())["body"]) == 40
        await answering.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def run() -> None:
        ask, statuses = alone(app, 100)
        held = [asyncio.create_task(ask()) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.wait_for(ask(), 10)
        assert statuses == [503]
        answering.set()
        await asyncio.gather(*held)
        await ask()
        assert statuses == [503, 200, 200, 200]

    asyncio.run(run())


def test_a_body_that_is_still_read_when_its_request_is_cancelled_harms_nobody() -> None:
    """The guard alone: a thread looks at the first body, as a reader does."""
    views = list[memoryview]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        if not views:
            views.append(memoryview(body))
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def run() -> None:
        ask, statuses = alone(app, 50)
        first = asyncio.create_task(ask())
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await ask()
        assert bytes(views[0]) == b"x" * 40 and statuses == [200]

    asyncio.run(run())


def test_a_client_who_has_left_before_he_sent_a_body_is_no_defect(engine: Engine) -> None:
    """The app alone: no socket tells of an end before the request is looked at, but servers may."""
    client: Any = SimpleNamespace(
        watch=lambda *_, **__: None, check=lambda: None, facts=SimpleNamespace(context=64, max_running=1)
    )
    assert engine.tokenizer
    app, statuses = create_app(client, ServeConfig("tiny"), engine.tokenizer, "127.0.0.1"), list[int]()

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert statuses == [400]
