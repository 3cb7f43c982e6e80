"""What steps of several streams cost: mixed ones over their parts, 16 streams over 1, and what passes between calls.

mixed        one step of 8 decode rows and a chunk, over the two run apart: below 1, weights read once are shared
16 streams   aggregate decode of 16 streams over that of one; its rate of bytes over the read rate at its footprint
between      the share of a decode step's wall time in which no native call computes: engine, sampler, Python
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from timing import show, summary, take_turns

from phaseline.engine.load import load
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.machine import Machine
from phaseline.program.cost import decode_work, step_cost
from phaseline.program.step import Segment, Step, Want

DECODES, CHUNKS, BEHIND = 8, (64, 256), 128
STREAMS, CONTEXTS = 16, (64, 512)
MIXED = {64: 0.92, 256: 0.98}  # the most that is hoped for


class Bench:
    """Builds steps over streams that have all read the same tokens, up to the longest context."""

    def __init__(self, system: PhaselineSystem, slots: Sequence[int], pages: Any, stored: int) -> None:
        self._system, self._slots, self._pages = system, slots, pages
        rng = random.Random(0)
        self._tokens = [rng.randrange(system.executor.program.vocab) for _ in range(stored + 1)]
        for slot in slots:
            self.run([Segment(slot, 0, self._tokens[:stored], Want.NONE)])

    def run(self, segments: Sequence[Segment]) -> None:
        self._system.executor.forward(Step(segments), self._pages)

    def decodes(self, streams: int, context: int) -> list[Segment]:
        """One token of each stream."""
        return [Segment(slot, context, self._tokens[context : context + 1]) for slot in self._slots[:streams]]

    def chunk(self, tokens: int) -> list[Segment]:
        """The start of a prompt, in the last slot."""
        return [Segment(self._slots[-1], 0, self._tokens[:tokens], Want.NONE)]


def mixed(bench: Bench, rounds: int) -> dict[str, Any]:
    """For each chunk, the mixed step's time over the sum of its parts'."""
    decodes, cells = bench.decodes(DECODES, BEHIND), dict[str, Callable[[], Any]]()
    cells["decode"] = lambda: bench.run(decodes)
    for tokens in CHUNKS:
        chunk = bench.chunk(tokens)
        cells[f"chunk {tokens}"] = lambda chunk=chunk: bench.run(chunk)
        cells[f"mixed {tokens}"] = lambda chunk=chunk: bench.run([*decodes, *chunk])
    seconds = take_turns(cells, rounds)
    parts = {n: zip(seconds[f"mixed {n}"], seconds["decode"], seconds[f"chunk {n}"], strict=True) for n in CHUNKS}
    return {f"{DECODES} decode rows + chunk {n}": summary([m / (d + c) for m, d, c in parts[n]]) for n in CHUNKS}


def batched(bench: Bench, system: PhaselineSystem, rounds: int) -> dict[str, Any]:
    """For each context: how many times one stream's tokens per second 16 bring, and their share of the byte bound."""
    bytes_of = {
        c: step_cost(system.executor.program, decode_work(c, streams=STREAMS, kv_bytes=2)).bytes for c in CONTEXTS
    }
    machine = Machine(system.executor, [int(size) for size in bytes_of.values()])
    work = {f"{n} {c}": bench.decodes(n, c) for n in (1, STREAMS) for c in CONTEXTS}
    cells = {name: (lambda segments=segments: bench.run(segments)) for name, segments in work.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cells}
    ceilings = machine.measure()
    for round_ in range(rounds):
        for name, took in take_turns(cells, 1, seed=round_).items():
            seconds[name] += took
        ceilings = ceilings.best(machine.measure())
    rows = {}
    for c in CONTEXTS:
        one, many = seconds[f"1 {c}"], seconds[f"{STREAMS} {c}"]
        rows[f"{STREAMS} streams over 1, context {c}"] = summary(
            [STREAMS * a / b for a, b in zip(one, many, strict=True)]
        )
        bound = bytes_of[c] / ceilings.read_at(bytes_of[c])
        rows[f"{STREAMS} streams, context {c}: byte bound over time"] = summary([bound / b for b in many])
    return rows


class Stopwatch:
    """Stands in a plan's place and adds up the time that its runs take."""

    def __init__(self, plan: Any) -> None:
        self._plan, self.seconds = plan, 0.0
        self.begin = plan.begin

    def run(self, *args: Any) -> None:
        start = time.perf_counter()
        self._plan.run(*args)
        self.seconds += time.perf_counter() - start


def between(system: PhaselineSystem, streams: int, rounds: int, steps: int = 24) -> dict[str, Any]:
    """Share of decode steps' wall time outside the native runs, for so many streams behind short prompts."""
    executor, shares = system.executor, []
    plan = executor._plan
    executor._plan = watch = Stopwatch(plan)  # type: ignore[assignment]
    try:
        for _ in range(rounds):
            for stream in range(streams):
                system.start(stream, [5 + stream] * 8, 2 * steps)
            while system.line()[1]:
                system.poll()
            for _ in range(4):
                system.poll()
            inside, start = watch.seconds, time.perf_counter()
            for _ in range(steps):
                system.poll()
            wall = time.perf_counter() - start
            shares.append(1 - (watch.seconds - inside) / wall)
            for stream in range(streams):
                system.cancel(stream)
            system.poll()
    finally:
        executor._plan = plan
    return {f"between native calls, {streams} streams": summary(shares)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a pulled name or a .gguf path")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--level", help="force an instruction-set level")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    longest = max(*CONTEXTS, *CHUNKS, BEHIND)
    system = PhaselineSystem(load(args.model, threads=args.threads, context=longest + 64, level=args.level))
    with system.slots([longest + 1] * STREAMS) as (slots, pages):
        bench = Bench(system, slots, pages, longest)
        rows = mixed(bench, args.rounds) | batched(bench, system, args.rounds)
    for streams in (1, STREAMS):
        rows |= between(system, streams, args.rounds)
    if args.json:
        print(json.dumps({"model": args.model, "cpu": cpu_model(), "threads": args.threads, "rows": rows}))
        return 0
    hopes = (
        [f"at most {limit}" for limit in MIXED.values()] + ["8 or more", "", "", "0.75 or more"] + ["at most 0.05"] * 2
    )
    title = f"{args.model}, {args.threads} threads, {system.executor.level}, {cpu_model()}, {args.rounds} rounds"
    show(title, [(name, figure, hope) for (name, figure), hope in zip(rows.items(), hopes, strict=True)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
