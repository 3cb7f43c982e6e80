"""Servers that take turns: each is started here, or was before, and is halted while another one is timed."""

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from phaseline.errors import PhaselineError
from phaseline.lab.drive import follow
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.openai_http import OpenAISystem

_ENDING_S = 2.0
_TOLD = 2000  # last characters of what a server printed, where it ends too soon


class Server:
    """A server by its URL, or by the command that starts it, with {port} where the port goes.

    A command runs in a session of its own, so that all its processes can be halted together. A server that was not
    started here is never halted: what its threads do while others are timed is not known.
    """

    def __init__(self, name: str, where: str) -> None:
        self.name, self.command = name, None if where.startswith(("http://", "https://")) else where
        self._process: subprocess.Popen[bytes] | None = None
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self.url = where
        if self.command:
            port = _free_port()
            self.url = f"http://127.0.0.1:{port}"
            self._process = subprocess.Popen(
                shlex.split(self.command.replace("{port}", str(port))),
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process that was started here. Raises PhaselineError if none was."""
        if self._process is None:
            raise PhaselineError(f"{self.name} was not started here: its processes are not known")
        return self._process.pid

    def system(self) -> OpenAISystem:
        """A client of its own, with connections of its own; close it. Prompts are token ids."""
        return OpenAISystem(self.url, api="completions")

    async def wait_ready(self, patience: float) -> None:
        """Until it has answered. Raises PhaselineError after `patience` seconds, or when its process ends."""
        end, fault = time.monotonic() + patience, "it was not asked"
        while time.monotonic() < end:
            if self._process and self._process.poll() is not None:
                raise PhaselineError(f"{self.name} ended with status {self._process.returncode}: {self._last_words()}")
            system = self.system()
            try:
                trace = await follow(system, Ask([1, 2, 3], 2, ignore_eos=True))
            finally:
                await system.close()
            if trace.error is None:
                return
            fault = trace.error
            await asyncio.sleep(0.5)
        raise PhaselineError(f"{self.name} did not answer within {patience:g} s: {fault}; {self._last_words()}")

    def halt(self) -> None:
        """Stop all its processes where they are."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End what was started."""
        self.resume()
        if self._process:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_S)
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._printed.close()

    def _signal(self, number: int) -> None:
        if self._process:
            for pid in _session(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _last_words(self) -> str:
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - _TOLD))
        return self._printed.read().decode(errors="replace").strip()


def our_command(model: str, threads: int, *options: str) -> str:
    """`phaseline serve` of this checkout."""
    words = [sys.executable, "-m", "phaseline", "serve", model, "--threads", str(threads), *options]
    return shlex.join(words) + " --port {port}"


@contextmanager
def started(named: Sequence[tuple[str, str]], patience: float) -> Iterator[list[Server]]:
    """Servers of (name, URL or command), each ready and then halted; all are ended with the context."""
    servers = list[Server]()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that they are ended even then
    try:
        for name, where in named:
            servers.append(Server(name, where))
            asyncio.run(servers[-1].wait_ready(patience))
            servers[-1].halt()
        yield servers
    finally:
        for server in servers:
            server.close()


def cpu_seconds(pid: int) -> float:
    """CPU time that all threads of a process have used, those that have ended too."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes the clock of another process


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _session(leader: int) -> list[int]:
    """Processes of the session that `leader` began."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()  # state, parent, group, session ...
            if int(fields[3]) == leader:
                found.append(int(stat.parent.name))
    return found
