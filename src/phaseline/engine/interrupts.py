"""Ctrl-C, held back while the engine's books are open."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class Uninterrupted:
    """A block that an interrupt does not cut in half: it waits for the block's end, or for a part that lets it in.

    Python interrupts its main thread alone, between any two instructions; in other threads this does nothing.
    """

    def __init__(self) -> None:
        self._outer: Any = None  # the handler in whose place this one stands
        self._open = False
        self._held = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            outer = signal.getsignal(signal.SIGINT)
            if callable(outer):
                self._outer = outer
                signal.signal(signal.SIGINT, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        if self._outer:
            signal.signal(signal.SIGINT, self._outer)
            self._release()

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """A part of the block that may be left at any point."""
        self._open = True
        try:
            self._release()
            yield
        finally:
            self._open = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._open:
            self._outer(number, frame)
        else:
            self._held = True

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._outer(signal.SIGINT, None)
