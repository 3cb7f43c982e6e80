"""The engine's process: commands in, steps, one report of each. One Python thread does it all, since a step is often
shorter than Python takes to switch between two; another one works only while a grammar is compiled."""

import ctypes
import gc
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from functools import partial

from phaseline.engine.engine import Engine
from phaseline.engine.load import load
from phaseline.engine.types import Delta, FinishReason, Progress
from phaseline.errors import PhaselineError
from phaseline.execute.native import NativeExecutor
from phaseline.serve.errors import ProtocolError
from phaseline.serve.process.ceilings import phase_ceilings
from phaseline.serve.process.compiling import Compiling, Job
from phaseline.serve.process.messages import (
    MAX_FRAME,
    Abort,
    Close,
    Command,
    EngineFacts,
    Failed,
    Fatal,
    FrameReader,
    Load,
    Loading,
    Ready,
    Report,
    StepReport,
    Submit,
    frame,
    read_command,
    request_of,
)

IDLE_S = 1.0  # between the reports of an engine that has nothing to do
_PIECE = 1 << 18  # bytes of commands between two steps: a flood of them is not to hold up the streams


class Channel:
    """The engine's end of the socket. Sending waits for nobody until MAX_FRAME bytes are left behind."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader()
        self._outbox = bytearray()

    def receive(self, seconds: float, *bells: socket.socket) -> list[Command]:
        """The commands that have come, up to _PIECE bytes of them; if none, what comes within `seconds`, or until one
        of `bells` rings. EOFError once the other end is closed.
        """
        writers = [self._sock] if self._outbox else []
        readable, writable, _ = select.select([self._sock, *bells], writers, [], seconds)
        if writable:
            self._flush()
        if self._sock not in readable:
            return []
        piece = self._sock.recv(_PIECE)
        if not piece:
            raise EOFError
        return [read_command(payload) for payload in self._reader.feed(piece)]

    def send(self, report: Report, *, wait: bool = False) -> None:
        """Post a report, or what the socket takes of it now; the rest follows, unless `wait`."""
        self._outbox += frame(report)
        self._flush()
        while len(self._outbox) > (0 if wait else MAX_FRAME):  # a server that stands still for long stops this side too
            select.select([], [self._sock], [])
            self._flush()

    def _flush(self) -> None:
        while self._outbox:
            try:
                sent = self._sock.send(self._outbox, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            del self._outbox[:sent]


@dataclass(slots=True)
class Outcome:
    """What has come of requests since the last report."""

    deltas: list[Delta] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


class Worker:
    """Carries out commands on an engine."""

    def __init__(self, engine: Engine, channel: Channel, compiling: Compiling, *, check_pages: bool = False) -> None:
        self._engine = engine
        self._check_pages = check_pages
        self._channel = channel
        self._compiling = compiling
        self._outcome = Outcome()

    def serve(self) -> None:
        """Step while there is work, until the server says Close or is gone.

        Raises AssertionError where pages are checked and found to be lost or held twice.
        """
        while True:
            for command in self._channel.receive(0.0 if self._engine.has_work else IDLE_S, self._compiling.bell):
                if isinstance(command, Close):
                    return
                self._obey(command)
            for job in self._compiling.take():
                self._enter(job)
            self._engine.step()
            if self._check_pages:
                self._engine.scheduler.table.check()
            self._channel.send(self._report())

    def _obey(self, command: Command) -> None:
        if isinstance(command, Submit):
            take = partial(self._take, command.request_id)
            try:
                request = request_of(command)
                if request.params.grammar:
                    self._compiling.add(request)
                else:
                    self._engine.submit(request, take)
            except PhaselineError as error:
                take(error)
        elif isinstance(command, Abort):
            self._compiling.abort(command.request_id)
            self._engine.abort(command.request_id)
        else:
            raise ProtocolError(f"{type(command).__name__} is not expected once the model is loaded")

    def _enter(self, job: Job) -> None:
        """Submit a request whose grammar is compiled, unless it was cancelled since."""
        request = job.request
        take = partial(self._take, request.id)
        if job.aborted:
            for index in range(request.params.n):
                take(Delta(request.id, index, [], "", finish_reason=FinishReason.ABORT))
            return
        try:
            self._engine.submit(request, take, job.constraint.result())
        except PhaselineError as error:
            take(error)

    def _take(self, request_id: str, item: Delta | Progress | BaseException) -> None:
        """The sink of a request."""
        if isinstance(item, Delta):
            self._outcome.deltas.append(item)
        elif isinstance(item, Progress):
            self._outcome.progress.append(item)
        else:
            self._outcome.failed.append(Failed(request_id, type(item).__name__, str(item)))

    def _report(self) -> StepReport:
        outcome, self._outcome = self._outcome, Outcome()
        step, counts = self._engine.last_step, self._engine.counts
        return StepReport(
            t_ns=time.monotonic_ns(),
            seconds=step.seconds if step else 0.0,
            prefill=step.prefill if step else [],
            decode=step.decode if step else [],
            deltas=outcome.deltas,
            progress=outcome.progress,
            failed=outcome.failed,
            running=counts.running,
            waiting=counts.waiting + len(self._compiling),
            free_pages=counts.free_pages,
            pages=self._engine.scheduler.table.group_pages,
            queued_prefill_tokens=counts.queued_prefill_tokens,
            cached_tokens=counts.cached_tokens,
            preemptions=counts.preemptions,
        )


def facts_of(engine: Engine, command: Load) -> EngineFacts:
    """What the loaded engine is."""
    executor, scheduler, options = engine.executor, engine.scheduler, command.options
    native = executor if isinstance(executor, NativeExecutor) else None
    return EngineFacts(
        vocab=executor.program.vocab,
        context=scheduler.context,
        chunk=scheduler.chunk,
        max_running=scheduler.max_running,
        pages=scheduler.table.group_pages,
        page_size=scheduler.table.page_size,
        threads=native.team.size if native else 1,
        level=native.level if native else "numpy",
        kv_type=options.get("kv_type", "bf16"),
        policy=options.get("policy", "mixed"),
        itl_budget_ms=options.get("itl_budget_ms"),
        ceilings=phase_ceilings(engine, options.get("kv_type", "bf16")) if command.ceilings else None,
    )


def run(sock: socket.socket) -> int:
    """Load what the first command says, serve, and return the process's exit status."""
    channel = Channel(sock)
    try:
        commands: list[Command] = []
        while not commands:
            commands = channel.receive(IDLE_S)
        if len(commands) > 1 or not isinstance(commands[0], Load):
            raise ProtocolError("the first command is Load, and nothing follows before Ready")
        command = commands[0]
        loading = partial(_tell_loading, channel)
        with load(command.model, **command.options, progress=loading) as engine:
            gc.collect()
            gc.freeze()  # to look through all that loading made takes as long as some steps
            channel.send(Ready(facts_of(engine, command)))
            with Compiling(engine) as compiling:
                Worker(engine, channel, compiling, check_pages=command.check_pages).serve()
    except (EOFError, ConnectionError):  # the server has gone: nobody is left to serve
        return 1
    except (PhaselineError, OSError, MemoryError, AssertionError) as error:
        channel.send(Fatal(type(error).__name__, str(error) or "out of memory"), wait=True)
        return 2
    return 0


def _tell_loading(channel: Channel, done: int, total: int) -> None:
    channel.send(Loading(done, total))


def _depart_with_the_server() -> None:
    """Have the system end this process with its parent, wherever it is: in loading, or in a long step."""
    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def main() -> int:
    """Serve the socket whose descriptor is the argument. Who says when to stop is the server, not a signal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _depart_with_the_server()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        return run(sock)


if __name__ == "__main__":
    sys.exit(main())
