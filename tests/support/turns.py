"""Whether other threads run while something is done: in calls that give the interpreter away, and in no others."""

import sys
import threading
from collections.abc import Callable

TRIES = 50  # on a busy machine another thread may not come to run while it could


def others_run_during(call: Callable[[], object]) -> bool:
    """Python is taken from no thread here, so another one has it only where `call` gives it away."""
    turns, stop = 0, threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not stop.wait(1e-4):
            turns += 1

    other, interval = threading.Thread(target=take_turns), sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        other.start()
        before = turns
        for _ in range(TRIES):
            call()
            if turns > before:
                return True
        return False
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        other.join()
