"""The limits of our own engine, phase by phase and operation by operation: ceilings, and what interventions change."""

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phaseline.bounds import quantised
from phaseline.errors import CapacityError, RequestError
from phaseline.lab.claims import Claim, Intervention, Timed, judge
from phaseline.lab.experiments.base import Progress
from phaseline.lab.experiments.own import Own
from phaseline.lab.experiments.sweep import LEAST_ROUNDS
from phaseline.lab.op_groups import Floats, OpGroup, group_bounds, op_groups
from phaseline.lab.sparsity import Reading, allowed_win, mean_reading, reading
from phaseline.lab.stats import interleave, median, spread
from phaseline.lab.steps import StepBench, StepSize, step_bench
from phaseline.lab.wording import ms, percent

_EMPTY = 5  # empty steps per round; the least of all is what launching costs
_OUTPUT = 16  # tokens of streams that are watched for want of pages


@dataclass(frozen=True, slots=True)
class Subject:
    """A step whose limit is asked for, and one of more or fewer rows to hold it against."""

    phase: str
    size: StepSize
    other: StepSize | None

    @property
    def change(self) -> str:
        """In words, what the other step has more or less of."""
        assert self.other is not None
        rows = "rows" if self.phase == "prefill" else "streams"
        more = self.other.rows * self.other.streams > self.size.rows * self.size.streams
        return f"{'twice' if more else 'half'} the {rows}"

    @property
    def label(self) -> str:
        if self.phase == "prefill":
            return f"prefill of {self.size.rows} token{'s' * (self.size.rows > 1)}"
        return f"decode of {self.size.streams} stream{'s' * (self.size.streams > 1)} at context {self.size.start}"


@dataclass
class _Samples:
    """Seconds of whole steps, and of each of their operations."""

    seconds: list[float] = field(default_factory=list)
    ops: list[Floats] = field(default_factory=list)

    def add(self, seconds: float, ops: Floats) -> None:
        self.seconds.append(seconds)
        self.ops.append(ops)


