"""`phaseline serve` as its clients have it: a process of its own, on a port of its own."""

import http.client
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.command import COMMAND, ENVIRONMENT

LIMIT_S = 60.0  # far beyond what anything here takes

# Runs Python with the arguments in this process's stead, to be killed with its parent (PR_SET_PDEATHSIG is 1): a server
# does not outlive tests that are killed.
_MORTAL = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@dataclass(frozen=True)
class Answer:
    """Status, headers (lower-case names) and body of an HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """What a stream said, up to [DONE], which must be its end."""
        *events, done, rest = self.body.decode().split("\n\n")
        assert done == "data: [DONE]" and rest == ""
        return [json.loads(event.removeprefix("data: ")) for event in events]


class Server:
    """A running server. `url` is known at once, the model is loaded only after `wait_ready`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout
        self.first_line = process.stdout.readline()
        self.url = self.first_line.removeprefix("listening on ").strip()

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname and parts.port
        return parts.hostname, parts.port

    def connect(self, timeout: float = LIMIT_S) -> http.client.HTTPConnection:
        """A new connection, for what `ask` can't do; close it."""
        return http.client.HTTPConnection(*self.address, timeout=timeout)

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """GET, or POST a body: bytes as they are, anything else as JSON."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with closing(self.connect()) as connection:
            kind = {} if sent is None else {"Content-Type": "application/json"}
            verb = method or ("GET" if sent is None else "POST")
            connection.request(verb, path, sent, {**kind, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def wait_ready(self) -> None:
        """Until requests are taken."""
        eventually(lambda: self.ask("/ready").status == 200)

    @property
    def children(self) -> list[int]:
        """Processes that the server has started and not yet buried; but for a restart it is the engine's alone."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def metric(self, name: str) -> float:
        """The sum over all labels of a metric, whose name is given without what all begin with."""
        found = re.findall(rf"^phaseline_{name}(?:{{.*}})? (\S+)$", self.ask("/metrics").body.decode(), re.MULTILINE)
        assert found, name
        return sum(map(float, found))

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        return self.metric("requests_running") == self.metric("requests_waiting") == 0

    @property
    def open_files(self) -> int:
        """File descriptors of the server's process, its connections among them."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def keeps(self, client: socket.socket) -> bool:
        """Whether the server's process still has its end of an IPv4 connection: who does not read can't see it go."""
        port = f":{client.getsockname()[1]:04X}"
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ends = {f"socket:[{line[9]}]" for line in lines if line[2].endswith(port)}  # by their inodes
        return not ends.isdisjoint(map(_target, Path(f"/proc/{self.process.pid}/fd").iterdir()))

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes that the server's process and the engine's hold of their own."""
        return _own_memory(self.process.pid), _own_memory(self.children[0])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


@contextmanager
def serving(model: Path | str, *options: str, ready: bool = True) -> Iterator[Server]:
    """A server of a model on a free port, ready unless told otherwise; stopped with what it runs at the end."""
    python, *arguments = COMMAND
    command = [python, "-c", _MORTAL, *arguments, "serve", str(model), "--port", "0", "--threads", "1", *options]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=ENVIRONMENT, encoding="utf-8", **pipes) as process:
        try:
            server = Server(process)
            if ready:
                server.wait_ready()
            yield server
        finally:
            process.kill()  # its engine's process ends with it


def eventually(holds: Any, seconds: float = LIMIT_S) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def _target(file: Path) -> str:
    try:
        return str(file.readlink())
    except FileNotFoundError:  # closed since it was listed
        return ""


def _own_memory(pid: int) -> int:
    return int(re.findall(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) << 10
