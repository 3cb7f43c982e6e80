"""Answers that do not come to their end: clients who leave or do not read, and an engine that dies."""

import http.client
import json
import os
import re
import signal
import socket
from contextlib import closing
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
        with closing(socket.socket()) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(server.address)
            body = json.dumps(ENDLESS | {"stream": True, "logprobs": 20}).encode()
            head = "POST /v1/completions HTTP/1.1\r\nHost: [::]\r\nContent-Type: application/json\r\n"
            slow.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            eventually(lambda: gauge(server, "requests_running") == 1)
            for _ in range(20):
                assert server.ask("/v1/completions", SHORT).status == 200
            eventually(lambda: idle(server))
            eventually(lambda: not server.keeps(slow))  # his connection is gone, though he holds his end open
        assert aborted(server) == 1
        assert server.ask("/v1/completions", SHORT).status == 200


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
