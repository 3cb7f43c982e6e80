"""Requests with a grammar on their way into the engine: no step waits until one is compiled."""

import socket
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from phaseline.engine.constraint import Constraint
from phaseline.engine.engine import Engine
from phaseline.engine.types import Request


@dataclass(slots=True)
class Job:
    """A request and what will have come of its grammar. `aborted`: nobody wants it any more."""

    request: Request
    constraint: "Future[Constraint | None]"
    aborted: bool = False


class Compiling:
    """Compiles one grammar after the other, in a thread that seldom holds Python's lock.

    `bell` can be read from as long as there is something to take.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(1)
        self._jobs: list[Job] = []
        self.bell, self._rope = socket.socketpair()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.bell.close()
        self._rope.close()

    def add(self, request: Request) -> None:
        """Begin with a request's grammar, after those of others."""
        job = Job(request, self._pool.submit(self._engine.constrain, request.params))
        self._jobs.append(job)
        job.constraint.add_done_callback(lambda _: self._rope.send(b"!"))

    def abort(self, request_id: str) -> None:
        """Mark a request that is here."""
        for job in self._jobs:
            job.aborted = job.aborted or job.request.id == request_id

    def take(self) -> list[Job]:
        """The jobs that are done, in the order of their requests."""
        done = []
        while self._jobs and self._jobs[0].constraint.done():
            done.append(self._jobs.pop(0))
            self.bell.recv(1)
        return done
