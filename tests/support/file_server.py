"""A local HTTP server of model files that misbehaves on request."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BODY = b"GGUF" + bytes(range(256)) * 2000
SHA256 = hashlib.sha256(BODY).hexdigest()


@dataclass
class Resource:
    """One path of the server. Each of `faults` spoils one answer: n >= 0 cuts the body after n bytes, -404 is a 404."""

    body: bytes = BODY
    etag: str | None = '"v1"'
    faults: list[int] = field(default_factory=list)
    ranges: bool = True
    if_range: bool = True
    refuse_ranges: bool = False  # 416 to every range
    chunked: bool = False
    length: int | None = None  # a false Content-Length; negative: none at all
    skew: int = 0  # a 206 answer starts that far from where it should
    headers: dict[str, str] = field(default_factory=dict)
    gate: threading.Event | None = None  # waited for before the body


class Server(ThreadingHTTPServer):
    """Serves `resources` and remembers the headers of every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.resources: dict[str, Resource] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []

    def add(self, path: str, resource: Resource) -> str:
        self.resources[path] = resource
        return self.url(path)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}{path}"

    def asked(self, header: str) -> list[str | None]:
        return [headers.get(header) for _, headers in self.requests]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.close_connection = True
        self.server.requests.append((self.path, dict(self.headers)))
        resource = self.server.resources.get(self.path, Resource(faults=[-404]))
        fault = resource.faults.pop(0) if resource.faults else len(resource.body)
        start = self._range_start(resource)
        if fault < 0:
            self._refuse(-fault, resource.headers)
        elif start and (resource.refuse_ranges or start >= len(resource.body)):
            self._refuse(416, {})
        else:
            self._send(resource, start, fault)

    def _refuse(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _range_start(self, resource: Resource) -> int:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        fresh = not resource.if_range or self.headers.get("If-Range") == resource.etag
        return int(asked[1]) + resource.skew if asked and resource.ranges and fresh else 0

    def _send(self, resource: Resource, start: int, cut: int) -> None:
        body = resource.body[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(resource.body) - 1}/{len(resource.body)}")
        if resource.etag:
            self.send_header("ETag", resource.etag)
        length = len(body) if resource.length is None else resource.length
        if resource.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif length >= 0:
            self.send_header("Content-Length", str(length))
        for name, value in resource.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if resource.gate:
            resource.gate.wait()
        sent = body[:cut]
        if resource.chunked:
            sent = b"%x\r\n%b\r\n" % (len(sent), sent) + (b"" if cut < len(body) else b"0\r\n\r\n")
        with suppress(ConnectionError):  # the client may have gone away on purpose
            self.wfile.write(sent)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    """A running server."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def files(cache: Path) -> list[str]:
    """Names of what a cache holds, locks aside."""
    return sorted(file.name for file in cache.rglob("*") if file.is_file() and file.suffix != ".lock")
