"""Both phases of a model on this machine: the main measurement.

Prefill at several lengths, decode at several contexts, and the ways to read a prompt side by side, in interleaved
rounds with the machine's ceilings measured in between.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phaseline.bounds import bounds
from phaseline.errors import CapacityError, RequestError
from phaseline.lab.drive import Job, drive
from phaseline.lab.metrics import chunk_schedule, trace_metrics
from phaseline.lab.records import provenance
from phaseline.lab.sparsity import Reading, chunk_wins, mean_reading, mixtures, reading
from phaseline.lab.stats import interleave, median, spread
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.lab.trace import Trace
from phaseline.machine import Ceilings, Machine
from phaseline.program.cost import step_cost
from phaseline.program.ir import Program
from phaseline.program.ops import Span, Work

MODES = ("walk", "layer", "eager", "chunk")
SPARSE_MODES = ("dispatch",)  # of models with experts
_DECODED = 16  # tokens per decode sample
_TIME_BUDGET_S = 45.0  # of a quick run's rounds; three rounds are always made
_LEAST_ROUNDS = 3
_LEAST_CONTEXT = 2 * _DECODED


@dataclass(frozen=True)
class Cell:
    """One thing to measure: a prompt of `tokens` read in one way, or decode around a `context` for some streams."""

    phase: str  # prefill | decode
    mode: str
    tokens: int  # prefill: prompt length; decode: tokens generated per sample
    context: int  # positions already stored
    streams: int
    chunk: int

    @property
    def label(self) -> str:
        size = f"{self.tokens} tokens" if self.phase == "prefill" else f"context {self.context} x {self.streams}"
        return f"{self.phase} {self.mode} {size}"

    def steps(self, kv_bytes: float) -> list[Work]:
        """The work of one sample: a prompt's chunks, or the decode step in the middle of the sample."""
        if self.phase == "decode":
            return [Work([Span(self.context, 1, 1)] * self.streams, kv_bytes)]
        pieces = chunk_schedule(self.tokens, 1 if self.mode == "walk" else self.chunk)
        return [Work([Span(a, b - a, int(b == self.tokens))], kv_bytes) for a, b in pieces]


@dataclass
class _Samples:
    seconds: list[float] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)  # of a sparse model's last steps


def plan_cells(context: int, chunk: int, *, full: bool, sparse: bool = False) -> list[Cell]:
    """What a quick or a full measurement covers on a model that holds `context` positions."""

    def fitting(*sizes: int) -> list[int]:
        return [s for s in sizes if s < context] or [context - 1]

    lengths = fitting(*(1 << n for n in range(4, 21))) if full else fitting(16, 64, 256, 512, 1024)
    if full and context - 1 > lengths[-1]:
        lengths.append(context - 1)
    compared, compared_modes = fitting(64, 256), ("layer", "eager", *(SPARSE_MODES if sparse else ()))
    cells = [Cell("prefill", "chunk", n, 0, 1, chunk) for n in lengths]
    cells += [Cell("prefill", mode, n, 0, 1, chunk) for mode in compared_modes for n in compared]
    cells.append(Cell("prefill", "walk", compared[0], 0, 1, 1))
    room = [c for c in ((16, 64, 256, 1024, 4096, 16384, context) if full else (64, 512, 2048)) if c <= context]
    contexts = sorted({min(c, context - _DECODED) for c in room}) or [context - _DECODED]
    cells += [Cell("decode", "chunk", _DECODED, c, 1, chunk) for c in contexts]
    cells.append(Cell("decode", "eager", _DECODED, contexts[0], 1, chunk))
    cells += [Cell("decode", "chunk", _DECODED, contexts[0], n, chunk) for n in ((4, 16) if full else (8,))]
    return cells


