"""/live: what watchers are told, when, and what they never are."""

import asyncio
import http.client
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from phaseline.engine.types import Delta, FinishReason
from phaseline.serve.live import feed as feed_module
from phaseline.serve.live.feed import Feed
from phaseline.serve.live.lives import Seen
from phaseline.serve.process.messages import Failed, StepReport
from support.serve_story import MS, SECRET, Story, step_report, tokens
from support.server import Server, eventually, serving

Event = tuple[str, dict[str, Any]]


@dataclass
class Watched(Story):
    """A story that a feed tells."""

    facts: dict[str, Any] = field(default_factory=lambda: {"model": "m", "state": "ready"})
    over: bool = False

    def __post_init__(self) -> None:
        self.feed = Feed(self.lives, self.metrics, lambda: dict(self.facts), lambda: self.over, self.refresh)
        self.unread: list[StepReport] = []

    def arrive(self, at: float, request: str, prompt: int = 8, n: int = 1) -> Any:
        self.feed.changed(life := super().arrive(at, request, prompt, n))
        return life

    def step(self, at: float, took: float, *deltas: Delta, **told: Any) -> None:
        self.unread.append(step_report(at, took, deltas=list(deltas), **told))

    def refresh(self) -> None:
        """The feed is told of reports when it asks."""
        unread, self.unread = self.unread, []
        for report in unread:
            self.take(report, self.lives.read(report))

    def take(self, report: StepReport, seen: Seen) -> None:
        super().take(report, seen)
        self.feed.add(report, seen)


