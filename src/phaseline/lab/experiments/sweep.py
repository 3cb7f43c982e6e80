"""Cells of streams over sizes, measured in interleaved rounds on one system or several, and what they show."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phaseline.errors import RequestError
from phaseline.lab.drive import drive_streams, follow
from phaseline.lab.experiments.base import Progress
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.prompts import WORDS, Vocabulary, random_asks
from phaseline.lab.stats import interleave, median, spread
from phaseline.lab.systems.base import Ask, StreamSystem
from phaseline.lab.trace import Trace
from phaseline.lab.workload import Workload

LEAST_ROUNDS = 3  # of a run that has a time budget
DECODED = 24  # tokens of a decode sample; its middle lies at the stated context
_MOST_SAMPLES = 1 << 20


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured together: one prompt of `tokens`, or `streams` answers of `tokens` around a `context`."""

    phase: str  # prefill | decode
    tokens: int
    context: int = 0
    streams: int = 1
    system: str = ""  # of the sweep's systems

    @property
    def label(self) -> str:
        size = f"{self.tokens} tokens" if self.phase == "prefill" else f"context {self.context} x {self.streams}"
        return " ".join(part for part in (self.system, self.phase, size) if part)


def prefill_cell(tokens: int, system: str = "") -> Cell:
    """A prompt up to its first token."""
    return Cell("prefill", tokens, system=system)


def decode_cell(context: int, streams: int = 1, system: str = "", tokens: int = DECODED) -> Cell:
    """Answers of streams that have stored `context` positions in the middle of them."""
    return Cell("decode", tokens, context, streams, system)


