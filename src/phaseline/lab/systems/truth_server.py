"""The truth server: plays a script to any OpenAI client, byte by byte, and remembers what it really sent.

    python -m phaseline.lab.systems.truth_server --port 0 --script script.json

prints its base URL. POST /v1/chat/completions and /v1/completions play the script, GET /truth tells what was sent.
"""

import argparse
import asyncio
import json
import selectors
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from phaseline.errors import PhaselineError
from phaseline.lab.systems.truth_player import Player, sleep_until
from phaseline.lab.systems.truth_script import Burst, Script, count_tokens
from phaseline.lab.systems.truth_wire import Speaker
from phaseline.lab.trace import META, Event, Trace

_LONG = b"x" * (1 << 16)
_REMEMBERED = 10_000  # requests


@asynccontextmanager
async def serving(script: Script, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str, None]:
    """Serve within this event loop, on the loopback interface; yields the base URL."""
    server = _Server(script)
    listener = await asyncio.start_server(server.accept, "127.0.0.1", port, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for task in server.connections:
            task.cancel()
        await asyncio.gather(*server.connections, return_exceptions=True)


class _Gone(Exception):
    """The client has closed the connection, or is to find it closed."""


class _Server:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._player = Player(script)
        self._sent: dict[str, Trace] = {}
        self.connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._converse(reader, writer))
        self.connections.add(task)
        task.add_done_callback(self.connections.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                lengths = [line.partition(":")[2] for line in head.splitlines() if line.startswith("content-length:")]
                body = await reader.readexactly(int(lengths[0]) if lengths else 0)
                received = time.monotonic_ns()
                path = head.split(" ")[1]
                if path.endswith("/completions"):
                    await self._complete(_Exchange(reader, writer, received), json.loads(body), "/chat/" in path)
                else:
                    _answer(writer, *self._page(path))
        except (_Gone, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    def _page(self, path: str) -> tuple[int, Any]:
        if path == "/truth":
            return 200, {user: trace.to_dict() for user, trace in self._sent.items()}
        if path == "/v1/models":
            models = [self._script.model] if self._script.model else ["one", "other"]
            return 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}
        return 404, {"error": {"message": f"no {path} here"}}

    async def _complete(self, exchange: "_Exchange", request: dict[str, Any], chat: bool) -> None:
        wire, fault = self._script.wire, self._script.fault
        prompts = [message["content"] for message in request["messages"]] if chat else [request["prompt"]]
        prompt, tokens = sum(map(count_tokens, prompts)), request.get("max_tokens", 16)
        await sleep_until(exchange.received_ns / 1e9 + wire.headers_at)
        if fault and fault.kind == "refuse":
            return _answer(exchange.writer, fault.status, {"error": {"message": "scripted refusal"}})
        if wire.usage == "refused" and "stream_options" in request:
            return _answer(exchange.writer, 400, {"error": {"message": "unknown field: stream_options"}})
        if not chat and any(burst.channel != "text" for burst in self._script.bursts):
            return _answer(exchange.writer, 400, {"error": {"message": "the script is for the chat API"}})
        asked = bool(request.get("stream_options", {}).get("include_usage"))
        model = str(request.get("model"))
        speaker = Speaker(wire, model=model, chat=chat, usage_asked=asked, prompt_tokens=prompt)
        play = self._player.play(exchange.received_ns / 1e9, prompt, tokens)
        try:
            if request.get("stream"):
                await self._stream(exchange, speaker, play, chat)
            else:
                async with aclosing(play):
                    bursts = [burst async for together in play for burst in together]
                _answer(exchange.writer, 200, speaker.whole(bursts))
        finally:
            user = str(request.get("user", len(self._sent)))
            self._sent[user] = exchange.trace(prompt, speaker.tokens)
            if len(self._sent) > _REMEMBERED:
                del self._sent[next(iter(self._sent))]

    async def _stream(
        self, exchange: "_Exchange", speaker: Speaker, play: AsyncGenerator[Sequence[Burst], None], chat: bool
    ) -> None:
        wire = self._script.wire
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {wire.content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
        exchange.send(head.encode())
        if wire.role and chat:
            await exchange.packets(speaker.role(), wire.cut, wire.pause)
        async with aclosing(play):
            async for bursts in play:
                await exchange.packets(b"".join(map(speaker.burst, bursts)), wire.cut, wire.pause, bursts)
        if self._script.fault:
            await self._fail(exchange, speaker, self._script.fault.kind)
        for event in speaker.closing():
            await exchange.packets(event, wire.cut, wire.pause)
        exchange.send(b"0\r\n\r\n")

    async def _fail(self, exchange: "_Exchange", speaker: Speaker, kind: str) -> None:
        if kind == "error":
            await exchange.packets(speaker.error())
        elif kind == "garbage":
            await exchange.packets(b'data: {"choices": \xff\x00 oops\n\n')
        elif kind == "huge":
            for _ in range(64):
                await exchange.packets(_LONG)
        elif kind == "hang":
            await exchange.reader.read()  # until the client goes away
        raise _Gone


class _Exchange:
    """One request: sends its answer and stamps what it sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received_ns: int) -> None:
        self.reader, self.writer, self.received_ns = reader, writer, received_ns
        self._events: list[Event] = []

    async def packets(
        self, data: bytes, cut: int | None = None, pause: float = 0.0, bursts: Sequence[Burst] = ()
    ) -> None:
        """Send bytes, cut in packets if asked; their bursts count as sent with the last one."""
        size = cut or len(data)
        for start in range(0, len(data), size):
            if start:
                await asyncio.sleep(pause)
            part = data[start : start + size]
            self.send(b"%x\r\n%b\r\n" % (len(part), part), bursts if start + size >= len(data) else ())
        await self.writer.drain()

    def send(self, data: bytes, bursts: Sequence[Burst] = ()) -> None:
        if self.writer.is_closing() or self.reader.at_eof():
            raise _Gone
        now = time.monotonic_ns()
        self._events += [Event(now, b.channel, b.tokens) for b in bursts] or [Event(now, META)]
        self.writer.write(data)  # goes out at once: asyncio sets TCP_NODELAY, and the buffer was drained

    def trace(self, prompt: int, output: int) -> Trace:
        end = time.monotonic_ns()
        return Trace(self.received_ns, end, tuple(self._events), prompt_tokens=prompt, output_tokens=output)


def _answer(writer: asyncio.StreamWriter, status: int, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)


async def _serve(script: Script, port: int) -> None:
    async with serving(script, port) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--script", required=True, help="a JSON file, or - for standard input")
    args = parser.parse_args()
    try:
        script = Script.from_json(sys.stdin.read() if args.script == "-" else Path(args.script).read_text("utf-8"))
    except (PhaselineError, OSError) as error:
        print(f"truth server: {error}", file=sys.stderr)
        return 2
    # select() takes its timeouts in microseconds; epoll, the default, would round each wait up to a millisecond
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with suppress(KeyboardInterrupt):
        loop.run_until_complete(_serve(script, args.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
