"""`phaseline serve` from start to exit status: the engine's process, the socket, signals, drain."""

import asyncio
import errno
import gc
import logging
import math
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from ipaddress import ip_address

import uvicorn
import uvloop

from phaseline.errors import PhaselineError
from phaseline.files.model_file import open_model_file, open_tokenizer
from phaseline.files.tokenizer import Tokenizer
from phaseline.files.zoo import resolve
from phaseline.serve.config import ServeConfig
from phaseline.serve.door.app import create_app
from phaseline.serve.door.connection import Connection
from phaseline.serve.errors import EngineDied, Unavailable
from phaseline.serve.process.engine_client import EngineClient
from phaseline.serve.process.messages import EngineFacts

_DEATHS, _DEATHS_WITHIN_S = 3, 300.0  # of the engine's process; beyond, restarting it would only hide a defect
_BACKLOG = 1024  # connections that wait for their first look
_SWITCH_S = 1e-3  # that the loop waits at most, each time it wants Python back from a thread that reads a body
_FLUSH_S = 5  # for the last bytes to leave once all requests have ended


def run(config: ServeConfig) -> None:
    """Serve until a signal says otherwise; a second one ends the process at once.

    Raises a PhaselineError for what can't be served, and where the engine's process can't be kept alive.
    """
    sys.setswitchinterval(_SWITCH_S)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every write to a connection that is lost
    with _bound(config.host, config.port, config.idle_timeout) as sock:
        uvloop.run(_Server(config, sock).run())  # a fifth less of this process's time a token than asyncio's own


class _Server:
    def __init__(self, config: ServeConfig, sock: socket.socket) -> None:
        self._config = config
        self._sock = sock
        self._client = EngineClient(config)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            await self._client.start()
            tokenizer = await asyncio.to_thread(_read_tokenizer, self._config.model)
            address = self._sock.getsockname()[0]
            if not self._config.api_keys and not ip_address(address).is_loopback:
                warning = "phaseline: whoever reaches this machine may ask this server: give it an --api-key"
                print(warning, file=sys.stderr, flush=True)
            await self._serve(_Door(self._client, self._config, tokenizer, address))
        finally:
            await self._client.close()

    async def _serve(self, door: "_Door") -> None:
        gc.collect()
        gc.freeze()  # to look through all modules and the vocabulary again would hold up every stream
        serving = asyncio.create_task(door.serve([self._sock]))
        keeping = asyncio.create_task(self._keep_engine())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((serving, keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
        failed = keeping.exception() if keeping.done() else None
        keeping.cancel()
        if not failed:
            await self._drain()
        door.end()
        await serving
        stopping.cancel()
        if failed:
            raise failed

    async def _keep_engine(self) -> None:
        """Say when the engine is ready, and start it again when it dies; raise when that is no use."""
        deaths: deque[float] = deque(maxlen=_DEATHS)
        while True:
            if await self._client.ready():
                print(f"ready: {_summary(self._config, self._client.facts)}; Ctrl-C stops", flush=True)
            reason = await self._client.gone()
            deaths.append(time.monotonic())
            told = not isinstance(reason, EngineDied)  # and would tell the same again
            often = len(deaths) == _DEATHS and deaths[-1] - deaths[0] < _DEATHS_WITHIN_S
            if told or often or not self._config.restart:
                raise reason
            print(f"phaseline: {reason}; starting it again", flush=True)
            await self._client.start()

    async def _drain(self) -> None:
        """Let requests in flight end, as long as the configuration gives them."""
        self._client.drain()
        print(f"draining, in flight: {self._client.in_flight}; a second signal ends at once", flush=True)
        end = time.monotonic() + self._config.drain_timeout
        while self._client.in_flight and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._client.fail_all(Unavailable("the server stops: the request was not done in time"))

    def _signalled(self, number: int) -> None:
        if self._stop.is_set():
            self._client.kill()
            os._exit(128 + number)
        self._stop.set()


class _Door(uvicorn.Server):
    """uvicorn on a socket that is bound already, its signals handled here."""

    def __init__(self, client: EngineClient, config: ServeConfig, tokenizer: Tokenizer, address: str) -> None:
        self._ending = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                create_app(client, config, tokenizer, address),
                http=Connection,
                ws="none",
                backlog=_BACKLOG,
                lifespan="off",
                log_level="error",  # a log that clients could fill would hold up everybody
                access_log=False,
                server_header=False,
                timeout_keep_alive=math.ceil(config.idle_timeout),
                timeout_graceful_shutdown=_FLUSH_S,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        """Stop serving, soon."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """What uvicorn does ten times a second, as often as is of use: once, for the date."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), 1)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            host, port = sock.getsockname()[:2]
            print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)


def _summary(config: ServeConfig, facts: EngineFacts) -> str:
    chunk = f"chunks of {facts.chunk} tokens"
    if facts.itl_budget_ms is not None:
        chunk += f" within {facts.itl_budget_ms:g} ms"
    room = f"{' + '.join(map(str, facts.pages))} pages of {facts.page_size} positions in {facts.kv_type}"
    return (
        f"{config.name}, context {facts.context}, {chunk} ({facts.policy}), at most {facts.max_running} streams, "
        f"{room}, {facts.threads} threads ({facts.level})"
    )


def _bound(host: str, port: int, patience: float) -> socket.socket:
    """A socket bound to an address; its connections are lost when a peer takes nothing for `patience` seconds.

    PhaselineError if the address can't be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1e3 * patience))
        sock.bind(address)
        sock.listen(_BACKLOG)  # before this another server could bind to the same port
    except OSError as error:
        option = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise PhaselineError(f"cannot listen on {host}:{port}: {error.strerror}; choose another {option}") from None
    return sock


def _read_tokenizer(model: str) -> Tokenizer:
    with closing(open_model_file(resolve(model))) as file:
        return open_tokenizer(file)
