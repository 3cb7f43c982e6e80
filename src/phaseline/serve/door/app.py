"""The ASGI app: routes over an engine's client."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from phaseline.errors import PhaselineError
from phaseline.files.tokenizer import Tokenizer
from phaseline.serve.config import ServeConfig
from phaseline.serve.door.answering import Answering
from phaseline.serve.door.asked import Asking
from phaseline.serve.door.guard_input import Guard
from phaseline.serve.door.hosts import known_hosts
from phaseline.serve.door.json_body import SMALL, check_json, decode
from phaseline.serve.door.objects import Health, Model, Models, Readiness
from phaseline.serve.door.openapi import description
from phaseline.serve.door.problems import Problem, model_not_found, problem
from phaseline.serve.door.prompts import Prompts
from phaseline.serve.door.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from phaseline.serve.live.page import page_routes
from phaseline.serve.live.request_log import Lines, RequestLog
from phaseline.serve.live.telemetry import CountResponses, Telemetry
from phaseline.serve.process.engine_client import EngineClient, State

_OPEN_PATHS = ("/health", "/ready", "/metrics")  # for everyone, key or not
_STDERR = 2
_READERS = 2  # threads that decode bodies and find tokens; more would wait for each other
_T = TypeVar("_T")
_Body = TypeVar("_Body", CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)


def create_app(client: EngineClient, config: ServeConfig, tokenizer: Tokenizer, address: str) -> ASGIApp:
    """Build the app of a server that listens on an IP address. What is wrong with a request is answered in OpenAI's
    shape, wherever it is found.
    """
    door = _Door(client, config, tokenizer)
    routes = [
        Route("/health", door.health, methods=["GET"]),
        Route("/ready", door.ready, methods=["GET"]),
        Route("/openapi.json", door.openapi, methods=["GET"]),
        Route("/v1/models", door.models, methods=["GET"]),
        Route("/v1/models/{name:path}", door.model, methods=["GET"]),
        Route("/v1/completions", door.completions, methods=["POST"]),
        Route("/v1/chat/completions", door.chat, methods=["POST"]),
        Route("/tokenize", door.tokenize, methods=["POST"]),
        Route("/detokenize", door.detokenize, methods=["POST"]),
    ]
    telemetry, page = Telemetry(client), page_routes()
    routes += [*telemetry.routes(), *page]
    handlers: dict[Any, Any] = {HTTPException: _no_route, PhaselineError: _refusal, Exception: _defect}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    open_paths = (*_OPEN_PATHS, *(route.path for route in page))
    hosts = known_hosts(config, address)
    bounds = {"max_body": config.max_body, "max_bodies": config.max_bodies}
    guarded = Guard(app, hosts=hosts, keys=config.api_keys, open_paths=open_paths, **bounds)
    names = {route.path: "/" if route in page else route.path for route in routes}
    counted = CountResponses(guarded, telemetry.metrics, names)
    return RequestLog(counted, names, telemetry, Lines(_STDERR)) if config.log_requests else counted


class _Door:
    """The handlers. Whatever takes longer than a moment runs in a thread."""

    def __init__(self, client: EngineClient, config: ServeConfig, tokenizer: Tokenizer) -> None:
        self._client, self._config = client, config
        self._prompts = Prompts(tokenizer)
        self._started = int(time.time())
        self._readers = ThreadPoolExecutor(_READERS, "read")
        self._reader_of_large = ThreadPoolExecutor(1, "read-large")  # nobody runs while one is decoded

    async def health(self, _: Request) -> Response:
        return _json(Health("ok"))

    async def ready(self, _: Request) -> Response:
        client, ready = self._client, self._client.state is State.READY
        answer = _json(Readiness(client.state.value, client.loading.done, client.loading.total), 200 if ready else 503)
        if not ready:
            answer.headers["Retry-After"] = "1"
        return answer

    async def openapi(self, _: Request) -> Response:
        return Response(description(keys=bool(self._config.api_keys)), media_type="application/json")

    async def models(self, _: Request) -> Response:
        return _json(Models([self._model()]))

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return _json(self._model())

    async def completions(self, request: Request) -> ASGIApp:
        asking, key = self._asking(), request.state.key
        asked = await self._read(_COMPLETION, request, lambda body: asking.completion(body, key))
        return Answering(self._client, asked, self._config.idle_timeout)

    async def chat(self, request: Request) -> ASGIApp:
        asking, key = self._asking(), request.state.key
        asked = await self._read(_CHAT, request, lambda body: asking.chat(body, key))
        return Answering(self._client, asked, self._config.idle_timeout)

    async def tokenize(self, request: Request) -> Response:
        context = self._client.facts.context
        return await self._read(_TOKENIZE, request, lambda body: _json(self._prompts.tokenize(body, context)))

    async def detokenize(self, request: Request) -> Response:
        context = self._client.facts.context
        return await self._read(_DETOKENIZE, request, lambda body: _json(self._prompts.detokenize(body, context)))

    async def _read(self, decoder: "msgspec.json.Decoder[_Body]", request: Request, call: Callable[[_Body], _T]) -> _T:
        """What `call` makes of the body, decoded and meant for this model."""
        check_json(request.headers)
        message, context = await request.receive(), self._client.facts.context
        sent = message.get("body", b"")  # all of it, for which `Guard` has waited; nothing of a client who has left

        def read() -> _T:
            body = decode(decoder, sent, context)
            if body.model is not None:
                self._check_model(body.model)
            return call(body)

        readers = self._readers if len(sent) <= SMALL else self._reader_of_large
        return await asyncio.get_running_loop().run_in_executor(readers, read)

    def _asking(self) -> Asking:
        """Raises what any request would meet with now: who is not taken is told before his words are read."""
        self._client.check()
        facts = self._client.facts
        return Asking(self._prompts, self._config.name, facts.context, self._config.max_queue + facts.max_running)

    def _model(self) -> Model:
        return Model(self._config.name, self._started, self._client.facts.context)

    def _check_model(self, name: str) -> None:
        if name != self._config.name:
            raise model_not_found(name, self._config.name)


_COMPLETION = msgspec.json.Decoder(CompletionBody)
_CHAT = msgspec.json.Decoder(ChatBody)
_TOKENIZE = msgspec.json.Decoder(TokenizeBody)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)


def _json(answer: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _problem(found: Problem) -> Response:
    return Response(found.body(), found.status, found.headers, "application/json")


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, PhaselineError)
    return _problem(problem(error))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return _problem(Problem(error.status_code, message, code=_CODES.get(error.status_code), headers=error.headers))


async def _defect(_: Request, __: Exception) -> Response:
    """What nobody foresaw; uvicorn's log has the traceback."""
    message = "the server failed on this request: a defect, whose traceback is in its log"
    return _problem(Problem(500, message, type="server_error", code="internal_error"))


_CODES = {404: "not_found", 405: "method_not_allowed"}
