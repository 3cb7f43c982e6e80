"""What the live page sees: server-sent events of JSON, at most ten a second, made once for all who watch.

An event `hello` holds everything there is to know; it comes first, after an engine's restart, and in place of what a
slow watcher has missed. Each `frame` after it tells what has changed. Requests are numbers, lengths and moments: no
text of a prompt or an answer passes here. Moments are milliseconds of the engine's clock.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from phaseline.serve.live.lives import Life, Lives, Seen
from phaseline.serve.live.metrics import BOUNDS, Metrics, phase
from phaseline.serve.process.messages import StepReport

EVERY = 0.1  # seconds between frames
MOST_WATCHERS = 64
_BEHIND = 20  # frames that wait for one watcher; then they are given up for a new hello
_STEPS = 500  # of one frame; earlier ones are only counted
_ALIVE = 5.0  # seconds of silence after which a comment keeps a connection
_WINDOW_NS = 1_000_000_000  # that rates are over

Step = tuple[float, float, list[tuple[int, int, int]], list[int]]


class Feed:
    """Watchers, and what they have not been told yet. While nobody watches, nothing is kept but the latest report, and
    nothing runs."""

    def __init__(
        self,
        lives: Lives,
        metrics: Metrics,
        facts: Callable[[], Mapping[str, Any]],
        over: Callable[[], bool],
        refresh: Callable[[], object],
    ) -> None:
        """`facts` says what is served, as plain data; where it changes, everybody gets a new hello. Once `over`,
        streams end. `refresh` brings what is known up to date, before anybody is told."""
        self._lives, self._metrics, self._facts, self._over, self._refresh = lives, metrics, facts, over, refresh
        self._watchers: set[_Watcher] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._told: Mapping[str, Any] = {}
        self._latest: StepReport | None = None
        self._recent = _Recent()
        self._forget()

    @property
    def full(self) -> bool:
        """Whether no further watcher is taken."""
        return len(self._watchers) >= MOST_WATCHERS

    def add(self, report: StepReport, seen: Seen) -> None:
        """One report of the engine, and what it changed of the requests' lives."""
        self._latest = report
        if not self._watchers:
            return
        self._fresh = True
        self._recent.add(report)
        for life in (*seen.admitted, *seen.started, *seen.ended):
            self._changed[life.number] = life
        if phase(report):
            if len(self._steps) == self._steps.maxlen:
                self._skipped += 1
            self._steps.append(self._step(report, {life.id: life for life in seen.ended}))

    def changed(self, life: Life) -> None:
        """A request has arrived, or ended without a step."""
        if self._watchers:
            self._changed[life.number] = life

    async def watch(self) -> AsyncIterator[bytes]:
        """Events for one watcher, until it goes or all is over."""
        watcher = _Watcher()
        self._refresh()
        if not self._watchers:
            self._told = self._facts()
            self._forget()
        self._watchers.add(watcher)
        watcher.put(self._hello())
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick())
        try:
            async for event in watcher:
                yield event
        finally:
            self._watchers.discard(watcher)

    async def _tick(self) -> None:
        while self._watchers:
            await asyncio.sleep(EVERY)
            self._refresh()
            if (facts := self._facts()) != self._told:
                self._told = facts
                self._send(self._hello())
            elif self._fresh or self._changed:
                self._send(self._frame())
            self._forget()
            if self._over():
                for watcher in self._watchers:
                    watcher.end()

    def _send(self, event: bytes) -> None:
        for watcher in self._watchers:
            if watcher.full:
                watcher.restart(self._hello())
            else:
                watcher.put(event)

    def _forget(self) -> None:
        """What has been told."""
        self._fresh = False  # whether a report has come
        self._steps: deque[Step] = deque(maxlen=_STEPS)
        self._skipped = 0
        self._changed: dict[int, Life] = {}

    def _step(self, report: StepReport, ended: Mapping[str, Life]) -> Step:
        def number(request_id: str) -> int:
            life = self._lives.get(request_id) or ended.get(request_id)
            return life.number if life else 0

        prefill = [(number(request_id), start, count) for request_id, start, count in report.prefill]
        return _ms(report.t_ns), round(report.seconds * 1e3, 3), prefill, [number(r) for r, _ in report.decode]

    def _hello(self) -> bytes:
        requests = [_told(life) for life in self._lives]
        fixed = {"bounds_ms": [round(1e3 * bound, 1) for bound in BOUNDS], **self._facts()}
        return _event("hello", {**fixed, "requests": requests, **self._now()})

    def _frame(self) -> bytes:
        requests = [_told(life) for life in self._changed.values()]
        steps = {"steps": list(self._steps), "skipped": self._skipped}
        return _event("frame", {**steps, "requests": requests, **self._now(), **self._recent.rates()})

    def _now(self) -> dict[str, Any]:
        """How things stand; times to first token and gaps since the server began, as counts in each bucket."""
        now: dict[str, Any] = {"ttft": self._metrics.ttft.counts(), "gaps": self._metrics.gaps.counts()}
        if report := self._latest:
            now |= {
                "t": _ms(report.t_ns),
                "running": report.running,
                "waiting": report.waiting,
                "queued_tokens": report.queued_prefill_tokens,
                "pages": [[total - free, total] for total, free in zip(report.pages, report.free_pages, strict=True)],
                "preemptions": report.preemptions,
            }
        return now


