"""Requests and steps as an engine would report them, at moments that a test chooses."""

from dataclasses import dataclass, field
from typing import Any

from phaseline.engine.types import Delta, FinishReason, Request, SamplingParams
from phaseline.serve.live.lives import Life, Lives, Seen
from phaseline.serve.live.metrics import Metrics
from phaseline.serve.process.messages import StepReport

MS = 1_000_000  # nanoseconds
SECRET = "a word of an answer"


@dataclass
class Story:
    """The clock is in milliseconds."""

    lives: Lives = field(default_factory=Lives)
    metrics: Metrics = field(default_factory=Metrics)

    def arrive(self, at: float, request: str, prompt: int = 8, n: int = 1) -> Life:
        asked = Request(request, [5] * prompt, SamplingParams(n=n))
        return self.lives.arrived(asked, round(at * MS))

    def step(self, at: float, took: float, *deltas: Delta, **told: Any) -> None:
        report = step_report(at, took, deltas=list(deltas), **told)
        self.take(report, self.lives.read(report))

    def take(self, report: StepReport, seen: Seen) -> None:
        self.metrics.add(report, seen)


def step_report(at: float, took: float, **told: Any) -> StepReport:
    known: dict[str, Any] = {
        **{name: [] for name in ("prefill", "decode", "deltas", "progress", "failed")},
        **dict.fromkeys(("running", "waiting", "queued_prefill_tokens", "cached_tokens", "preemptions"), 0),
        "pages": [8, 2],
        "free_pages": [8, 2],
    }
    return StepReport(t_ns=round(at * MS), seconds=took / 1e3, **{**known, **told})


def tokens(request: str, *ids: int, index: int = 0, end: FinishReason | None = None, cached: int = 0) -> Delta:
    return Delta(request, index, ids, SECRET, finish_reason=end, cached_tokens=cached)
