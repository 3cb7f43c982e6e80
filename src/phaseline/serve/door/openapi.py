"""The API's description (OpenAPI 3.1), made of the very structs that are read and written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from phaseline.engine.validate import RANGES
from phaseline.serve.door.objects import (
    Answer,
    ChatChoice,
    Detokenized,
    Error,
    Health,
    Model,
    Models,
    Readiness,
    TextChoice,
    Tokenized,
)
from phaseline.serve.door.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

_REFUSALS = {
    400: "what was asked for is not valid or not supported",
    401: "an API key is needed",
    403: "the Host is not a name of this server",
    404: "no such model",
    408: "the body did not come in time",
    413: "the body is too large",
    415: "the body is not declared as JSON",
    429: "too much waits already; Retry-After and retry-after-ms say when to try again",
    500: "the engine failed under the request",
    503: "the model is being loaded, or the server is about to stop",
    504: "the request was not done in time",
}


@dataclass(frozen=True)
class _Operation:
    path: str
    does: str
    answer: Any
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    statuses: tuple[int, ...] = ()


_GENERATES = tuple(_REFUSALS)
_READS = (400, 401, 404, 408, 413, 415, 503)
_OPERATIONS = (
    _Operation("/v1/completions", "Continue a text", Answer[TextChoice], CompletionBody, True, _GENERATES),
    _Operation("/v1/chat/completions", "Answer a conversation", Answer[ChatChoice], ChatBody, True, _GENERATES),
    _Operation("/v1/models", "What is served", Models, statuses=(401, 503)),
    _Operation("/v1/models/{name}", "One model that is served", Model, statuses=(401, 404, 503)),
    _Operation("/tokenize", "Token ids of a text", Tokenized, TokenizeBody, statuses=_READS),
    _Operation("/detokenize", "The text of token ids", Detokenized, DetokenizeBody, statuses=_READS),
    _Operation("/health", "Whether the server is alive", Health),
    _Operation("/ready", "Whether the model is loaded", Readiness, statuses=(503,)),
)


def description(*, keys: bool) -> bytes:
    """The document as JSON. `keys`: whether an API key is needed."""
    types = [Error, *(o.answer for o in _OPERATIONS), *(o.body for o in _OPERATIONS if o.body)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    refs = dict(zip(types, schemas, strict=True))
    for component in (components["CompletionBody"], components["ChatBody"]):
        _tell_ranges(component["properties"])
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Phaseline", "version": "1"},
        "paths": {o.path: {"post" if o.body else "get": _operation(o, refs)} for o in _OPERATIONS},
        "components": {"schemas": components},
    }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return msgspec.json.encode(document)


def _tell_ranges(properties: Mapping[str, Any]) -> None:
    """Add to numbers what the engine accepts of them."""
    for name in properties.keys() & RANGES.keys():
        for alternative in properties[name]["anyOf"]:
            if alternative["type"] in ("integer", "number"):
                low = "exclusiveMinimum" if RANGES[name].above else "minimum"
                alternative |= {low: RANGES[name].low, "maximum": RANGES[name].high}


def _operation(operation: _Operation, refs: Mapping[Any, Any]) -> dict[str, Any]:
    done: dict[str, Any] = {"application/json": {"schema": refs[operation.answer]}}
    if operation.streams:
        done["text/event-stream"] = {}  # of chunks, which no schema of 3.1 can tell
    refusals = {
        str(status): {"description": _REFUSALS[status], "content": _json(refs[Error])}
        for status in sorted({403, *operation.statuses})
    }
    responses = {"200": {"description": "done", "content": done}} | refusals
    found: dict[str, Any] = {"summary": operation.does, "responses": responses}
    if operation.body:
        found["requestBody"] = {"required": True, "content": _json(refs[operation.body])}
    if "{name}" in operation.path:
        found["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return found


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