class Regime:
    """Steps of the engine and of `variants` of it (weights or state held otherwise), in interleaved rounds."""

    name = "regime"

    def __init__(
        self,
        own: Own,
        variants: Mapping[str, Own],
        *,
        tokens: int = 512,
        context: int = 512,
        streams: Sequence[int] = (1, 8),
        rounds: int | None = None,
        budget_s: float = 25.0,
        seed: int = 0,
    ) -> None:
        if min(1 if rounds is None else rounds, tokens, context, *streams) < 1:
            raise RequestError(f"repeats = {rounds}, sizes {tokens}, {context}, {list(streams)}: at least 1 of each")
        self._owns = {"": own, **variants}
        self._wanted, self._budget_s, self._seed = rounds, budget_s, seed
        self.subjects, self._crowds = _plan(own, tokens, context, sorted(set(streams)))
        self._samples: dict[tuple[str, StepSize], _Samples] = {}
        self._empty: list[Floats] = []
        self._readings: dict[StepSize, list[Reading]] = {}
        self._watched: dict[int, dict[str, int]] = {}

    async def run(self, progress: Progress) -> None:
        own = self._owns[""]
        sizes = [size for s in self.subjects for size in (s.size, s.other) if size]
        cells = [("", size) for size in dict.fromkeys(sizes)]
        cells += [(name, s.size) for name in self._owns if name for s in self.subjects]
        own.expect([size.work(self._owns[name].kv_bytes) for name, size in cells])
        planned = (self._wanted or LEAST_ROUNDS) * len(cells)
        with ExitStack() as stack:
            benches: dict[str, StepBench] = {}
            for name, each in self._owns.items():
                progress(0, planned, f"warm-up {name}".rstrip())
                mine = [size for of, size in cells if of == name]
                benches[name] = stack.enter_context(step_bench(each.system, mine, self._seed))
                for size in mine:
                    benches[name].seconds(size)
                    await asyncio.sleep(0)  # lets Ctrl-C in
            done, started = 0, time.monotonic()
            for made, order in enumerate(interleave(cells, self._wanted or 3 * LEAST_ROUNDS, self._seed)):
                over = time.monotonic() - started > self._budget_s
                if self._wanted is None and over and made >= LEAST_ROUNDS:
                    break
                own.observe()
                self._empty += [benches[""].empty_op_seconds() for _ in range(_EMPTY)]
                for name, size in order:
                    progress(min(done, planned), max(done, planned), f"{name} {size.rows * size.streams} rows".strip())
                    self._samples.setdefault((name, size), _Samples()).add(*benches[name].op_seconds(size))
                    if not name:
                        found = reading(own.program, size.work(own.kv_bytes), own.system.executor.expert_reads())
                        self._readings.setdefault(size, []).extend([found] if found else [])
                    done += 1
                    await asyncio.sleep(0)
        for streams, context in self._crowds:
            self._watched[streams] = await _watch(own, streams, context, self._seed)
        progress(done, done, "done")

    def record(self) -> dict[str, Any]:
        known = [s for s in self.subjects if ("", s.size) in self._samples]
        if not known and not self._watched:
            return {"finding": "Nothing was measured.", "results": [], "ops": [], "traces": []}
        own = self._owns[""]
        for each in self._owns.values():
            each.share_ceilings(own)
        rows: list[dict[str, Any]] = []
        ops: list[dict[str, Any]] = []
        for subject in known:
            rows.append(self._row(subject))
            ops += self._op_rows(subject)
        rows += [_crowd_row(own, streams, context, self._watched[streams]) for streams, context in self._crowds]
        finding = " ".join([*(_sentence(row, ops) for row in rows), *self._sparse_sentences(rows)])
        return {"finding": finding, "results": rows, "ops": ops, "ceilings": own.ceilings.record(), "traces": []}

    def _sparse_sentences(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """What each step of a sparse model reads, and how far its bytes let a chunk be ahead of decode."""
        one = next((row for row in rows if (row["phase"], row["streams"]) == ("decode", 1)), None)
        for row in rows:
            if "sparse" not in row:
                continue
            many = Reading(**row["sparse"])
            yield f"{row['phase'][:1].upper()}{row['phase'][1:]} of {many.sentence()}."
            if row["phase"] == "prefill":
                allowed = allowed_win(self._owns[""].program, many)
                won = f", measured {row['tok_s'] / one['tok_s']:.2f} times decode's" if one and one["tok_s"] else ""
                yield f"By bytes a row may be read {allowed:.2f} times as fast as alone{won}."

    def _row(self, subject: Subject) -> dict[str, Any]:
        claim = judge(self._step("", subject.size), list(self._interventions(subject)))
        own, samples = self._owns[""], self._samples["", subject.size]
        middle, bounds = median(samples.seconds), own.bounds([subject.size.work(own.kv_bytes)])
        made = subject.size.rows * subject.size.streams
        readings = self._readings.get(subject.size)
        return {
            **({"sparse": mean_reading(readings).record()} if readings else {}),
            **_sizes(subject, own),
            "seconds": samples.seconds,
            "median_s": middle,
            "spread_s": spread(samples.seconds),
            "tok_s": made / middle,
            "flops": bounds.cost.flops,
            "bytes": bounds.cost.bytes,
            "bounds_s": {"compute": bounds.compute, "bandwidth": bounds.bandwidth, "launch": bounds.launch},
            **claim.record(),
            "interventions": [_factors(one) for one in self._interventions(subject)],
        }

    def _op_rows(self, subject: Subject) -> Iterator[dict[str, Any]]:
        own, samples = self._owns[""], self._samples["", subject.size]
        whole = median([float(ops.sum()) for ops in samples.ops])
        for group in op_groups(own.program):
            work = self._part("", subject.size, group)
            interventions = list(self._interventions(subject, group))
            yield {
                **_sizes(subject, own),
                "op": group.label,
                "count": len(group.numbers),
                "seconds": [group.total(ops) for ops in samples.ops],
                "median_s": work.seconds,
                "share": work.seconds / whole,
                "flops": work.bounds.cost.flops,
                "bytes": work.bounds.cost.bytes,
                **judge(work, interventions).record(),
                "interventions": [_factors(one) for one in interventions],
            }

    def _interventions(self, subject: Subject, group: OpGroup | None = None) -> Iterator[Intervention]:
        """More or fewer rows, then each variant: of a whole step, or of a group of its operations."""

        def timed(name: str, size: StepSize) -> Timed:
            return self._step(name, size) if group is None else self._part(name, size, group)

        before = timed("", subject.size)
        if subject.other and ("", subject.other) in self._samples:
            yield Intervention(subject.change, before, timed("", subject.other))
        for name, each in self._owns.items():
            if name and (name, subject.size) in self._samples:
                numbers = range(len(each.program.ops)) if group is None else group.numbers
                ops, others = self._owns[""].program.ops, each.program.ops
                alike = all(quantised(ops[n]) == quantised(others[n]) for n in numbers)
                yield Intervention(name, before, timed(name, subject.size), alike)

    def _step(self, name: str, size: StepSize) -> Timed:
        own, seconds = self._owns[name], self._samples[name, size].seconds
        return Timed(median(seconds), own.bounds([size.work(own.kv_bytes)]), spread(seconds) / median(seconds))

    def _part(self, name: str, size: StepSize, group: OpGroup) -> Timed:
        own, empty = self._owns[name], np.min(self._empty, axis=0)
        seconds = [group.total(ops) for ops in self._samples[name, size].ops]
        bounds = group_bounds(own.program, group, size.work(own.kv_bytes), own.ceilings, empty)
        return Timed(median(seconds), bounds, spread(seconds) / median(seconds))


def _plan(own: Own, tokens: int, context: int, streams: Sequence[int]) -> tuple[list[Subject], list[tuple[int, int]]]:
    """What is probed step by step, cut to what the engine holds; and the (streams, context) it has no room for."""
    longest = own.system.context - 1
    rows = min(tokens, own.chunk, longest)
    subjects = [Subject("prefill", StepSize(rows), StepSize(rows // 2) if rows > 1 else None)]
    crowds = []
    context = min(context, longest)
    for n in streams:
        if n > own.system.max_running:
            raise CapacityError(f"{n} streams: the engine was loaded for at most {own.system.max_running} at once")
        if not own.system.holds(n, context + 1):
            crowds.append((n, context))
            continue
        twice = 2 * n <= own.system.max_running and own.system.holds(2 * n, context + 1)
        other = StepSize(1, context, 2 * n) if twice else StepSize(1, context, n // 2) if n > 1 else None
        subjects.append(Subject("decode", StepSize(1, context, n), other))
    return subjects, crowds


async def _watch(own: Own, streams: int, context: int, seed: int) -> dict[str, int]:
    """Run streams for which there are not enough pages: in how many steps some waited though a seat was free."""
    rng, system = random.Random(seed), own.system
    for stream in range(streams):
        prompt = [rng.randrange(own.program.vocab) for _ in range(max(1, context - _OUTPUT))]
        system.start(stream, prompt, _OUTPUT)
    live, found = set(range(streams)), {"steps": 0, "waited": 0, "most": 0, "preempted": 0}
    try:
        while live:
            live -= {arrival.stream for arrival in system.poll() if arrival.last}
            running, waiting, preempted = system.line()
            found["steps"] += 1
            found["waited"] += waiting > 0 and running < min(streams, system.max_running)
            found["most"] = max(found["most"], running)
            found["preempted"] = max(found["preempted"], preempted)
            await asyncio.sleep(0)  # lets Ctrl-C in
    finally:
        for stream in live:
            system.cancel(stream)
    return found


def _crowd_row(own: Own, streams: int, context: int, seen: Mapping[str, int]) -> dict[str, Any]:
    subject = Subject("decode", StepSize(1, context, streams), None)
    short = seen["waited"] or seen["preempted"]
    evidence = [
        f"{streams} streams of {context + 1} positions do not fit the pool at once",
        f"at most {seen['most']} ran together, in {seen['waited']} of {seen['steps']} steps others waited for pages, "
        f"and streams were preempted {seen['preempted']} times",
    ]
    claim = Claim("capacity" if short else "unknown", None, False, tuple(evidence))
    return {**_sizes(subject, own), "seconds": [], "tok_s": None, **claim.record()} | {
        "median_s": None,
        "spread_s": None,
        "interventions": [],
        "watched": dict(seen),
    }


def _sizes(subject: Subject, own: Own) -> dict[str, Any]:
    return {
        "label": subject.label,
        "phase": subject.phase,
        "mode": own.mode,
        "chunk": own.chunk,
        "tokens": subject.size.rows,
        "context": subject.size.start,
        "streams": subject.size.streams,
    }


def _factors(one: Intervention) -> dict[str, Any]:
    """How an intervention changed the time, and how each resource's bound."""
    expected = {limit: one.expected(limit) for limit in ("compute", "bandwidth", "launch")}
    return {"change": one.change, "factor": one.factor, "expected": expected, "same_arithmetic": one.arithmetic}


def _sentence(row: Mapping[str, Any], ops: Sequence[Mapping[str, Any]]) -> str:
    what = row["label"][:1].upper() + row["label"][1:]
    sure = " (inferred)" if row["inferred"] else ""
    if row["limit"] == "capacity":
        return f"{what}: limited by capacity; {row['evidence'][-1]}."
    took = f"{what} takes {ms(row['median_s'])}"
    changed = "; ".join(f"{one['change']} x{one['factor']:.2f}" for one in row["interventions"])
    told = f"time by intervention: {changed}" if changed else "nothing was changed"
    mine = [op for op in ops if op["label"] == row["label"]]
    top = max(mine, key=lambda op: op["share"], default=None)
    most = f" Most of it, {percent(top['share'])}, is {top['op']} ({top['limit']})." if top else ""
    if row["limit"] == "unknown":
        return f"{took}: its limit is unknown, {row['evidence'][-1]} ({told}).{most}"
    return f"{took}: limited by {row['limit']}{sure}, whose ceiling explains {row['fraction']:.0%} ({told}).{most}"
