"""What went wrong, in OpenAI's shape and with the status that its clients expect."""

from collections.abc import Mapping

import msgspec

from phaseline.errors import CapacityError, PhaselineError, RequestError, UnsupportedError
from phaseline.serve.door.objects import Error, ErrorFacts
from phaseline.serve.errors import Overloaded, TimedOut, Unavailable

# What clients call the fields that the engine's messages name.
_FIELDS = {"stop_ids": "stop_token_ids", "grammar.text": "response_format"}


class Problem(PhaselineError):
    """An answer that is an error: its `status`, its `headers`, and OpenAI's `facts` of it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        self.facts = ErrorFacts(message, type, param, code)

    def body(self) -> bytes:
        """The JSON object."""
        return msgspec.json.encode(Error(self.facts))


def refused(param: str, message: str) -> Problem:
    """400 for the field `param`."""
    return Problem(400, f"{param}: {message}", param=param)


def problem(error: PhaselineError) -> Problem:
    """The answer that one of our errors becomes: what the client asked wrong is 400, all else the server's own."""
    message = str(error)
    match error:
        case Problem():
            return error
        case CapacityError():
            return Problem(400, message, code="context_length_exceeded")
        case RequestError() | UnsupportedError():
            return _named(message)
        case Unavailable():
            return Problem(503, message, type="server_error", code="unavailable", headers={"Retry-After": "1"})
        case Overloaded(retry_after_ms=wait):
            headers = {"Retry-After": str(-(-wait // 1000)), "retry-after-ms": str(wait)}
            return Problem(429, message, type="rate_limit_error", code="overloaded", headers=headers)
        case TimedOut():
            return Problem(504, message, type="server_error", code="timeout")
    return Problem(500, message, type="server_error", code="engine_error")


def model_not_found(model: str, served: str) -> Problem:
    """404 for a model other than the one that is served."""
    message = f"The model `{model[:200]}` does not exist: this server has `{served}`."
    return Problem(404, message, param="model", code="model_not_found")


def _named(message: str) -> Problem:
    """400 that names the field, as far as the message does: the engine's begin "name = value: ..."."""
    name, equals, rest = message.partition(" = ")
    if not equals or " " in name:
        return Problem(400, message)
    name, bracket, place = name.partition("[")
    param = _FIELDS.get(name, name)
    return Problem(400, f"{param or name}{bracket}{place} = {rest}", param=param)
