"""Errors that a user can act on: each message says what was refused, why, and what would work.

Every error Phaseline raises on purpose derives from `PhaselineError`; the command line turns one into
a single line on standard error and exit status 2. Anything else that escapes is a defect.
"""


class PhaselineError(Exception):
    """Base of all deliberate refusals."""


class FileFormatError(PhaselineError):
    """A file is truncated, malformed or hostile."""


class UnsupportedError(PhaselineError):
    """A tensor type, architecture, setting or instruction-set level that this build does not support."""


class RequestError(PhaselineError):
    """A request's parameters are invalid; nothing was scheduled."""


class CapacityError(PhaselineError):
    """Something does not fit the memory, the page pool or the context."""


class PullError(PhaselineError):
    """A model could not be fetched or its checksum does not match."""
