"""A line on standard error for each request that ended, where it is asked for: `--log-requests`."""

import atexit
import os
import select
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from queue import SimpleQueue
from threading import Thread

from starlette.types import ASGIApp, Receive, Scope, Send

from phaseline.serve.live.lives import Life
from phaseline.serve.live.telemetry import Telemetry, telling_status

_PARTING_S = 1.0  # at the end, for lines that wait
_CUT_OFF = "abort"  # of a request whose client is gone before the engine has told of its end


class Lines:
    """Lines to a file descriptor, written by a thread: whoever has one to write waits for nobody. Those that come while
    `room` wait for a reader are lost and counted.
    """

    def __init__(self, descriptor: int, room: int = 256) -> None:
        self._descriptor, self._room, self._lost = descriptor, room, 0
        self._waiting = SimpleQueue[str | None]()
        self._thread = Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, line: str) -> None:
        """Hand a line over."""
        if self._waiting.qsize() >= self._room:
            self._lost += 1
            return
        self._tell_lost()
        self._waiting.put(line)

    def close(self) -> None:
        """Give what waits a moment to be read; nothing is written afterwards."""
        self._tell_lost()
        self._waiting.put(None)
        self._thread.join(_PARTING_S)

    def _tell_lost(self) -> None:
        if self._lost:
            self._waiting.put(f"phaseline: {self._lost} lines of the log were lost: nobody read")
            self._lost = 0

    def _write_all(self) -> None:
        while (line := self._waiting.get()) is not None:
            left = f"{line}\n".encode()
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # of a descriptor that another process has told not to wait
                    select.select((), (self._descriptor,), ())
                except OSError:  # whoever read has gone
                    break


class RequestLog:
    """Before `app`: writes of each POST when it came in, how it was answered and what the engine did for it. Paths are
    named as in `routes`; no word of a client's is in it.
    """

    def __init__(self, app: ASGIApp, routes: Mapping[str, str], telemetry: Telemetry, lines: Lines) -> None:
        self._app, self._routes, self._telemetry, self._lines = app, routes, telemetry, lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        came, began_ns, status = datetime.now(UTC), time.monotonic_ns(), list[int]()
        lives = self._telemetry.collect()
        try:
            await self._app(scope, receive, telling_status(send, status.append))
        finally:
            self._telemetry.read()  # what the engine has told is looked at from time to time only
            route = self._routes.get(scope["path"], "other")
            facts = _facts(lives, began_ns, time.monotonic_ns())
            spelt = " ".join(f"{name}={value}" for name, value in facts.items())
            id = lives[0].id.rpartition("-")[0] if lives else "-"
            self._lines.write(
                f"{came.isoformat(timespec='milliseconds')} {id} {route} {status[0] if status else '-'} {spelt}"
            )


def _facts(lives: Sequence[Life], began_ns: int, now_ns: int) -> dict[str, str]:
    """What became of a body's requests, one for each of its prompts; times in milliseconds."""
    facts = {"total_ms": f"{(now_ns - began_ns) / 1e6:.1f}"}
    if not lives:
        return facts
    firsts = [life.first_ns for life in lives if life.first_ns is not None]
    gaps = [gap for life in lives for answer in life.answers.values() if (gap := answer.per_token) is not None]
    return {
        "prompt": str(sum(life.prompt for life in lives)),
        "cached": str(sum(life.cached for life in lives)),
        "output": str(sum(life.tokens for life in lives)),
        "ttft_ms": f"{(min(firsts) - began_ns) / 1e6:.1f}" if firsts else "-",
        "tpot_ms": f"{1e3 * sum(gaps) / len(gaps):.2f}" if gaps else "-",
        **facts,
        "reason": ",".join(sorted({life.reason or _CUT_OFF for life in lives})),
    }
