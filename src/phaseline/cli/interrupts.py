"""Ctrl-C: raised where it can be caught, or put off until nothing is left half done."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType


class Interrupt(KeyboardInterrupt):
    """What Ctrl-C raises within `own_interrupts`.

    A plain KeyboardInterrupt that has passed through exec(), which many an import uses, makes CPython end the process
    by the signal, even if it was caught and the program exits with a status of its own.
    """


@contextmanager
def own_interrupts() -> Iterator[Callable[[], bool]]:
    """Within it Ctrl-C raises `Interrupt`, unless it is ignored or handled otherwise already.

    Yields a function that tells whether it did: code that is interrupted may raise something else on its account.
    """
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise Interrupt

    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with _handler(press) if default else nullcontext():
        yield lambda: pressed


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C only makes the yielded function true; a second one interrupts."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise Interrupt
        pressed = True

    with _handler(press):
        yield lambda: pressed


@contextmanager
def _handler(press: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
