"""A line on standard error for each request that ended, where it is asked for: `--log-requests`."""

import os
import select
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from starlette.types import ASGIApp, Receive, Scope, Send

from phaseline.serve.live.lives import Life
from phaseline.serve.live.telemetry import Telemetry, telling_status

_CUT_OFF = "abort"  # of a request whose client is gone before the engine has told of its end


class Lines:
    """Lines to a file descriptor. While nobody makes room there, they are lost and counted; nobody waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lost = descriptor, 0
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)

    def write(self, line: str) -> None:
        """At most a few hundred bytes: a pipe that has room at all takes so many at once."""
        try:
            if not any(event & select.POLLOUT for _, event in self._room.poll(0)):
                self._lost += 1
                return
            lost = f"phaseline: {self._lost} lines of the log were lost: nobody read\n" if self._lost else ""
            os.write(self._descriptor, f"{lost}{line}\n".encode())
            self._lost = 0
        except OSError:  # whoever read has gone
            self._lost += 1


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
