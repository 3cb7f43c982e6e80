"""What the server says to the engine's process and hears from it, by hand."""

import socket
from collections.abc import Callable
from typing import Any

from phaseline.engine.types import Request, SamplingParams
from phaseline.serve.process.messages import FrameReader, StepReport, frame, read_report, submit

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)


class Wire:
    """The server's end of a socket to an engine that is served."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(20)
        self._reader = FrameReader()
        self._reports: list[Any] = []

    def send(self, command: Any) -> None:
        self.sock.sendall(frame(command))

    def report(self) -> Any:
        while not self._reports:
            piece = self.sock.recv(1 << 16)
            assert piece, "the process is gone"
            self._reports += map(read_report, self._reader.feed(piece))
        return self._reports.pop(0)

    def until(self, holds: Callable[[Any], bool]) -> list[Any]:
        """All reports up to the first for which something holds."""
        reports = [self.report()]
        while not holds(reports[-1]):
            reports.append(self.report())
        return reports

    def failure(self) -> Any:
        """The next request that failed."""
        return self.until(lambda r: isinstance(r, StepReport) and bool(r.failed))[-1].failed[0]

    def generate(self, request_id: str) -> list[int]:
        """Tokens of a small request, all of them."""
        self.send(submit(Request(request_id, [50, 60, 70], PARAMS)))
        reports = self.until(lambda r: any(d.request_id == request_id and d.finish_reason for d in r.deltas))
        return [t for r in reports for d in r.deltas if d.request_id == request_id for t in d.token_ids]
