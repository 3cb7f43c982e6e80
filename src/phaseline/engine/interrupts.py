"""Ctrl-C, held back while the engine's books are open."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Gate:
    """Stands in the place of SIGINT's handler, `outer`, while engines work: what comes while it is shut waits."""

    def __init__(self, outer: Any) -> None:
        self.outer = outer
        self.users = 0  # engines
        self.shut = 0  # by so many blocks, one within the other
        self._held = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.shut:
            self._held = True
        else:
            self.outer(number, frame)

    def release(self) -> None:
        """Pass on what waits, unless the gate is shut."""
        if self._held and not self.shut:
            self._held = False
            self.outer(signal.SIGINT, None)


class Uninterrupted:
    """A block that an interrupt does not cut in half: it waits for the block's end, or for a part that lets it in.

    Python interrupts its main thread alone, between any two instructions; in other threads this does nothing. Blocks
    follow each other, in whatever threads. Since a handler takes long to set, it stays from one to the next while
    `busy()`, which is whether a further block of the main thread is to come; one that others set in its place meanwhile
    is left alone, and interrupts at once.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._main = threading.main_thread().ident
        self._gate: Gate | None = None  # that stands
        self._shut: Gate | None = None  # in a block

    def __enter__(self) -> Self:
        if threading.get_ident() == self._main:
            gate = self._gate = self._gate or _stand()
            gate.shut += 1
            self._shut = gate
        return self

    def __exit__(self, *error: object) -> None:
        gate, self._shut = self._shut, None
        if gate:
            if not self._busy():
                self._gate = None
                _leave(gate)
            gate.shut -= 1
            gate.release()

    def let_in(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A call, in a block, that may be left at any point."""
        gate = self._shut
        if not gate:
            return call(*args, **kwargs)
        gate.shut -= 1
        try:
            gate.release()
            return call(*args, **kwargs)
        finally:
            gate.shut += 1


def _stand() -> Gate:
    """The gate that stands, or a new one: where nothing handles interrupts, it has nothing to hold back."""
    handler = signal.getsignal(signal.SIGINT)
    gate = handler if isinstance(handler, Gate) else Gate(handler)
    if gate is not handler and callable(handler):
        signal.signal(signal.SIGINT, gate)
    gate.users += 1
    return gate


def _leave(gate: Gate) -> None:
    """Put back what stood there before the first user, when the last one leaves."""
    gate.users -= 1
    handler: Any = signal.getsignal(signal.SIGINT)
    if handler is gate and not gate.users:
        signal.signal(signal.SIGINT, gate.outer)
