"""Requests with a grammar on their way into the engine: no step waits until one is compiled."""

import os
import socket
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from phaseline.engine.engine import Engine
from phaseline.engine.types import Request

if TYPE_CHECKING:
    from phaseline.engine.constraint import Constraint

_SWITCH_S = 1e-4  # that steps wait at most, each time they want Python back from a compilation
_NICENESS = 5  # a quarter of a core that the kernels want as well


@dataclass(slots=True)
class Job:
    """A request and what will have come of its grammar. `aborted`: nobody wants it any more."""

    request: Request
    constraint: "Future[Constraint | None]"
    aborted: bool = False


class Compiling:
    """Compiles one grammar after the other, in a thread that gives way to the steps.

    `bell` can be read from as long as there is something to take.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(1, "grammars", _give_way)
        self._jobs: list[Job] = []
        self.bell, self._rope = socket.socketpair()
        sys.setswitchinterval(_SWITCH_S)
        self._pool.submit(lambda: engine.grammars)  # built before somebody waits for it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.bell.close()
        self._rope.close()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, request: Request) -> None:
        """Begin with a request's grammar, after those of others."""
        job = Job(request, self._pool.submit(self._engine.constrain, request.params))
        self._jobs.append(job)
        job.constraint.add_done_callback(lambda _: self._rope.send(b"!"))

    def abort(self, request_id: str) -> None:
        """Mark a request that is here; its grammar is not begun with."""
        for job in self._jobs:
            if job.request.id == request_id:
                job.aborted = True
                job.constraint.cancel()

    def take(self) -> list[Job]:
        """The jobs that are done, in the order of their requests."""
        done = [job for job in self._jobs if job.constraint.done()]
        if done:
            self._jobs = [job for job in self._jobs if job not in done]
            self.bell.recv(len(done), socket.MSG_WAITALL)  # one that is done is about to ring
        return done


def _give_way() -> None:
    """Let the kernels have the cores; threads that this one starts do the same."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
