"""The ruler's own ruler: a system whose every token comes out at a known time, in this process or from a server."""

import json
import subprocess
import sys
import time
import urllib.request
from asyncio import Event
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from phaseline.errors import PhaselineError
from phaseline.lab.systems.base import Ask, Piece, StreamFault
from phaseline.lab.systems.timeouts import Timeouts, watch
from phaseline.lab.systems.truth_player import Player, sleep_until
from phaseline.lab.systems.truth_script import Script, count_tokens
from phaseline.lab.systems.truth_wire import facts
from phaseline.lab.trace import META


class TruthSystem:
    """A script played in this process: what a perfect client would see of a server that plays it."""

    def __init__(self, script: Script, timeouts: Timeouts | None = None) -> None:
        self._script = script
        self._player = Player(script)
        self._timeouts = timeouts or Timeouts()
        self.name = "truth"

    def generate(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        return watch(self._pieces(ask), self._timeouts)

    async def describe(self) -> Mapping[str, Any]:
        return {"kind": "truth", "script": json.loads(self._script.to_json())}

    async def close(self) -> None:
        """Nothing is held between streams."""

    async def _pieces(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        received = time.monotonic()
        wire, fault = self._script.wire, self._script.fault
        await sleep_until(received + wire.headers_at)
        if fault and fault.kind == "refuse":
            raise StreamFault(f"scripted: refused with {fault.status}")
        yield [Piece(META)]
        prompt, written = count_tokens(ask.prompt), 0
        async with aclosing(self._player.play(received, prompt, ask.max_tokens)) as play:
            async for bursts in play:
                written += sum(b.tokens for b in bursts)
                known = wire.counts != "none"
                yield [Piece(b.channel, b.tokens if known else None, wire.token_text * b.tokens) for b in bursts]
        if fault and fault.kind == "hang":
            await Event().wait()
        if fault or not (wire.done or wire.finish_reason):
            raise StreamFault(f"scripted: {fault.kind if fault else 'no finish'}")
        yield [Piece(META, facts=facts(wire, prompt, written))]


class TruthServer:
    """A server process that plays a script. `url` is its base URL; it keeps what it really sent, and when."""

    def __init__(self, url: str) -> None:
        self.url = url

    def sent(self) -> dict[str, dict[str, Any]]:
        """By the `user` of each finished request (an option of the ask): a trace in the server's own stamps.

        `sent_ns` is the receipt of the request. On one machine the clock is the client's: CLOCK_MONOTONIC.
        """
        with urllib.request.urlopen(self.url + "/truth", timeout=10) as answer:
            traces: dict[str, dict[str, Any]] = json.load(answer)
        return traces


@contextmanager
def truth_server(script: Script) -> Iterator[TruthServer]:
    """Run a truth server in a process of its own. Raises PhaselineError if it does not start."""
    command = [sys.executable, "-m", "phaseline.lab.systems.truth_server", "--script", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout  # they are pipes
        try:
            process.stdin.write(script.to_json())
            process.stdin.close()
            url = process.stdout.readline().strip()
            if not url:
                raise PhaselineError(f"the truth server did not start: exit status {process.wait()}")
            yield TruthServer(url)
        finally:
            process.kill()
