"""The HTTP client under the OpenAI system: servers that speak HTTP well, badly or not at all, and TLS."""

import asyncio
import json
import re
import socket
import ssl
import struct
import subprocess
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.timeouts import Timeouts
from phaseline.lab.systems.truth_script import Script, steady
from phaseline.lab.systems.truth_server import serving
from support.speakers import CHUNK, DONE, STREAM, Answering, Speaker, counted, listening
from support.streams import ASK, Stream, follow, follow_and_close

TEXTS = Script(steady(0.01, 0.01, 4))


def streams_from(speak: Speaker, streams: int = 1, **settings: Any) -> list[Stream]:
    """Streams from such a server, one after another."""

    async def ask() -> list[Stream]:
        async with listening(speak) as url:
            system = OpenAISystem(url, "truth", timeouts=Timeouts(5, 5, 5, 10), **settings)
            try:
                return [await follow(system) for _ in range(streams)]
            finally:
                await system.close()

    return asyncio.run(ask())


def test_a_refused_connection() -> None:
    async def ask() -> Stream:
        async with serving(TEXTS) as url:
            pass  # nobody listens there any more
        return await follow_and_close(OpenAISystem(url, "truth"))

    assert re.fullmatch(r"cannot connect to http://127.0.0.1:\d+: Connection refused", str(asyncio.run(ask()).fault))
    nowhere = asyncio.run(follow_and_close(OpenAISystem("http://no..host", "truth")))
    assert "cannot connect to http://no..host" in str(nowhere.fault)


@pytest.mark.parametrize(
    ("base", "path"),
    [("", "/v1/completions"), ("/", "/v1/completions"), ("/v1/", "/v1/completions"), ("/a/v2", "/a/v2/completions")],
)
def test_what_is_asked(base: str, path: str) -> None:
    heads: list[str] = []
    bodies: list[dict[str, Any]] = []

    async def ask() -> None:
        async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            bodies.append(json.loads(await reader.read(1 << 16)))

        async with listening(note) as url:
            system = OpenAISystem(url + base, "m", api="completions", api_key="secret")
            await follow(system, Ask([1, 2], 3, min_tokens=3, ignore_eos=True, options={"seed": 7, "model": "n"}))

    asyncio.run(ask())
    (head,), (body,) = heads, bodies
    assert head.startswith(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "\r\nAuthorization: Bearer secret\r\n" in head and "\r\nAccept-Encoding: identity\r\n" in head
    assert body == {
        "model": "n",
        "prompt": [1, 2],
        "max_tokens": 3,
        "min_tokens": 3,
        "ignore_eos": True,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed the connection before it answered"),
        (b"SSH-2.0-hello\r\n\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n" + STREAM + b"\r\n<html>\n", "not a server-sent event: '<html>'"),
        (b"HTTP/1.1 200 OK\r\n" + STREAM + b"\r\ndata: [1]\n\n", "makes no sense"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "no content type, not text/event-stream: 'hi'"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", "answered 302 Found"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 70000, "headers of the answer are endless"),
    ],
)
def test_what_is_no_such_server(answer: bytes, said: str) -> None:
    (stream,) = streams_from(Answering([answer, None]))
    assert said in str(stream.fault)


def test_a_connection_that_is_reset() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + STREAM + b"\r\n" + CHUNK)
        await asyncio.sleep(0.1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    (stream,) = streams_from(reset)
    assert stream.content and "broke" in str(stream.fault) and "reset" in str(stream.fault)


def test_connections_are_reused_where_they_can_be() -> None:
    late_end = [b"HTTP/1.1 200 OK\r\n%bTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (STREAM, len(DONE), DONE)]
    no_end = counted(DONE).replace(b"Length: ", b"Length: 9")
    old = counted(DONE).replace(b"HTTP/1.1", b"HTTP/1.0")
    server = Answering(
        [b"HTTP/1.1 100 Continue\r\n\r\n", counted(DONE)],
        [*late_end, 0.05, b"0\r\n\r\n"],
        [no_end],  # it says that more follows [DONE], and sends nothing
        [counted(DONE), None],  # closed without notice
        [counted(DONE) + b"junk"],
        [counted(DONE).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)],
        [old],
        [counted(DONE)],
    )
    streams = streams_from(server, 8)
    assert [(stream.fault, len(stream.content)) for stream in streams] == [(None, 1)] * 8
    assert server.connections == [0, 0, 0, 1, 2, 3, 4, 5]


def test_closing_a_stream_closes_its_connection() -> None:
    async def ask() -> None:
        gone = asyncio.get_running_loop().create_future()

        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n" + STREAM + b"\r\n" + CHUNK)
            await reader.read()  # until the client goes away
            gone.set_result(None)

        async with listening(speak) as url:
            async with aclosing(OpenAISystem(url, "truth").generate(ASK)) as batches:
                await anext(batches)
            async with asyncio.timeout(5):
                await gone

    asyncio.run(ask())


def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=truth"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def ask(verify: bool | str) -> Stream:
        async with serving(TEXTS, tls=context) as url:
            return await follow_and_close(OpenAISystem(url, "truth", verify=verify))

    assert "certificate verify failed" in str(asyncio.run(ask(True)).fault)
    for verify in (False, str(certificate)):
        seen = asyncio.run(ask(verify))
        assert seen.fault is None and len(seen.content) == 4
    with pytest.raises(RequestError, match="cannot read certificates"):
        OpenAISystem("https://127.0.0.1", verify=str(tmp_path / "none"))


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://a",
        "http://",
        "http://a:b@c",
        "http://a b",
        "http://a/?q",
        "http://a:99999",
        "http://a\r\nX: y",
    ],
)
def test_what_is_no_base_url(url: str) -> None:
    with pytest.raises(RequestError, match="not the base URL"):
        OpenAISystem(url)
