"""Every setting of `phaseline serve`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from phaseline.errors import RequestError

_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What is served, to whom, and within which bounds. Times in seconds, sizes in bytes.

    Raises RequestError for a value that makes no sense; what concerns the model is checked by `load`.
    """

    model: str  # as `load` takes it
    load: Mapping[str, Any] = field(default_factory=dict)  # further arguments of `load`
    served_name: str | None = None  # what clients call the model; None: its file's or folder's name
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    api_keys: tuple[str, ...] = ()  # none: everyone may ask
    allowed_hosts: tuple[str, ...] = ()  # names that a request's Host may have, besides the server's own
    max_queue: int = 256  # requests that wait for a seat
    ttft_objective: float | None = None  # requests that can't start to answer by then are refused
    request_timeout: float = 600.0  # of a whole request, from its acceptance to its last token
    idle_timeout: float = 60.0  # of a connection on which nothing moves
    step_timeout: float = 600.0  # an engine's process that says nothing for so long is ended
    drain_timeout: float = 30.0  # streams get so long to finish once the server is asked to stop
    restart: bool = True  # an engine process that dies
    ceilings: bool = False  # measure, before serving, what the machine allows each phase
    log_requests: bool = False  # to standard error, when they have ended
    check_pages: bool = False  # after every step; what is wrong with them ends the server
    max_body: int = 16 << 20
    max_bodies: int = 256 << 20  # of all requests under way
    max_unread: int = 1024  # answers that wait for a client who does not read; it is cut off beyond

    def __post_init__(self) -> None:
        _at_least(0, port=self.port, drain_timeout=self.drain_timeout)
        _at_least(2, step_timeout=self.step_timeout)  # who has nothing to do says so every second
        _at_least(1, max_queue=self.max_queue, max_unread=self.max_unread)
        _at_least(1, max_body=self.max_body, max_bodies=self.max_bodies)
        times = {"request_timeout": self.request_timeout, "idle_timeout": self.idle_timeout}
        _above_zero(**times, ttft_objective=1.0 if self.ttft_objective is None else self.ttft_objective)
        if self.port > 65535:
            raise RequestError(f"port = {self.port}: it must be at most 65535")
        if not all(self.api_keys):
            raise RequestError("an API key is empty: it would let everyone in")
        for host in self.allowed_hosts:
            if not _NAME.fullmatch(host):
                raise RequestError(f"allowed_hosts = {host!r}: it must be a name alone, without scheme, port or path")

    @property
    def name(self) -> str:
        """What clients call the model."""
        if self.served_name:
            return self.served_name
        path = PurePath(self.model)
        return path.stem if path.suffix == ".gguf" else path.name


def _at_least(low: int, **values: float) -> None:
    for name, value in values.items():
        if not value >= low:
            raise RequestError(f"{name} = {value!r}: it must be at least {low}")


def _above_zero(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise RequestError(f"{name} = {value!r}: it must be above 0")
