"""How a request can end that the engine itself would have served."""

from phaseline.errors import PhaselineError


class Unavailable(PhaselineError):
    """Nothing can be taken now: the model is being loaded, or the server is about to stop."""


class Overloaded(PhaselineError):
    """A request that would wait too long, or make others; another try is worth it after `retry_after_ms`."""

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class EngineDied(PhaselineError):
    """The engine's process ended while a request was in its hands."""


class TimedOut(PhaselineError):
    """A request was not done in the time that a request has."""


class NotRead(PhaselineError):
    """Whoever asked does not take the answers as they come."""


class ProtocolError(PhaselineError):
    """Bytes between the processes that are no frame of theirs, or none that was expected."""