def run(job: Callable[[Watched], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await job(Watched())

    asyncio.run(limited())


def parsed(event: bytes) -> Event:
    name, data, *rest = event.decode().split("\n")
    assert rest == ["", ""]
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def told(events: AsyncIterator[bytes]) -> Event:
    event = await anext(events)
    assert SECRET.encode() not in event
    return parsed(event)


def test_a_hello_says_how_things_stand_and_frames_what_changes() -> None:
    async def job(story: Watched) -> None:
        story.arrive(100, "cmpl-0123456abc-0", prompt=8)
        story.step(130, 10, prefill=[("cmpl-0123456abc-0", 0, 6)], running=1, free_pages=[6, 2])
        events = story.feed.watch()
        name, hello = await told(events)
        assert name == "hello" and hello["model"] == "m" and hello["running"] == 1
        assert hello["t"] == 130 and hello["pages"] == [[2, 8], [0, 2]]
        (request,) = hello["requests"]
        assert request["label"] == "456abc" and request["prompt"] == 8 and request["n"] == 1
        assert [request[moment] for moment in ("arrived", "admitted", "first", "ended")] == [100, 120, None, None]

        story.arrive(140, "cmpl-other", prompt=3)
        story.step(150, 20, tokens("cmpl-0123456abc-0", 7, cached=4), prefill=[("cmpl-0123456abc-0", 6, 2)], waiting=1)
        end = tokens("cmpl-0123456abc-0", 8, end=FinishReason.STOP, cached=4)
        story.step(158, 8, end, prefill=[("cmpl-other", 0, 3)], decode=[("cmpl-0123456abc-0", 0)])
        name, frame = await told(events)
        assert name == "frame" and frame["t"] == 158 and frame["skipped"] == 0
        assert frame["steps"] == [[150, 20, [[1, 6, 2]], []], [158, 8, [[2, 0, 3]], [1]]]
        first, other = sorted(frame["requests"], key=lambda request: request["n"])
        assert first["first"] == 150 and first["ended"] == 158 and first["reason"] == "stop"
        assert first["tokens"] == 2 and first["cached"] == 4
        assert other["arrived"] == 140 and other["admitted"] == 150 and other["reason"] is None
        assert sum(frame["ttft"]) == sum(frame["gaps"]) == 1
        assert frame["gaps"][hello["bounds_ms"].index(10.0)] == 1

    run(job)


def test_rates_are_of_the_last_second() -> None:
    async def job(story: Watched) -> None:
        events = story.feed.watch()
        await told(events)
        story.step(100, 50, prefill=[("a", 0, 999)])
        story.step(1200, 100, prefill=[("a", 0, 60)])
        story.step(1400, 200, prefill=[("b", 0, 30)], decode=[("a", 0), ("c", 0)])
        story.step(1500, 100, decode=[("a", 0), ("b", 0), ("c", 0), ("d", 0)])
        _, frame = await told(events)
        assert frame["rates"] == pytest.approx({"prefill": 300.0, "decode": 20.0})
        assert frame["busy"] == pytest.approx({"prefill": 0.1, "decode": 0.1, "mixed": 0.2}) and frame["streams"] == 3
        story.step(2450, 0)
        _, frame = await told(events)
        assert frame["rates"]["prefill"] is None and frame["rates"]["decode"] == pytest.approx(40)

    run(job)


def test_steps_between_two_frames_are_told_together() -> None:
    async def job(story: Watched) -> None:
        events = story.feed.watch()
        await told(events)
        began = asyncio.get_running_loop().time()
        for at in range(1000):
            story.step(at, 1, decode=[("a", 0)])
        _, frame = await told(events)
        assert asyncio.get_running_loop().time() - began >= feed_module.EVERY * 0.9
        assert len(frame["steps"]) + frame["skipped"] == 1000 and frame["skipped"] > 0
        assert frame["steps"][-1][0] == 999

    run(job)


def test_who_watches_nothing_costs_nothing() -> None:
    async def job(story: Watched) -> None:
        events = story.feed.watch()
        await told(events)
        await events.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(feed_module.EVERY * 2)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        story.arrive(1, "a")
        story.step(2, 1, tokens("a", 1), prefill=[("a", 0, 8)])
        events = story.feed.watch()
        assert (await told(events))[1]["requests"][0]["first"] == 2
        story.step(3, 1)
        assert (await told(events))[1]["steps"] == []  # none of what was before

    run(job)


def test_many_watchers_share_each_frame() -> None:
    async def job(story: Watched) -> None:
        watchers = [story.feed.watch() for _ in range(20)]
        for events in watchers:
            await told(events)
        story.step(1, 1, decode=[("a", 0)])
        frames = [await anext(events) for events in watchers]
        assert all(frame is frames[0] for frame in frames)

    run(job)


def test_a_watcher_who_does_not_read_is_told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "EVERY", 0.001)

    async def job(story: Watched) -> None:
        slow, quick = story.feed.watch(), story.feed.watch()
        await told(slow)
        await told(quick)
        for at in range(200):
            story.step(at, 1, decode=[("a", 0)])
            assert (await told(quick))[0] == "frame"
        waiting = [await told(slow) for _ in range(2)]
        assert [name for name, _ in waiting] == ["hello", "frame"]
        assert waiting[0][1]["t"] > 100

    run(job)


def test_changed_facts_are_told_to_everybody_and_the_end_ends_all() -> None:
    async def job(story: Watched) -> None:
        first, second = story.feed.watch(), story.feed.watch()
        await told(first)
        story.facts["state"] = "draining"
        await told(second)  # a newcomer's hello is not the others' hello
        assert (await told(first))[1]["state"] == "draining"
        story.over = True
        assert [name async for name, _ in _all(first)] == []
        assert {name async for name, _ in _all(second)} <= {"hello"}

    async def _all(events: AsyncIterator[bytes]) -> AsyncIterator[Event]:
        async for event in events:
            yield parsed(event)

    run(job)


def test_requests_that_end_without_a_token_are_told_too() -> None:
    async def job(story: Watched) -> None:
        events = story.feed.watch()
        await told(events)
        story.arrive(1, "a")
        story.arrive(2, "b")
        story.step(3, 0, failed=[Failed("a", "RequestError", SECRET)])
        story.refresh()
        for life in story.lives.lost(4 * MS):
            story.feed.changed(life)
        _, frame = await told(events)
        assert [(r["n"], r["reason"], r["ended"]) for r in frame["requests"]] == [(1, "error", 3), (2, "error", 4)]

    run(job)


def test_over_http(server: Server) -> None:
    with closing(server.connect()) as connection:
        connection.request("GET", "/live")
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
        name, hello = read_event(answer)
        assert name == "hello" and hello["state"] == "ready" and hello["chunk"] == 512 and hello["requests"] == []
        name, frame = read_event(answer)
        assert name == "frame" and frame["running"] == 0 and frame["steps"] == []
        body = {"model": "tiny", "prompt": ["sea", "the sea"], "max_tokens": 3, "ignore_eos": True}
        made = server.ask("/v1/completions", body).json["id"]
        told: dict[int, dict[str, Any]] = {}
        while len([request for request in told.values() if request["reason"]]) < 2:
            told |= {request["n"]: request for request in read_event(answer)[1]["requests"]}
        assert [request["label"] for request in told.values()] == [made[-6:]] * 2  # one can find one's own
        assert {request["tokens"] for request in told.values()} == {3}
    samples = server.ask("/metrics")
    assert samples.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'phaseline_model_info{model="tiny"' in samples.body


def test_nobody_is_shown_who_has_left(server: Server) -> None:
    ended = ended_requests(server)
    body = {"model": "tiny", "prompt": "the sea", "max_tokens": 30_000, "ignore_eos": True, "stream": True, "n": 2}
    for read in (0, 1, 4):
        with closing(server.connect()) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            for _ in range(read):
                answer.readline()
    eventually(lambda: ended_requests(server) == ended + 3)
    with closing(server.connect()) as connection:
        connection.request("GET", "/live")
        assert read_event(connection.getresponse())[1]["requests"] == []


def ended_requests(server: Server) -> int:
    text = server.ask("/metrics").body.decode()
    return sum(int(count) for count in re.findall(r"requests_ended_total{.*} (\d+)", text))


def test_a_server_that_stops_ends_the_streams_of_those_who_watch(tiny: Path) -> None:
    with serving(tiny) as server, closing(server.connect()) as connection:
        connection.request("GET", "/live")
        answer = connection.getresponse()
        assert read_event(answer)[1]["state"] == "ready"
        assert server.stop() == 0
        *_, last = answer.read().rstrip(b"\n").split(b"\n\n")  # raises unless the stream came to its end
        assert parsed(last + b"\n\n")[1]["state"] == "draining"
        assert server.process.communicate()[1] == ""


def read_event(answer: http.client.HTTPResponse) -> Event:
    lines = b""
    while not lines.endswith(b"\n\n"):
        lines += answer.readline()
    return parsed(lines)
