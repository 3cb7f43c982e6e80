"""Connections that stall, dawdle or overflow are closed; others are not."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.server import Server, eventually, serving

HEALTH = b"GET /health HTTP/1.1\r\nHost: [::]\r\n\r\n"


@pytest.fixture(scope="module")
def impatient(tiny: Path) -> Iterator[Server]:
    with serving(tiny, "--idle-timeout", "1") as running:
        yield running


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(server.address, timeout=20) as sock:
        yield sock


def what_is_left(sock: socket.socket) -> bytes:
    """All that comes until the server closes; fails where it does not."""
    pieces = []
    try:
        while piece := sock.recv(1 << 16):
            pieces.append(piece)
    except ConnectionResetError:  # closed over bytes that it had not read
        pass
    return b"".join(pieces)


STALLED = {
    "nothing": b"",
    "first line": b"GET /health",
    "headers": b"GET /health HTTP/1.1\r\nHost: [::]\r\n",
    "blank line": b"\r\n",
    "body": b"POST /tokenize HTTP/1.1\r\nHost: [::]\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    "chunk": b"POST /tokenize HTTP/1.1\r\nHost: [::]\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
}


def test_requests_that_stall_are_closed(impatient: Server) -> None:
    with ExitStack() as stack:
        stalled = {}
        for name, beginning in STALLED.items():
            first, later = (stack.enter_context(connected(impatient)) for _ in range(2))
            later.sendall(HEALTH)  # the second one stalls after a request that did not
            assert later.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
            for sock in (first, later):
                sock.sendall(beginning)
            stalled |= {name: first, f"later {name}": later}
        assert {name for name, sock in stalled.items() if b"200 OK" in what_is_left(sock)} == set()


def test_a_head_that_dribbles_is_closed(impatient: Server) -> None:
    with connected(impatient) as sock:
        sock.sendall(b"GET /")
        end = time.monotonic() + 15
        try:
            while time.monotonic() < end:
                sock.sendall(b"a")
                time.sleep(0.3)
        except (BrokenPipeError, ConnectionResetError):
            return
    raise AssertionError("it was still open")


def test_a_body_that_comes_slowly_is_read(impatient: Server) -> None:
    body = b'{"prompt": "abc"}'
    with connected(impatient) as sock:
        sock.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: [::]\r\nConnection: close\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        for byte in range(0, len(body), 5):
            time.sleep(0.5)
            sock.sendall(body[byte : byte + 5])
        assert what_is_left(sock).startswith(b"HTTP/1.1 200 OK")


def test_a_head_without_end_is_refused(impatient: Server) -> None:
    with connected(impatient) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        try:
            for number in range(100):
                sock.sendall(b"X-%d: %s\r\n" % (number, b"a" * 1000))
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert b" 431 " in what_is_left(sock)


def test_a_long_answer_is_not_idle(impatient: Server) -> None:
    answer = impatient.ask("/v1/completions", {"prompt": [50], "max_tokens": 4000, "ignore_eos": True})
    assert answer.json["usage"]["completion_tokens"] == 4000


def test_several_requests_in_one_go_are_answered_in_order(impatient: Server) -> None:
    with connected(impatient) as sock:
        sock.sendall(HEALTH * 3 + HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert what_is_left(sock).count(b"HTTP/1.1 200 OK") == 4


def test_who_leaves_takes_along_what_he_asked_for_and_what_was_to_follow(impatient: Server) -> None:
    body = b'{"prompt": "x", "max_tokens": 30000, "ignore_eos": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: [::]\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    before = impatient.metric("generated_tokens_total")
    with connected(impatient) as sock:
        sock.sendall(request * 2)
        eventually(lambda: impatient.metric("requests_running") == 1)
    eventually(lambda: impatient.idle)
    assert impatient.metric("generated_tokens_total") < before + 30_000


def test_who_does_not_read_is_closed_whatever_was_asked(impatient: Server) -> None:
    """Be it an answer without end, or many that were complete long ago."""
    endless = b'{"prompt": "x", "max_tokens": 30000, "ignore_eos": true, "logprobs": 20, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: [::]\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with ExitStack() as stack:
        for request in (head % len(endless) + endless, HEALTH.replace(b"health", b"openapi.json") * 500):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(impatient.address)
            sock.sendall(request)
            assert sock.recv(1) == b"H" and impatient.keeps(sock)
            eventually(lambda client=sock: not impatient.keeps(client))


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_stream_has_no_chunks_where_the_client_knows_none(impatient: Server, version: bytes) -> None:
    body = b'{"prompt": "x", "max_tokens": 20, "ignore_eos": true, "stream": true, "temperature": 0}'
    head = b"POST /v1/completions HTTP/%b\r\nHost: [::]\r\nContent-Type: application/json\r\n" % version
    with connected(impatient) as sock:
        sock.sendall(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        head, _, events = what_is_left(sock).partition(b"\r\n\r\n")
    assert (b"transfer-encoding: chunked" in head) == (b"\r\n" in events) == (version == b"1.1")
    assert b"connection: close" in head
    if version == b"1.0":
        *data, done, rest = events.decode().split("\n\n")
        assert done == "data: [DONE]" and rest == ""
        choices = [choice for event in data for choice in json.loads(event.removeprefix("data: "))["choices"]]
        whole = impatient.ask("/v1/completions", body.replace(b'"stream": true, ', b"")).json["choices"]
        assert "".join(choice["text"] for choice in choices) == whole[0]["text"]


@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n"])
def test_a_client_of_http_1_0_is_answered_and_closed(impatient: Server, keep: bytes) -> None:
    for request in (HEALTH, HEALTH.replace(b"GET /health", b"POST /nothing")):
        with connected(impatient) as sock:
            sock.sendall(request.replace(b"1.1\r\n", b"1.0\r\n" + keep) * 2)
            head, _, body = what_is_left(sock).partition(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % len(body) in head and json.loads(body)


def test_who_watches_by_http_1_0_sees_events_as_they_are(impatient: Server) -> None:
    with connected(impatient) as sock:
        sock.sendall(HEALTH.replace(b"/health", b"/live").replace(b"1.1", b"1.0"))
        got = b""
        while got.count(b"\n\n") < 1:
            got += sock.recv(1 << 16)
    head, _, event = got.partition(b"\r\n\r\n")
    assert b"chunked" not in head and event.startswith((b"data: ", b"event: "))
