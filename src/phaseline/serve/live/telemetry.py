"""What of the server can be watched: /metrics and /live, fed by the engine's reports."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phaseline.serve.errors import Unavailable
from phaseline.serve.live.exposition import CONTENT_TYPE
from phaseline.serve.live.feed import Feed
from phaseline.serve.live.lives import Life, Lives
from phaseline.serve.live.metrics import MODEL_LABELS, Metrics
from phaseline.serve.process.engine_client import EngineClient, State
from phaseline.serve.process.messages import StepReport
from phaseline.serve.process.stream import Stream

# Of the engine's facts.
_TOLD = ("policy", "chunk", "max_running", "context", "page_size", "threads", "level", "ceilings")
_MOST = 32  # reports that wait: beside a step whose weights have filled the caches, one alone costs as much as several


class Telemetry:
    """Joins the requests' lives, the metrics and the feed to a client. Reports are looked at some at a time, and in any
    case before anybody is told what they say.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._server = secrets.token_hex(4)  # so that who watches can tell a new server from a new connection
        self._lives, self.metrics = Lives(), Metrics()
        self._unread: list[StepReport] = []
        self._collected = ContextVar[list[Life] | None]("lives", default=None)
        self._feed = Feed(self._lives, self.metrics, self._facts, self._over, self.read)
        client.watch(self._reported, submitted=self._submitted, lost=self._lost)

    def routes(self) -> list[Route]:
        """/metrics and /live."""
        return [Route("/metrics", self._serve_metrics), Route("/live", self._serve_live)]

    def collect(self) -> list[Life]:
        """The lives of requests that this task, or one that it starts, hands over from now on."""
        lives: list[Life] = []
        self._collected.set(lives)
        return lives

    def read(self) -> None:
        """Look at the reports that have come. One that can't be read costs no other, and not whoever asks for it."""
        self._client.catch_up()
        reports, self._unread = self._unread, []
        for report in reports:
            try:
                seen = self._lives.read(report)
                self.metrics.add(report, seen)
                self._feed.add(report, seen)
            except Exception as error:
                told = {"message": "a report could not be read: a defect", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)

    async def _serve_metrics(self, _: Request) -> Response:
        self.read()
        model = {name: str(value) for name, value in self._facts().items()}
        known = all(name in model for name in MODEL_LABELS)
        return Response(self.metrics.text(model if known else {}), media_type=CONTENT_TYPE)

    async def _serve_live(self, _: Request) -> Response:
        if self._feed.full:
            raise Unavailable("as many watch as can: close another page")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._feed.watch(), media_type="text/event-stream", headers=headers)

    def _submitted(self, stream: Stream) -> None:
        life = self._lives.arrived(stream.request, stream.accepted_ns)
        self._feed.changed(life)
        if (collected := self._collected.get()) is not None:
            collected.append(life)

    def _reported(self, report: StepReport) -> None:
        self._unread.append(report)
        if len(self._unread) >= _MOST:
            self.read()

    def _lost(self) -> None:
        self.read()
        for life in self._lives.lost(time.monotonic_ns()):
            self.metrics.ended(life)
            self._feed.changed(life)

    def _over(self) -> bool:
        return self._client.state is State.DRAINING and not self._client.in_flight

    def _facts(self) -> dict[str, Any]:
        told = {"server": self._server, "state": self._client.state.value, "model": self._client.config.name}
        with suppress(Unavailable):
            facts = self._client.facts
            told |= {name: getattr(facts, name) for name in _TOLD}
        return told


class CountResponses:
    """Counts HTTP answers by status and by what `routes` calls their path; those it does not name are "other"."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Mapping[str, str]) -> None:
        self._app, self._metrics, self._routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        route = self._routes.get(scope["path"], "other")

        await self._app(scope, receive, telling_status(send, lambda status: self._metrics.responded(route, status)))


def telling_status(send: Send, tell: Callable[[int], object]) -> Send:
    """`send`, but `tell` is called with the status of the answer when it begins."""

    async def telling(message: Message) -> None:
        if message["type"] == "http.response.start":
            tell(message["status"])
        await send(message)

    return telling
