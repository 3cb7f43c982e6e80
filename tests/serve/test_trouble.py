"""What becomes of many requests at once when the engine hangs or dies, or the server is told to stop."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from support.crowd import COMPLETIONS, start
from support.server import Server, alive, eventually, serving

SEATS, QUEUED = 16, 8
SHORT = {"prompt": [50, 60], "max_tokens": 2, "ignore_eos": True}
ENDLESS = 30_000


@contextmanager
def streams(server: Server, tokens: int) -> Iterator[list[HTTPConnection]]:
    """As many streams as can run, and some that wait."""
    body = SHORT | {"max_tokens": tokens, "stream": True}
    with ExitStack() as stack:
        connections = [start(server, COMPLETIONS, body) for _ in range(SEATS + QUEUED)]
        for connection in connections:
            stack.callback(connection.close)
        eventually(lambda: server.metric("requests_running") == SEATS)
        eventually(lambda: server.metric("requests_waiting") == QUEUED)
        yield connections


def ends(connections: list[HTTPConnection]) -> set[str]:
    """How the answers end: with the mark of a complete one, or the codes of errors, one for each answer."""
    found = set()
    for connection in connections:
        answer = connection.getresponse()
        *_, last = answer.read().decode().removesuffix("\n\n").split("\n\n")
        last = last.removeprefix("data: ")
        found.add(last if last == "[DONE]" else json.loads(last)["error"]["code"])
    return found


def test_requests_in_a_hung_engine_time_out_and_it_goes_on_if_it_can(tiny: Path) -> None:
    with serving(tiny, "--request-timeout", "1") as server:
        engine = server.children[0]
        with streams(server, ENDLESS) as connections:
            os.kill(engine, signal.SIGSTOP)
            assert server.ask("/health").status == 200
            assert ends(connections) == {"timeout"}
        assert server.ask(COMPLETIONS, SHORT).status == 504
        os.kill(engine, signal.SIGCONT)
        eventually(lambda: server.idle and server.metric("pages_used") == 0)
        assert server.ask(COMPLETIONS, SHORT).status == 200 and server.children == [engine]


def test_an_engine_that_hangs_is_started_again(tiny: Path) -> None:
    with serving(tiny, "--step-timeout", "2") as server:
        engine = server.children[0]
        with streams(server, ENDLESS) as connections:
            os.kill(engine, signal.SIGSTOP)
            assert ends(connections) == {"engine_error"}
        eventually(lambda: not alive(engine))
        server.wait_ready()
        assert server.ask(COMPLETIONS, SHORT).status == 200
        assert server.metric("pages_used") == server.metric("requests_waiting") == 0


def test_an_engine_with_nothing_to_do_does_not_hang(tiny: Path) -> None:
    with serving(tiny, "--step-timeout", "2") as server:
        engine = server.children[0]
        time.sleep(3)
        assert server.children == [engine] and alive(engine)


def test_an_engine_that_is_killed_fails_whom_it_serves_and_who_waits(tiny: Path) -> None:
    with serving(tiny) as server:
        with streams(server, ENDLESS) as connections:
            os.kill(server.children[0], signal.SIGKILL)
            assert ends(connections) == {"engine_error"}
        server.wait_ready()
        assert server.ask(COMPLETIONS, SHORT).status == 200
        assert server.metric("pages_used") == server.metric("requests_waiting") == 0


@pytest.mark.parametrize(("tokens", "patience", "end"), [(1000, 30, "[DONE]"), (ENDLESS, 1, "unavailable")])
def test_told_to_stop_it_lets_streams_end_and_those_that_wait_begin(
    tiny: Path, tokens: int, patience: int, end: str
) -> None:
    with serving(tiny, "--drain-timeout", str(patience)) as server:
        engine = server.children[0]
        with streams(server, tokens) as connections:
            server.process.send_signal(signal.SIGTERM)
            assert ends(connections) == {end}
        assert server.process.wait(20) == 0
        assert not alive(engine)


def test_a_second_signal_ends_all_at_once(tiny: Path) -> None:
    with serving(tiny) as server:
        engine = server.children[0]
        with streams(server, ENDLESS):
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: server.ask("/ready").status == 503)
            assert server.stop() == 128 + signal.SIGTERM
        eventually(lambda: not alive(engine))