class Sweep:
    """Each cell once a round, in a random order. Every prefill prompt is a new one; decode prompts are the same in each
    round, so that a cache may serve them, which TPOT does not see.

    A cell in which a request fails is not asked again: its traces say why. `rounds` None: as many as the time allows.
    """

    def __init__(
        self,
        systems: Mapping[str, StreamSystem],
        cells: Sequence[Cell],
        *,
        rounds: int | None = None,
        budget_s: float = 30.0,
        vocabulary: Vocabulary = WORDS,
        seed: int = 0,
    ) -> None:
        if rounds is not None and rounds < 1:
            raise RequestError(f"repeats = {rounds}: it must be at least 1")
        self.samples: dict[Cell, list[list[Trace]]] = {cell: [] for cell in cells}
        self.rounds = 0
        self._systems, self._wanted, self._budget_s = systems, rounds, budget_s
        self._vocabulary, self._seed = vocabulary, seed
        self._asked = 0

    async def run(self, progress: Progress, between: Callable[[], None] = lambda: None) -> None:
        """Warm up, then measure; `between` is called before the first round and after each."""
        cells = list(self.samples)
        planned = (self._wanted or LEAST_ROUNDS) * len(cells)
        for name, system in self._systems.items():  # warm-up, not recorded
            progress(0, planned, f"warm-up {name}".rstrip())
            smallest = min((c for c in cells if c.system == name), key=lambda c: (c.tokens, c.context, c.streams))
            await follow(system, self._asks(smallest)[0])
        between()
        started, done = time.monotonic(), 0
        for order in interleave(cells, self._wanted or _MOST_SAMPLES, self._seed):
            for cell in order:
                progress(min(done, planned), max(done, planned), cell.label)
                if not failed(self.samples[cell]):
                    self.samples[cell].append(await self._sample(cell))
                done += 1
            between()
            self.rounds += 1
            over = time.monotonic() - started > self._budget_s
            if self._wanted is None and ((over and self.rounds >= LEAST_ROUNDS) or self.rounds >= 3 * LEAST_ROUNDS):
                break
        progress(done, done, "done")

    async def _sample(self, cell: Cell) -> list[Trace]:
        workload = Workload(self._asks(cell), max_concurrency=cell.streams)
        return await drive_streams(self._systems[cell.system], workload)

    def _asks(self, cell: Cell) -> list[Ask]:
        if cell.phase == "prefill":
            made = random_asks(_MOST_SAMPLES, cell.tokens, 1, vocabulary=self._vocabulary, seed=self._seed)
            self._asked += 1
            return [made[self._asked % _MOST_SAMPLES]]
        length = max(1, cell.context - cell.tokens // 2)
        made = random_asks(cell.streams, length, cell.tokens, vocabulary=self._vocabulary, seed=self._seed + 1)
        return list(made)


def failed(rounds: Sequence[Sequence[Trace]]) -> str | None:
    """Why a cell could not be measured, if it could not."""
    return next((trace.error for traces in rounds for trace in traces if trace.error is not None), None)


def sample_seconds(cell: Cell, traces: Sequence[Trace]) -> float | None:
    """What a sample shows: TTFT of a prefill, TPOT of one stream, or the step time of streams that decode together.

    The last is taken over the window in which all of them decode, and None where there is no such window: a stream had
    to wait for another's end.
    """
    if failed([traces]):
        return None
    if cell.phase == "prefill":
        return trace_metrics(traces[0]).ttft
    if cell.streams == 1:
        return trace_metrics(traces[0]).tpot
    arrivals = [[event for event in trace.events if event.bears_tokens] for trace in traces]
    if not all(arrivals):
        return None
    start, end = max(a[0].t_ns for a in arrivals), min(a[-1].t_ns for a in arrivals)
    tokens = sum(event.tokens or 1 for events in arrivals for event in events if start < event.t_ns <= end)
    return (end - start) / 1e9 * len(traces) / tokens if tokens else None


def queued(traces: Sequence[Trace]) -> bool:
    """Whether a stream had its first token only after another one had its last."""
    arrivals = [[event.t_ns for event in trace.events if event.bears_tokens] for trace in traces]
    known = [times for times in arrivals if times]
    return bool(known) and max(times[0] for times in known) > min(times[-1] for times in known)


def cell_row(cell: Cell, rounds: Sequence[Sequence[Trace]]) -> dict[str, Any]:
    """The record's row of a cell, as `measure` has them; what could not be measured is null, and `error` says why.

    tokens: of a prompt, as the server counts them where it does. tok_s: of all streams together. last_ttft_s: of the
    stream that waits longest. queued: a stream had its first token only after another one had its last.
    """
    seconds = [s for traces in rounds if (s := sample_seconds(cell, traces)) is not None]
    middle = median(seconds) if seconds else None
    made = cell.tokens if cell.phase == "prefill" else cell.streams
    firsts = [last for traces in rounds if (last := _last_ttft(traces)) is not None]
    counted = [trace.prompt_tokens for traces in rounds for trace in traces if trace.prompt_tokens is not None]
    if cell.phase == "prefill" and counted:
        made = round(median(counted))
    return {
        "phase": cell.phase,
        "system": cell.system or None,
        "tokens": made if cell.phase == "prefill" else cell.tokens,
        "asked_tokens": cell.tokens,
        "context": cell.context,
        "streams": cell.streams,
        "seconds": seconds,
        "median_s": middle,
        "spread_s": spread(seconds) if seconds else None,
        "tok_s": made / middle if middle else None,
        "cached_tokens": max((trace.cached_tokens or 0 for traces in rounds for trace in traces), default=None),
        "last_ttft_s": median(firsts) if firsts else None,
        "queued": any(queued(traces) for traces in rounds),
        "error": failed(rounds),
        "traces": [trace.to_dict() for traces in rounds for trace in traces],
    }


def _last_ttft(traces: Sequence[Trace]) -> float | None:
    known = [ttft for trace in traces if (ttft := trace_metrics(trace).ttft) is not None]
    return max(known, default=None)


def measured(rows: Sequence[Mapping[str, Any]], phase: str, system: str | None = None) -> list[Mapping[str, Any]]:
    """Rows of a phase that have a time, by rising size."""
    found = [r for r in rows if r["phase"] == phase and r["system"] == system and r["median_s"]]
    return sorted(found, key=lambda r: (r["streams"], r["context"], r["tokens"]))


def samples_of(rows: Sequence[Mapping[str, Any]], size: str) -> tuple[list[float], list[float]]:
    """Sizes (the rows' `size`) and seconds of every sample, for a fit; each row's samples in order of rounds."""
    pairs = [(row[size], seconds) for row in rows for seconds in row["seconds"]]
    return [float(s) for s, _ in pairs], [seconds for _, seconds in pairs]
