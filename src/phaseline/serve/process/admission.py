"""Whether a request may wait for its turn, or had better be told at once when to come again."""

import math
from dataclasses import dataclass

from phaseline.serve.errors import Overloaded
from phaseline.serve.process.messages import StepReport

_HALF_LIFE_S = 10.0  # of steps that read prompts: what is older counts less than half in the rate
_CLASSES = 64  # of prompts by what is left of them: from a power of two to the next
_FIRST_MS, _LAST_MS = 1_000, 600_000  # bounds of what is told of when to come again


@dataclass(slots=True)
class _Guest:
    """One request that was admitted. `left` is what is still to be read of its prompt, as far as reports tell."""

    prompt: int
    seats: int
    left: int
    begun: bool = False


class Admission:
    """Keeps the queue short and promises of a first token true. It has no clock: reports tell what took how long.

    `max_queue`: requests that may wait beyond the `seats` of the engine that are free. `objective`: seconds in which a
    prompt is to be read, by the rate at which prompts were read lately; None: any time will do. The rate is of steps
    that left some of their prompts unread: short prompts say little of long ones, and count until there are such steps.
    What counts is what would be read before its first token: itself, prompts with no more left (to a factor of two),
    and as much again of longer ones, since every second step may be for one that is late. A prompt that finds no other
    one is always taken.

    Everything costs the same however many there are.
    """

    def __init__(self, max_queue: int, objective: float | None = None) -> None:
        self.max_queue = max_queue
        self.objective = objective
        self.rate: float | None = None  # prompt tokens a second, None until some were read
        self.start(seats=0)

    def start(self, seats: int) -> None:
        """An engine with so many seats is ready, and knows of no request; the rate is kept until it tells its own."""
        self._seats = seats
        self._guests: dict[str, _Guest] = {}
        self._left = [0] * _CLASSES  # tokens, by class
        self._seated = self._waiting = 0
        self._tokens = self._seconds = 0.0  # of steps that tell the rate, faded by their age
        self._full = False  # whether one of them left some of a prompt unread

    @property
    def waiting(self) -> int:
        """Requests of which no step has read yet."""
        return self._waiting

    @property
    def backlog(self) -> int:
        """Prompt tokens still to be read."""
        return sum(self._left)

    def check(self) -> None:
        """Raise Overloaded if the queue is full."""
        if self._waiting >= self.max_queue + max(0, self._seats - self._seated):
            said = f"the queue is full: {self._waiting} wait already, of at most {self.max_queue}"
            raise Overloaded(said, self._milliseconds(self.backlog / self._waiting))

    def admit(self, request_id: str, prompt: int, seats: int = 1) -> None:
        """Take a request of `prompt` tokens that needs so many seats, or raise Overloaded."""
        self.check()
        ahead = sum(self._left[: _class(prompt) + 1]) + prompt
        longer = self.backlog + prompt - ahead
        most = math.inf if self.objective is None or self.rate is None else self.objective * self.rate
        wait = ahead + min(longer, ahead)
        if wait > most and self.backlog:
            said = f"{wait} prompt tokens are to be read for a first token: {math.floor(most)} can be in time"
            raise Overloaded(said, self._milliseconds(self._surplus(prompt, ahead, most)))
        self._guests[request_id] = _Guest(prompt, seats, prompt)
        self._left[_class(prompt)] += prompt
        self._waiting += 1

    def observe(self, report: StepReport) -> None:
        """A step has run."""
        full = False
        for request_id, start, count in report.prefill:
            guest = self._guests.get(request_id)
            if guest is None:
                continue
            if not guest.begun:
                guest.begun = True
                self._waiting -= 1
                self._seated += guest.seats
            self._set_left(guest, max(0, guest.prompt - start - count))
            full = full or guest.left > 0
        read = sum(count for _, _, count in report.prefill)
        if read and report.seconds > 0:
            self._learn(read, report.seconds, full)

    def release(self, request_id: str) -> None:
        """A request has ended, however it did; nothing if it was not admitted, or was released before."""
        guest = self._guests.pop(request_id, None)
        if guest is None:
            return
        self._set_left(guest, 0)
        if guest.begun:
            self._seated -= guest.seats
        else:
            self._waiting -= 1

    def _learn(self, read: int, seconds: float, full: bool) -> None:
        if full and not self._full:
            self._full, self._tokens, self._seconds = True, 0.0, 0.0
        if full == self._full:
            kept = 0.5 ** (seconds / _HALF_LIFE_S)
            self._tokens = self._tokens * kept + read
            self._seconds = self._seconds * kept + seconds
            self.rate = self._tokens / self._seconds

    def _set_left(self, guest: _Guest, left: int) -> None:
        self._left[_class(guest.left)] -= guest.left
        self._left[_class(left)] += left
        guest.left = left

    def _surplus(self, prompt: int, ahead: int, most: float) -> float:
        """Tokens to be read, the shortest first, before a prompt that counts `ahead` tokens is taken."""
        surplus = min(self.backlog, self.backlog + prompt - most)
        return min(surplus, ahead - most / 2) if 2 * prompt <= most else surplus

    def _milliseconds(self, tokens: float) -> int:
        """Until so many prompt tokens have been read."""
        return min(max(_FIRST_MS, math.ceil(1e3 * tokens / self.rate) if self.rate else 0), _LAST_MS)


def _class(tokens: int) -> int:
    return min(tokens.bit_length(), _CLASSES - 1)
