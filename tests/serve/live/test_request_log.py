"""A line for each request that ended: what it says, what it never says, and that nobody waits for its reader."""

import fcntl
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phaseline.serve.live.request_log import Lines
from support.server import Server, eventually, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 (?P<id>\S+) (?P<route>\S+) (?P<status>\S+) "
    r"(?:prompt=(?P<prompt>\d+) cached=(?P<cached>\d+) output=(?P<output>\d+) "
    r"ttft_ms=(?P<ttft>\S+) tpot_ms=(?P<tpot>\S+) )?"
    r"total_ms=(?P<total>[\d.]+)(?: reason=(?P<reason>\S+))?"
)


@pytest.fixture
def logging(tiny: Path) -> Iterator[Server]:
    with serving(tiny, "--log-requests", "--api-key", "secret-key") as running:
        yield running


def ask(server: Server, path: str, body: Any, key: str = "secret-key") -> Any:
    return server.ask(path, body, headers={"Authorization": f"Bearer {key}"})


def logged(server: Server) -> list[dict[str, str]]:
    """All lines, once the server has ended."""
    assert server.stop() == 0 and server.process.stderr
    lines = server.process.stderr.read().splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    assert not any(word in line for line in lines for word in ("secret", "wrong", "quokka"))
    return [match.groupdict() for match in found if match]


def test_what_a_line_says(logging: Server) -> None:
    one = {"prompt": "quokka " * 30, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    whole = [ask(logging, COMPLETIONS, one).json for _ in range(2)]
    many = {"prompt": ["quokka " * 30, "quokka " * 30 + "!"], "max_tokens": 200, "n": 2, "ignore_eos": True}
    all_of_them = ask(logging, COMPLETIONS, one | many).json["usage"]
    chat = {"messages": [{"role": "user", "content": "quokka"}], "max_tokens": 1, "stream": True}
    stream = ask(logging, CHAT, chat).events
    assert ask(logging, COMPLETIONS, {"prompt": "quokka", "n": 0}).status == 400
    assert ask(logging, COMPLETIONS, one, key="wrong").status == 401
    assert ask(logging, "/quokka", one).status == 404
    assert ask(logging, "/tokenize", {"prompt": "quokka"}).status == 200
    assert logging.ask("/health").status == 200
    first, again, both, streamed, *others = logged(logging)
    usage = whole[0]["usage"]
    assert first["id"] == whole[0]["id"] and first["route"] == COMPLETIONS and first["status"] == "200"
    assert int(first["prompt"]) == usage["prompt_tokens"] and first["cached"] == "0" and first["output"] == "5"
    assert 0 < float(first["ttft"]) < float(first["total"]) and 0 < float(first["tpot"]) < float(first["total"])
    assert first["reason"] == "length"
    assert int(again["cached"]) == whole[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert int(both["prompt"]) == all_of_them["prompt_tokens"] and both["output"] == "800"
    assert int(both["cached"]) == all_of_them["prompt_tokens_details"]["cached_tokens"] > int(again["cached"])
    assert 0 < 199 * float(both["tpot"]) < float(both["total"])  # of a mean, not a sum
    assert streamed["id"] == stream[0]["id"] and streamed["route"] == CHAT
    assert streamed["tpot"] == "-" and streamed["output"] == "1"
    told = [(line["id"], line["route"], line["status"], line["reason"]) for line in others]
    assert told == [
        ("-", COMPLETIONS, "400", None), ("-", COMPLETIONS, "401", None), ("-", "other", "404", None),
        ("-", "/tokenize", "200", None),
    ]  # fmt: skip


def test_a_client_who_leaves_is_told_of(logging: Server) -> None:
    connection = logging.connect()
    body = b'{"prompt": "quokka", "max_tokens": 20000, "ignore_eos": true, "stream": true}'
    headers = {"Content-Type": "application/json", "Authorization": "Bearer secret-key"}
    connection.request("POST", COMPLETIONS, body, headers)
    assert connection.getresponse().read(10)
    connection.sock and connection.sock.close()
    connection.close()
    eventually(lambda: logging.idle)
    [line] = logged(logging)
    assert line["status"] == "200" and line["reason"] == "abort" and int(line["output"]) > 0


def test_a_log_that_nobody_reads_holds_up_nobody(logging: Server) -> None:
    assert logging.process.stderr
    pipe = logging.process.stderr.fileno()
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    bad = {"prompt": "quokka", "n": 0}
    for _ in range(400):
        assert ask(logging, COMPLETIONS, bad).status == 400
    read = os.read(pipe, 1 << 16).decode()
    logging.process.send_signal(signal.SIGTERM)
    *lines, last = (read + logging.process.stderr.read()).splitlines()
    assert logging.process.wait(20) == 0
    count = re.fullmatch(r"phaseline: (\d+) lines of the log were lost: nobody read", last)
    assert count and int(count[1]) + len(lines) == 400 and 256 <= len(lines) < 400
    assert all(map(LINE.fullmatch, lines))


@pytest.mark.parametrize("kind", ["pipe", "socket", "not waiting"])
def test_a_log_that_is_full_is_waited_for_by_its_thread_alone(kind: str) -> None:
    end, start = os.pipe() if kind != "socket" else (one.detach() for one in socket.socketpair())
    os.set_blocking(start, kind != "not waiting")
    lines, more = Lines(start, room=3), "x" * (1 << 20)  # far more than is held, though there is room at first
    done = threading.Event()

    def write() -> None:
        for n in range(1, 6):
            lines.write(f"{n} {more}")
        done.set()

    lines.write(f"0 {more}")
    assert os.read(end, 1) == b"0"  # the thread has begun, and can't end
    threading.Thread(target=write, daemon=True).start()
    assert done.wait(20)
    with os.fdopen(end) as reader:
        found = [reader.readline().partition(" ")[0] for _ in range(4)]
        lines.write("after")
        lines.write("last")
        found += [reader.readline().rstrip("\n") for _ in range(3)]
    assert found == ["", "1", "2", "3", "phaseline: 2 lines of the log were lost: nobody read", "after", "last"]
    os.close(start)


def test_a_log_that_nobody_reads_does_not_keep_the_server(logging: Server) -> None:
    assert logging.process.stderr
    fcntl.fcntl(logging.process.stderr.fileno(), fcntl.F_SETPIPE_SZ, 4096)
    for _ in range(200):  # more than the pipe holds
        ask(logging, COMPLETIONS, {"prompt": "quokka", "n": 0})
    assert logging.stop() == 0


def test_a_reader_who_has_gone_harms_nobody() -> None:
    end, start = os.pipe()
    lines = Lines(start)
    lines.write("heard")
    assert os.read(end, 100) == b"heard\n"
    os.close(end)
    lines.write("not heard")
    lines.close()
    os.close(start)