def measure_phases(
    system: PhaselineSystem,
    *,
    model: Mapping[str, Any],
    chunk: int = 512,
    mode: str | None = None,
    full: bool = False,
    repeats: int | None = None,
    seed: int = 0,
    kv_bytes: float = 2,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> dict[str, Any]:
    """Measure and return the record: model, machine with ceilings, build, results, phase ratios.

    Rows hold every sample in `seconds`: of a prefill, from sending the prompt to its first token; of a decode, the
    mean gap of one stream's tokens (TPOT). `mode` leaves out prompts read in other ways. A quick run ends early, after
    three rounds or more, when time is up.
    Several streams decode together only where a chunk holds all their prompts: else some would still read theirs.
    """
    if system.context < _LEAST_CONTEXT:
        raise CapacityError(
            f"a context of {system.context} positions is too short to measure: {_LEAST_CONTEXT} will do"
        )
    if repeats is not None and repeats < 1:
        raise RequestError(f"repeats = {repeats}: it must be at least 1")
    program = system.executor.program
    if mode in SPARSE_MODES and not mixtures(program):
        raise RequestError(f"mode {mode}: this model has no experts to read row by row")
    cells = [
        c
        for c in plan_cells(system.context, chunk, full=full, sparse=bool(mixtures(program)))
        if (c.streams == 1 or (c.streams <= system.max_running and c.streams * c.context <= chunk))
        and (mode in (None, c.mode) or (c.phase == "decode" and c.mode == "chunk"))
    ]
    rounds = repeats or (7 if full else 5)
    footprints = [int(step_cost(program, c.steps(kv_bytes)[0]).bytes) for c in cells if c.phase == "decode"]
    machine = Machine(system.executor, [*footprints, 256 << 20])
    samples = {c: _Samples() for c in cells}
    rng = random.Random(seed)
    # Decode samples reuse their prompt: the prefix cache reads it once, the rest of the time goes to decode.
    prompts = {c: _prompts(rng, program.vocab, c) for c in cells if c.phase == "decode"}
    for cell in cells[:1] + list(prompts):  # warm-up, not recorded; it also reads the decode samples' prompts
        progress(0, rounds * len(cells), f"warm-up: {cell.label}")
        _sample(system, cell, prompts.get(cell) or _prompts(rng, program.vocab, cell), chunk)
    ceilings = machine.measure()
    total, done, started = rounds * len(cells), 0, time.monotonic()
    made = 0
    for order in interleave(cells, rounds, seed):
        for cell in order:
            progress(done, total, cell.label)
            jobs = prompts.get(cell) or _prompts(rng, program.vocab, cell)
            seconds, traces = _sample(system, cell, jobs, chunk)
            samples[cell].seconds.append(seconds)
            samples[cell].traces += traces
            samples[cell].readings += _readings(system, cell, kv_bytes)
            done += 1
        ceilings = ceilings.best(machine.measure())
        made += 1
        if repeats is None and not full and made >= _LEAST_ROUNDS and time.monotonic() - started > _TIME_BUDGET_S:
            break
    progress(total, total, "done")
    results = [_row(program, c, samples[c], ceilings, kv_bytes) for c in cells]
    record = provenance(machine.describe() | {"ceilings": ceilings.record()}, system.build())
    found = {"rounds": made, "results": results, "phase_ratios": phase_ratios(results)}
    return {"model": dict(model), **record, **found, "chunk_wins": chunk_wins(program, results)}


def phase_ratios(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each mode: its prefill rate at the length nearest to 256 tokens, over one stream's decode rate at the
    shortest context.

    `marginal_tok_s` is the slope between the two longest prompts of that mode, which leaves fixed costs out.
    """
    decode = next(r for r in results if r["phase"] == "decode" and r["mode"] == "chunk" and r["streams"] == 1)
    ratios = []
    for mode in (*MODES, *SPARSE_MODES):
        rows = sorted((r for r in results if r["phase"] == "prefill" and r["mode"] == mode), key=lambda r: r["tokens"])
        if not rows:
            continue
        slope = None
        if len(rows) > 1:
            rise = median(rows[-1]["seconds"]) - median(rows[-2]["seconds"])
            slope = (rows[-1]["tokens"] - rows[-2]["tokens"]) / rise if rise > 0 else None
        at = min(rows, key=lambda r: abs(r["tokens"] - 256))
        ratios.append(
            {
                "mode": mode,
                "prefill_tokens": at["tokens"],
                "prefill_tok_s": at["tok_s"],
                "marginal_tok_s": slope,
                "decode_context": decode["context"],
                "decode_tok_s": decode["tok_s"],
                "ratio": at["tok_s"] / decode["tok_s"],
            }
        )
    return ratios


def _prompts(rng: random.Random, vocab: int, cell: Cell) -> list[Job]:
    if cell.phase == "prefill":
        return [Job([rng.randrange(vocab) for _ in range(cell.tokens)], 1)]
    # The sample's middle lies at the stated context.
    length = max(1, cell.context - cell.tokens // 2)
    return [Job([rng.randrange(vocab) for _ in range(length)], cell.tokens) for _ in range(cell.streams)]


def _sample(system: PhaselineSystem, cell: Cell, jobs: Sequence[Job], chunk: int) -> tuple[float, list[Trace]]:
    # A decode sample's prompt is not timed: it is read the fast way, whatever mode decodes.
    system.configure(cell.mode, cell.chunk if cell.phase == "prefill" else chunk)
    traces = drive(system, jobs)
    metrics = [trace_metrics(t) for t in traces]
    if cell.phase == "prefill":
        (only,) = metrics
        assert only.ttft is not None  # every job yields its token
        return only.ttft, traces
    gaps = [m.tpot for m in metrics if m.tpot is not None]
    return median(gaps), traces


def _readings(system: PhaselineSystem, cell: Cell, kv_bytes: float) -> list[Reading]:
    """Of a sample that was one step, or many alike: what that step read of a sparse model."""
    steps = cell.steps(kv_bytes)
    if len(steps) > 1:
        return []
    found = reading(system.executor.program, steps[0], system.executor.expert_reads())
    return [found] if found else []


def _row(program: Program, cell: Cell, samples: _Samples, ceilings: Ceilings, kv_bytes: float) -> dict[str, Any]:
    seconds = median(samples.seconds)
    least = bounds(program, cell.steps(kv_bytes), ceilings, cell.mode)
    limit, fraction = least.limit(seconds)
    made = cell.tokens if cell.phase == "prefill" else cell.streams
    return {
        "phase": cell.phase,
        "mode": cell.mode,
        "tokens": cell.tokens,
        "context": cell.context,
        "streams": cell.streams,
        "chunk": cell.chunk,
        "seconds": samples.seconds,
        "median_s": seconds,
        "spread_s": spread(samples.seconds),
        "tok_s": made / seconds,
        "flops": least.cost.flops,
        "bytes": least.cost.bytes,
        "limit": limit,
        "fraction": fraction,
        "bounds_s": {"compute": least.compute, "bandwidth": least.bandwidth, "launch": least.launch},
        "traces": [t.to_dict() for t in samples.traces],
        **({"sparse": mean_reading(samples.readings).record()} if samples.readings else {}),
    }
