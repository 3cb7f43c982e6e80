"""What is left of a request in the server's process once it has ended, however it did: nothing, at once.

A prompt in a cycle of references would stay until the garbage collector comes by, which may be after gigabytes of them.
"""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from weakref import ref

import pytest
from uvicorn import Config, Server

from phaseline.files.model_file import open_model_file, open_tokenizer
from phaseline.serve.config import ServeConfig
from phaseline.serve.door.app import create_app
from phaseline.serve.door.connection import Connection
from phaseline.serve.errors import TimedOut
from phaseline.serve.process.engine_client import EngineClient
from phaseline.serve.process.stream import Stream

SHORT = {"prompt": ["one", "two"], "max_tokens": 3, "ignore_eos": True}
ENDLESS = SHORT | {"max_tokens": 30_000}


@asynccontextmanager
async def serving_here(model: Path) -> AsyncIterator[tuple[EngineClient, tuple[str, int]]]:
    """A server in this process: its client of an engine's process, and its address."""
    config = ServeConfig(str(model), {"threads": 1})
    client = EngineClient(config)
    await client.start()
    with closing(open_model_file(model)) as file, socket.create_server(("127.0.0.1", 0)) as sock:
        app = create_app(client, config, open_tokenizer(file), "127.0.0.1")
        door = Server(Config(app, http=Connection, ws="none", lifespan="off", log_level="error"))
        serving = asyncio.create_task(door.serve([sock]))
        try:
            assert await client.ready()
            yield client, sock.getsockname()
        finally:
            door.should_exit = True
            await serving
            await client.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", ["done", "left", "failed", "refused"])
def test_nothing_of_a_request_waits_for_the_garbage_collector(tiny: Path, end: str, stream: bool) -> None:
    body = json.dumps((SHORT if end == "done" else ENDLESS) | {"stream": stream}).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    streams = list[ref[Stream]]()

    def running() -> bool:
        return len(streams) == 2 and all((stream := found()) and stream.first_ns for found in streams)

    async def main() -> None:
        async with serving_here(tiny) as (client, address):
            client.watch(lambda report: None, submitted=lambda stream: streams.append(ref(stream)))
            if end == "refused":  # the second prompt, once the first is handed over
                client.admission.objective, client.admission.rate = 1e-9, 1.0
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            if end in ("left", "failed"):
                await eventually(running)
            if end == "failed":
                client.fail_all(TimedOut("it took too long"))
            if end != "left":
                answer = await reader.read()
                assert (b"error" in answer) == (end != "done")
            writer.close()
            await eventually(lambda: bool(streams) and not any(found() for found in streams))

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)
