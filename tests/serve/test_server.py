"""The server's process from its start to its exit status, whatever happens to it or to the engine's."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from support.command import run
from support.server import Server, alive, eventually, serving


@contextmanager
def streaming(server: Server, tokens: int) -> Iterator[HTTPResponse]:
    """The answer to a request for so many tokens, once the first of them is there."""
    body = {"prompt": [50, 60, 70], "max_tokens": tokens, "ignore_eos": True, "stream": True}
    connection = server.connect()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.readline().startswith(b"data: {")
        yield answer
    finally:
        connection.close()


def events(answer: HTTPResponse) -> list[Any]:
    """What is left of a stream; the mark of its end as a text."""
    lines = [line.removeprefix(b"data: ").decode() for line in answer.read().split(b"\n") if line.startswith(b"data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def engine_of(server: Server, other_than: int = 0) -> int:
    """The engine's process, once there is one that is not the one given."""
    found: list[int] = []
    eventually(lambda: bool(found.extend(p for p in server.children if p != other_than) or found))
    return found[0]


def test_it_says_where_it_listens_and_what_it_serves(server: Server) -> None:
    assert server.first_line.startswith("listening on http://127.0.0.1:")
    assert server.ask("/health").status == 200
    assert server.ask("/ready").json["status"] == "ready"


def test_answers_are_dated(server: Server) -> None:
    first = server.ask("/health").headers["date"]
    eventually(lambda: server.ask("/health").headers["date"] != first)


def test_stopped_it_says_what_it_was_and_exits_with_zero(tiny: Path) -> None:
    with serving(tiny, "--itl-budget", "20") as server:
        engine = engine_of(server)
        assert server.stop(signal.SIGINT) == 0
        assert not alive(engine)
        out, err = server.process.communicate()
        for part in ("ready: tiny", "context 32768", "chunks of 512 tokens within 20 ms", "pages of 32 positions"):
            assert part in out
        assert err == ""


def test_stopped_while_it_loads_it_exits_at_once(tiny: Path) -> None:
    with serving(tiny) as server:
        frozen = freeze_next_engine(server)
        assert server.ask("/health").status == 200
        answer = server.ask("/ready")
        assert (answer.status, answer.json["status"], answer.headers["retry-after"]) == (503, "loading", "1")
        assert server.ask("/v1/completions", {"prompt": [50]}).status == 503
        assert server.stop() == 0
        assert not alive(frozen)


def test_it_is_alive_while_a_step_lasts(tiny: Path) -> None:
    with serving(tiny) as server, streaming(server, 20000):
        os.kill(engine_of(server), signal.SIGSTOP)
        assert server.ask("/health").status == 200
        assert server.ask("/ready").status == 200


