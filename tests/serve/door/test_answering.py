"""Answers that do not come to their end: clients who leave or do not read, and an engine that dies."""

import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.server import Server, eventually, serving

ENDLESS = {"prompt": "hello", "max_tokens": 30_000, "ignore_eos": True}
SHORT = {"prompt": "hello", "max_tokens": 3}


def gauge(server: Server, name: str) -> int:
    found = re.findall(rf"^phaseline_{name} (\d+)", server.ask("/metrics").body.decode(), re.MULTILINE)
    return int(found[0])


def aborted(server: Server) -> int:
    """Requests so far that were cancelled: no number of tokens ended them."""
    found = re.findall(r'_requests_ended_total{reason="abort"} (\d+)', server.ask("/metrics").body.decode())
    return int(found[0]) if found else 0


def idle(server: Server) -> bool:
    return gauge(server, "requests_running") == gauge(server, "requests_waiting") == 0


def start(server: Server, body: dict[str, Any]) -> http.client.HTTPConnection:
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection


@contextmanager
def asked_slowly(server: Server, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A stream that runs, to a client who has not read of it."""
    with closing(socket.socket()) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(server.address)
        sent = json.dumps(body | {"stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: [::]\r\nContent-Type: application/json\r\n"
        slow.sendall(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
        eventually(lambda: gauge(server, "requests_running") > 0)
        yield slow


def events_of(sock: socket.socket) -> list[str]:
    """All that an answer says, whose end must come."""
    answer = http.client.HTTPResponse(sock)
    answer.begin()
    *events, rest = answer.read().decode().split("\n\n")
    assert rest == ""
    return [event.removeprefix("data: ") for event in events]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_who_leaves_cancels_the_request(server: Server, stream: bool) -> None:
    before = aborted(server)
    with closing(start(server, ENDLESS | {"stream": stream, "n": 2})) as connection:
        eventually(lambda: gauge(server, "requests_running") == 2)
        if stream:
            connection.getresponse().read(1000)
    eventually(lambda: idle(server) and aborted(server) == before + 1)
    assert server.ask("/v1/completions", SHORT).status == 200


def test_a_client_who_leaves_in_the_midst_of_several_prompts_cancels_all(server: Server) -> None:
    before = aborted(server)
    with closing(start(server, ENDLESS | {"prompt": ["a", "b", "c"], "stream": True})) as connection:
        connection.getresponse().read(1000)
        eventually(lambda: gauge(server, "requests_running") == 3)
    eventually(lambda: idle(server) and aborted(server) == before + 3)


def test_a_client_who_does_not_read_is_cut_off_and_nobody_waits_for_him(tiny: Path) -> None:
    with serving(tiny, "--idle-timeout", "1") as server:
        with asked_slowly(server, ENDLESS | {"logprobs": 20}) as slow:
            for _ in range(20):
                assert server.ask("/v1/completions", SHORT).status == 200
            eventually(lambda: idle(server))
            eventually(lambda: not server.keeps(slow))  # his connection is gone, though he holds his end open
        assert aborted(server) == 1
        assert server.ask("/v1/completions", SHORT).status == 200


def test_a_client_who_reads_far_too_late_has_lost_the_request(server: Server) -> None:
    with asked_slowly(server, ENDLESS | {"logprobs": 20}) as late:
        eventually(lambda: idle(server))  # long before its end
        *events, last = events_of(late)
    assert "were not read" in json.loads(last)["error"]["message"] and len(events) > 1024  # what was kept comes first


def test_a_client_who_reads_late_gets_every_event_in_order(server: Server) -> None:
    body = ENDLESS | {"prompt": list("abcdef"), "max_tokens": 900, "temperature": 1, "seed": 3, "logprobs": 20}
    with asked_slowly(server, body) as late:
        eventually(lambda: idle(server))  # all is made, and far more than the connection holds
        *events, done = events_of(late)
    assert done == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    whole = server.ask("/v1/completions", body).json["choices"]
    for choice in whole:
        pieces = [piece for piece in choices if piece["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        tokens = [token for piece in pieces for token in piece["logprobs"]["tokens"]]
        assert tokens == choice["logprobs"]["tokens"] and len(tokens) == 900
        assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_ends_its_requests_with_an_error(tiny: Path, stream: bool) -> None:
    with serving(tiny) as server, closing(start(server, ENDLESS | {"stream": stream})) as connection:
        eventually(lambda: gauge(server, "requests_running") == 1)
        answer = connection.getresponse() if stream else None
        first = answer.read(10) if answer else b""
        os.kill(server.children[0], signal.SIGKILL)
        if answer:
            *_, last = (first + answer.read()).decode().removesuffix("\n\n").split("\n\n")
            error = json.loads(last.removeprefix("data: "))["error"]
        else:
            answer = connection.getresponse()
            assert answer.status == 500
            error = json.loads(answer.read())["error"]
        assert error["type"] == "server_error" and error["code"] == "engine_error" and "ended" in error["message"]
        eventually(lambda: server.ask("/ready").status == 200)
        assert server.ask("/v1/completions", SHORT).status == 200


def test_while_the_model_is_loaded_requests_are_put_off(tiny: Path) -> None:
    with serving(tiny, ready=False) as server:
        answer = server.ask("/v1/completions", SHORT)
        if answer.status != 200:  # loading may have been faster
            assert answer.status == 503 and answer.headers["retry-after"] == "1"
            assert answer.json["error"]["code"] == "unavailable"
        server.wait_ready()
        assert server.ask("/v1/completions", SHORT).status == 200


def test_a_server_that_stops_lets_streams_end_and_takes_no_more(tiny: Path) -> None:
    with (
        serving(tiny, "--drain-timeout", "1") as server,
        closing(start(server, ENDLESS | {"stream": True})) as connection,
    ):
        answer = connection.getresponse()
        first = answer.read(10)
        with closing(server.connect()) as other:
            other.connect()
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: ask_again(other) == 503)
        *_, last = (first + answer.read()).decode().removesuffix("\n\n").split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unavailable"
        assert server.process.wait(30) == 0


def ask_again(connection: http.client.HTTPConnection) -> int:
    connection.request("POST", "/v1/completions", json.dumps(SHORT), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status
