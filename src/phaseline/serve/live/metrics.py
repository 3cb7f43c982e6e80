"""What /metrics tells: counts, gauges and distributions of the engine's steps and of the requests' lives.

Every time is of the reports' clock and the requests' arrival: none is taken here.
"""

from collections.abc import Mapping

from phaseline import __version__
from phaseline.serve.live.exposition import Counter, Family, Gauge, Histogram, render
from phaseline.serve.live.lives import Life, Seen
from phaseline.serve.process.messages import StepReport

# Upper bounds in seconds: a step of a small model takes a millisecond, a long prompt most of a minute.
BOUNDS = (
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 60.0),
)
MODEL_LABELS = ("model", "policy", "level", "threads", "context", "chunk", "max_running")


def phase(report: StepReport) -> str | None:
    """prefill, decode or mixed; None of a report of no step."""
    if report.prefill:
        return "mixed" if report.decode else "prefill"
    return "decode" if report.decode else None


class Metrics:
    """All families: `add`, `ended` and `responded` fill them, `text` exposes them."""

    def __init__(self) -> None:
        self._info = Gauge("phaseline_build_info", "1, labelled with the version.", "version")
        self._info.set(1, __version__)
        self._model = Gauge(
            "phaseline_model_info",
            "1, labelled with what is served and how.",
            *MODEL_LABELS,
        )
        self._running = Gauge("phaseline_requests_running", "Completions that hold pages.")
        self._waiting = Gauge("phaseline_requests_waiting", "Requests in the queue, none of whose prompt is read.")
        self._queued = Gauge("phaseline_prefill_tokens_queued", "Prompt tokens that are still to be read.")
        self._pages = Gauge("phaseline_pages", "Pages there are, of each state group.", "group")
        self._used = Gauge("phaseline_pages_used", "Pages that live requests hold, of each state group.", "group")
        self._prefill = Counter("phaseline_prefill_tokens_total", "Rows computed to read prompts, also again.")
        self._decode = Counter("phaseline_decode_tokens_total", "Rows computed to continue answers.")
        self._prompt = Counter("phaseline_prompt_tokens_total", "Prompt tokens of requests with a first token.")
        self._cached = Counter("phaseline_cached_prompt_tokens_total", "Those that the prefix cache had.")
        self._generated = Counter("phaseline_generated_tokens_total", "Tokens of answers.")
        self._preempted = Counter("phaseline_preemptions_total", "Times that a request lost its pages to another.")
        self._ends = Counter("phaseline_requests_ended_total", "Requests that ended, by what ended them.", "reason")
        self._responses = Counter("phaseline_http_responses_total", "HTTP answers.", "route", "status")
        self.ttft = Histogram(
            "phaseline_time_to_first_token_seconds", "From a request's arrival to its first token.", BOUNDS
        )
        self.gaps = Histogram(
            "phaseline_inter_token_seconds",
            "Between tokens of one completion; a gap with k tokens counts as k of gap / k.",
            BOUNDS,
        )
        self._tpot = Histogram(
            "phaseline_time_per_output_token_seconds", "Mean gap of each completion of two tokens or more.", BOUNDS
        )
        self._whole = Histogram("phaseline_request_seconds", "From arrival to the last token of a completion.", BOUNDS)
        self._queue = Histogram(
            "phaseline_queue_seconds", "From arrival to the step that begins to read the prompt.", BOUNDS
        )
        self._step = Histogram("phaseline_step_seconds", "Time of a step, by what it computed.", BOUNDS, "phase")
        self._preemptions = 0  # as the engine last counted them
        self._latest: StepReport | None = None

    def add(self, report: StepReport, seen: Seen) -> None:
        """One report of the engine, and what it changed of the requests' lives."""
        self._latest = report
        if kind := phase(report):
            self._step.observe(report.seconds, kind)
        if report.prefill:
            self._prefill.add(sum(count for _, _, count in report.prefill))
        if report.decode:
            self._decode.add(len(report.decode))
        if report.preemptions != self._preemptions:
            known = self._preemptions if report.preemptions > self._preemptions else 0  # a new engine begins at 0
            self._preempted.add(report.preemptions - known)
            self._preemptions = report.preemptions
        self._generated.add(sum(len(delta.token_ids) for delta in report.deltas))
        self._follow(seen)

    def _measure(self, report: StepReport) -> None:
        """Gauges, of the latest report."""
        self._running.set(report.running)
        self._waiting.set(report.waiting)
        self._queued.set(report.queued_prefill_tokens)
        for group, (pages, free) in enumerate(zip(report.pages, report.free_pages, strict=True)):
            self._pages.set(pages, str(group))
            self._used.set(pages - free, str(group))

    def _follow(self, seen: Seen) -> None:
        for life in seen.admitted:
            if life.admitted_ns is not None:
                self._queue.observe((life.admitted_ns - life.arrived_ns) / 1e9)
        for life in seen.started:
            self._prompt.add(life.prompt)
            self._cached.add(life.cached)
            if life.first_ns is not None:
                self.ttft.observe((life.first_ns - life.arrived_ns) / 1e9)
        for gap in seen.gaps:
            self.gaps.observe(gap)
        for life, answer in seen.answered:
            self._whole.observe((answer.last_ns - life.arrived_ns) / 1e9)
            if answer.per_token is not None:
                self._tpot.observe(answer.per_token)
        for life in seen.ended:
            self.ended(life)

    def ended(self, life: Life) -> None:
        """A request is over."""
        self._ends.add(1, life.reason or "")

    def responded(self, route: str, status: int) -> None:
        """An HTTP answer went out."""
        self._responses.add(1, route, str(status))

    def text(self, model: Mapping[str, str]) -> str:
        """All of it as Prometheus reads it; `model` says what is served: empty while nothing is."""
        if self._latest:  # only when asked: steps are many
            self._measure(self._latest)
        self._model.clear()
        if model:
            self._model.set(1, *(model[name] for name in MODEL_LABELS))
        return render(family for family in vars(self).values() if isinstance(family, Family))