def test_a_stream_under_way_is_finished_before_the_end(tiny: Path) -> None:
    with serving(tiny) as server, streaming(server, 3000) as answer:
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.ask("/ready").status == 503)
        refused = server.ask("/v1/completions", {"prompt": [50]})
        assert refused.status == 503 and "retry-after" in refused.headers
        *_, last, done = events(answer)
        assert (last["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
        assert server.process.wait(20) == 0


def test_a_stream_that_takes_too_long_ends_with_an_error(tiny: Path) -> None:
    with serving(tiny, "--drain-timeout", "0.3") as server, streaming(server, 30000) as answer:
        server.process.send_signal(signal.SIGTERM)
        *_, last = [event for event in events(answer) if event != "[DONE]"]
        assert "stops" in last["error"]["message"]
        assert server.process.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(tiny: Path, number: signal.Signals) -> None:
    with serving(tiny) as server, streaming(server, 30000):
        engine = engine_of(server)
        server.process.send_signal(number)
        eventually(lambda: server.ask("/ready").status == 503)
        assert server.stop(number) == 128 + number
        eventually(lambda: not alive(engine))


def test_an_engine_that_dies_fails_its_streams_and_is_started_again(tiny: Path) -> None:
    with serving(tiny) as server:
        with streaming(server, 30000) as answer:
            engine = engine_of(server)
            os.kill(engine, signal.SIGKILL)
            *_, last = [event for event in events(answer) if event != "[DONE]"]
            assert "ended" in last["error"]["message"]
        engine_of(server, engine)
        server.wait_ready()
        answer = server.ask("/v1/completions", {"prompt": [50], "max_tokens": 3, "ignore_eos": True})
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 3


def test_an_engine_that_keeps_dying_ends_the_server_with_the_reason(tiny: Path) -> None:
    with serving(tiny) as server:
        engine = 0
        for _ in range(3):
            engine = engine_of(server, engine)
            os.kill(engine, signal.SIGKILL)
        assert server.process.wait(20) == 2
        assert server.process.stderr and "ended with signal 9" in server.process.stderr.read()


def test_restarting_can_be_declined(tiny: Path) -> None:
    with serving(tiny, "--no-restart") as server, streaming(server, 30000) as answer:
        os.kill(engine_of(server), signal.SIGKILL)
        assert "error" in [event for event in events(answer) if event != "[DONE]"][-1]
        assert server.process.wait(20) == 2


@pytest.mark.parametrize("stuck", [False, True])
def test_the_engine_ends_with_a_server_that_is_killed(tiny: Path, stuck: bool) -> None:
    with serving(tiny) as server, streaming(server, 30000):
        engine = engine_of(server)
        if stuck:  # in a step that takes for ever
            os.kill(engine, signal.SIGSTOP)
        server.process.kill()
        eventually(lambda: not alive(engine))


def freeze_next_engine(server: Server) -> int:
    """Kill the engine's process and stop the next one before it has loaded the model."""
    engine = engine_of(server)
    os.kill(engine, signal.SIGKILL)
    following = engine_of(server, engine)
    os.kill(following, signal.SIGSTOP)
    eventually(lambda: server.ask("/ready").status == 503)
    return following


@pytest.fixture(scope="module")
def broken(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that ends in the midst of its weights."""
    path = tmp_path_factory.mktemp("models") / "broken.gguf"
    path.write_bytes(tiny.read_bytes()[:-1000])
    return path


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["no-such-model"], "no known model"),
        (["BROKEN"], "broken.gguf"),
        (["TINY", "--chunk", "0"], "--chunk 0: "),
        (["TINY", "--port", "70000"], "--port 70000: "),
        (["TINY", "--host", "256.1.1.1"], "choose another --host"),
        (["TINY", "--allowed-host", "http://x"], "--allowed-host http://x: "),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    tiny: Path, broken: Path, arguments: list[str], reason: str
) -> None:
    names = {"TINY": str(tiny), "BROKEN": str(broken)}
    done = run("serve", *(names.get(a, a) for a in arguments), *([] if "--port" in arguments else ["--port", "0"]))
    assert done.returncode == 2
    assert done.stderr.startswith("phaseline: error: ") and reason in done.stderr and done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_named(server: Server, tiny: Path) -> None:
    port = str(server.address[1])
    done = run("serve", str(tiny), "--port", port)
    assert done.returncode == 2 and f"127.0.0.1:{port}: Address already in use" in done.stderr
    assert "choose another --port" in done.stderr
    assert server.ask("/health").status == 200


def test_once_it_is_ready_nothing_is_left_to_load(server: Server) -> None:
    told = server.ask("/ready").json
    assert told["status"] == "ready" and told["loaded_bytes"] == told["total_bytes"] > 0


def test_it_listens_to_this_machine_alone(server: Server) -> None:
    listening = subprocess.run(["cat", f"/proc/{server.process.pid}/net/tcp"], capture_output=True, text=True).stdout
    address = f"{socket.inet_aton('127.0.0.1')[::-1].hex().upper()}:{server.address[1]:04X}"
    rows = [row.split() for row in listening.splitlines()[1:]]
    assert [row[1] for row in rows if row[3] == "0A" and row[1].endswith(address[-5:])] == [address]


def test_a_server_open_to_everyone_says_so(tiny: Path) -> None:
    with serving(tiny, "--host", "0.0.0.0") as server:
        server.stop()
        assert "give it an --api-key" in server.process.stderr.read()
    with serving(tiny, "--host", "0.0.0.0", "--api-key", "secret", ready=False) as server:
        server.stop()
        assert server.process.stderr.read() == ""


def test_chunks_are_small_unless_a_budget_sizes_them(tiny: Path) -> None:
    with serving(tiny) as server:
        server.stop()
        assert "chunks of 128 tokens (mixed)" in server.process.stdout.read()


def test_the_model_is_called_as_it_is_told_to_be(tiny: Path) -> None:
    with serving(tiny, "--alias", "mine/own") as server:
        assert server.ask("/v1/models").json["data"][0]["id"] == "mine/own"
        body = {"model": "mine/own", "prompt": [1, 2], "max_tokens": 1}
        assert server.ask("/v1/completions", body).json["model"] == "mine/own"
