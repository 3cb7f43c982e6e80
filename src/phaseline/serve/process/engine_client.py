"""EngineClient: the engine's process as the server's process sees it."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from phaseline.engine.types import Request
from phaseline.engine.validate import check_id, validate
from phaseline.errors import PhaselineError
from phaseline.serve.config import ServeConfig
from phaseline.serve.errors import EngineDied, ProtocolError, TimedOut, Unavailable
from phaseline.serve.process.admission import Admission
from phaseline.serve.process.messages import (
    Abort,
    Close,
    Command,
    EngineFacts,
    Fatal,
    FrameReader,
    Load,
    Loading,
    Ready,
    Report,
    StepReport,
    frame,
    plain_events,
    read_report,
    submit,
)
from phaseline.serve.process.stream import Stream

_CLOSING_S = 5.0  # what a process has to end by itself
_MOST = 16 << 10  # bytes of unread reports: beside a step that has filled the caches, one costs as much as several


class State(Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"  # those that run go on, none is taken
    DEAD = "dead"


@dataclass(eq=False, frozen=True)
class _Watcher:
    reported: Callable[[StepReport], object]
    submitted: Callable[[Stream], object]
    lost: Callable[[], object]


class EngineClient:
    """Starts the engine's process, hands requests to it and their answers back. For one event loop, all on its thread.

    `facts` are of the engine that was last ready, `loading` says how far loading is.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.state = State.LOADING
        self.loading = Loading(0, 0)
        self.admission = Admission(config.max_queue, config.ttft_objective)
        self._facts: EngineFacts | None = None
        self._streams: dict[str, Stream] = {}
        self._watchers: tuple[_Watcher, ...] = ()
        self._unread = bytearray()  # reports whose texts have been passed on
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._fatal: Fatal | None = None
        self._heard_ns = 0  # when the latest report was made, by time.monotonic_ns
        self._settled = asyncio.Event()  # ready or gone
        self._gone = asyncio.Event()

    @property
    def facts(self) -> EngineFacts:
        """What the engine is. Raises Unavailable until it has once been ready."""
        if self._facts is None:
            raise Unavailable("the model is being loaded")
        return self._facts

    @property
    def in_flight(self) -> int:
        """Requests that are not done."""
        return len(self._streams)

    async def start(self) -> None:
        """Start a process and have it load the model; `state` says when it is done."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "phaseline.serve.process.engine_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the server
            )
        self.state, self.loading, self._fatal = State.LOADING, Loading(0, 0), None
        self._settled.clear()
        self._gone.clear()
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: _Link(self), sock=ours)
        self._send(Load(self.config.model, dict(self.config.load), self.config.ceilings, self.config.check_pages))

    def check(self) -> None:
        """Raise what `submit` would now of any request: Unavailable, or Overloaded where the queue is full."""
        if self.state is not State.READY:
            raise Unavailable(_WHY[self.state])
        self.admission.check()

    def submit(self, request: Request) -> Stream:
        """Hand a request over; its id must be new. The stream is to be left (`async with`), whatever happens.

        Raises RequestError or CapacityError if it can't be served as asked, Unavailable unless `state` is READY,
        Overloaded if too much waits already.
        """
        self.check()
        validate(request, vocab=self.facts.vocab, context=self.facts.context)
        check_id(request.id, self._streams)
        command = frame(submit(request))
        self.admission.admit(request.id, len(request.prompt), request.params.n)
        self._write(command)
        stream = self._streams[request.id] = Stream(request, self._leave, self.config.max_unread)
        patience = self.config.request_timeout
        stream.timer = asyncio.get_running_loop().call_later(patience, self._time_out, stream)
        for watcher in self._watchers:
            self._tell(watcher.submitted, stream)
        return stream

    def abort(self, request_id: str) -> None:
        """Cancel a request: its stream ends with FinishReason.ABORT, its pages are back by the next step."""
        if request_id in self._streams:
            self._send(Abort(request_id))

    def watch(
        self,
        callback: Callable[[StepReport], object],
        *,
        submitted: Callable[[Stream], object] = lambda stream: None,
        lost: Callable[[], object] = lambda: None,
    ) -> Callable[[], None]:
        """Call back with every report from now on, until the returned function is called; and, where asked for, with
        every request that is handed over, and when the engine's process is gone. Reports that bring nothing but text
        may come some at a time, and with `catch_up`."""
        watcher = _Watcher(callback, submitted, lost)
        self._watchers += (watcher,)

        def unwatch() -> None:
            self._watchers = tuple(other for other in self._watchers if other is not watcher)

        return unwatch

    def catch_up(self) -> None:
        """Take in the reports whose texts have been passed on."""
        unread, self._unread = self._unread, bytearray()
        try:
            for payload in FrameReader().feed(unread):
                report = read_report(payload)
                assert isinstance(report, StepReport)
                for delta in report.deltas:
                    if stream := self._streams.get(delta.request_id):
                        stream.passed(delta, report.t_ns)
                self._report(report)
        except ProtocolError as error:
            self._distrust(error)

    def drain(self) -> None:
        """Take no further request."""
        if self.state is not State.DEAD:
            self.state = State.DRAINING

    def fail_all(self, error: Exception) -> None:
        """End every request that is in flight."""
        for stream in list(self._streams.values()):
            stream.fail(error)
            self._leave(stream)

    async def ready(self) -> bool:
        """Wait until the process has loaded its model; False if it is gone instead."""
        await self._settled.wait()
        return not self._gone.is_set()

    async def gone(self) -> PhaselineError:
        """Wait until the process is gone; why it went: as it told, or EngineDied with what the system tells.

        Ends a process that has been ready and says nothing any more.
        """
        assert self._process
        while not self._gone.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), self.config.step_timeout / 4)
            self.catch_up()
            if self._settled.is_set() and time.monotonic_ns() - self._heard_ns > 1e9 * self.config.step_timeout:
                self.kill()
        code = await asyncio.to_thread(self._process.wait)
        if self._fatal:
            return self._fatal.error()
        how = f"signal {-code}" if code < 0 else f"status {code}"
        return EngineDied(f"the engine's process ended with {how}")

    async def close(self) -> None:
        """End the process, by force where it does not end by itself; live requests end with an error."""
        if self._process is None:
            return
        if not self._settled.is_set():  # it would not listen before all is loaded
            self.kill()
        self._send(Close())
        try:
            await asyncio.wait_for(self._gone.wait(), _CLOSING_S)
        except TimeoutError:
            self.kill()
        await asyncio.to_thread(self._process.wait)

    def kill(self) -> None:
        """End the process at once."""
        if self._process:
            self._process.kill()

    # Inside.

    def _send(self, command: Command) -> None:
        self._write(frame(command))

    def _write(self, command: bytes) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.write(command)

    def _take(self, report: Report) -> None:
        if self._unread:
            self.catch_up()
        if not isinstance(report, StepReport):
            return self._take_news(report)
        if report.prefill:
            self.admission.observe(report)
            for request_id, _, _ in report.prefill:
                if (stream := self._streams.get(request_id)) and not stream.began_ns:
                    stream.began_ns = report.began_ns
        for items in (report.progress, report.deltas):
            for item in items:
                if stream := self._streams.get(item.request_id):
                    stream.put(item, report.t_ns)
                    if stream.done:
                        self._leave(stream)
        for failed in report.failed:
            if stream := self._streams.get(failed.request_id):
                stream.fail(failed.error())
                self._forget(stream)
        self._report(report)

    def _report(self, report: StepReport) -> None:
        self._heard_ns = report.t_ns
        for watcher in self._watchers:
            self._tell(watcher.reported, report)

    def _take_news(self, report: Loading | Ready | Fatal) -> None:
        self._heard_ns = time.monotonic_ns()
        if isinstance(report, Loading):
            self.loading = report
        elif isinstance(report, Ready):
            self._facts = report.facts
            self.loading = Loading(self.loading.total, self.loading.total)  # some bytes of a file are no weights
            self.admission.start(report.facts.max_running)
            if self.state is State.LOADING:
                self.state = State.READY
            self._settled.set()
        else:
            self._fatal = report

    def _tell(self, call: Callable[..., object], *told: object) -> None:
        try:
            call(*told)
        except Exception as error:  # a watcher's defect is not to end the streams
            asyncio.get_running_loop().call_exception_handler({"message": "a watcher failed", "exception": error})

    def _leave(self, stream: Stream) -> None:
        """Nobody waits for more of a stream, or no more comes."""
        if self._streams.get(stream.request.id) is stream:
            if not stream.finished:
                self._send(Abort(stream.request.id))
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        del self._streams[stream.request.id]
        self.admission.release(stream.request.id)
        if stream.timer:
            stream.timer.cancel()

    def _time_out(self, stream: Stream) -> None:
        stream.fail(TimedOut(f"the request was not done within {self.config.request_timeout:g} seconds"))
        self._leave(stream)

    def _distrust(self, error: ProtocolError) -> None:
        print(f"phaseline: {error}", file=sys.stderr)
        self.kill()

    def _lost(self) -> None:
        """The process is gone, or about to go."""
        self.kill()
        self.catch_up()
        self.state, self._transport = State.DEAD, None
        self.fail_all(EngineDied("the engine's process ended while it served this request"))
        for watcher in self._watchers:
            self._tell(watcher.lost)
        self._settled.set()
        self._gone.set()


class _Link(asyncio.Protocol):
    """Bytes from the engine's process to the client's reports."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._reader = FrameReader()

    def data_received(self, data: bytes) -> None:
        """Between two steps of a model nothing of this is in a cache: what counts is how little is touched."""
        client = self._client
        if self._reader.begun or (events := plain_events(data, client._streams)) is None:
            return self._take(data)
        for taker, write, event in events:
            try:
                taker.open = write(event)
            except Exception as error:
                taker.failed(error)
        client._unread += data
        if len(client._unread) >= _MOST:
            client.catch_up()

    def _take(self, data: bytes) -> None:
        try:
            for payload in self._reader.feed(data):
                self._client._take(read_report(payload))
        except ProtocolError as error:
            self._client._distrust(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client._lost()


_WHY = {
    State.LOADING: "the model is being loaded: try again in a while",
    State.DRAINING: "the server is about to stop and takes no further requests",
    State.DEAD: "the engine's process has ended",
}