class _Watcher:
    """Events on their way to one connection."""

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._ended = False

    @property
    def full(self) -> bool:
        return len(self._events) >= _BEHIND

    def put(self, event: bytes) -> None:
        self._events.append(event)
        self._wake.set()

    def restart(self, hello: bytes) -> None:
        """Give up what waits."""
        self._events.clear()
        self.put(hello)

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._events or not self._ended:
            if self._events:
                yield self._events.popleft()
                continue
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), _ALIVE)
            except TimeoutError:
                yield b": alive\n\n"


class _Recent:
    """Steps of the last second."""

    def __init__(self) -> None:
        self._steps: deque[StepReport] = deque()
        self._now = 0

    def add(self, report: StepReport) -> None:
        self._now = report.t_ns
        if phase(report):
            self._steps.append(report)

    def rates(self) -> dict[str, Any]:
        """Tokens a second of each phase, over the steps that held some of it (None where there was no such step); the
        share of the second that steps of each kind took; streams in a step that decoded, on average."""
        while self._steps and self._steps[0].t_ns <= self._now - _WINDOW_NS:
            self._steps.popleft()
        spent = dict.fromkeys(("prefill", "decode", "mixed"), 0.0)
        rows, decoding = {"prefill": 0, "decode": 0}, 0
        for step in self._steps:
            spent[phase(step) or ""] += step.seconds
            rows["prefill"] += sum(count for _, _, count in step.prefill)
            rows["decode"] += len(step.decode)
            decoding += bool(step.decode)
        return {
            "rates": {name: rows[name] / (spent[name] + spent["mixed"]) if rows[name] else None for name in rows},
            "busy": {name: min(1.0, seconds) for name, seconds in spent.items()},
            "streams": rows["decode"] / decoding if decoding else None,
        }


def _told(life: Life) -> dict[str, Any]:
    """A request as watchers may know it."""
    moments = {"arrived": life.arrived_ns, "admitted": life.admitted_ns, "first": life.first_ns, "ended": life.ended_ns}
    return {
        "n": life.number,
        "label": life.label,
        "prompt": life.prompt,
        "cached": life.cached,
        "tokens": life.tokens,
        "reason": life.reason,
        **{name: None if t_ns is None else _ms(t_ns) for name, t_ns in moments.items()},
    }


def _ms(t_ns: int) -> float:
    return round(t_ns / 1e6, 3)


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
