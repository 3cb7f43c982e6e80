"""Where the time of reading a prompt goes, and which way of reading it takes how much away, on a model like Kimi K3.

Every way is a mode of the engine: token by token (walk), with the loop over layers outside and one row at a time within
(layer), whole but for its experts (dispatch), whole but with one call for each operation (eager), whole (chunk). All
give the same bits. Each reads the prompt in steps of so many tokens and then writes some; every operation is timed, and
what is left of the wall time passes between them. The parts of a row are of one reading, that of the median time, and
add up to it; factors from one way to the next are of medians, and multiply to that from the first to the last.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from op_kinds import NAMES, spent
from random_model import write
from rich.console import Console
from rich.table import Table

from phaseline.engine.load import load
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.lab.drive import timed
from phaseline.lab.stats import bootstrap_interval, interleave
from phaseline.lab.systems.phaseline import PhaselineSystem

CHUNKS = (1, 8, 32, 64)
WALK = ("walk", 1)
WAYS = ("layer", "dispatch", "eager", "chunk")  # from the walk to the product
Cell = tuple[str, int]  # mode, and prompt tokens per step


@dataclass
class Timed:
    """Stands in a plan's place and has every operation timed."""

    plan: Any
    seconds: Any

    def __post_init__(self) -> None:
        self.begin, self.expert_reads = self.plan.begin, self.plan.expert_reads

    def run(self, *args: Any, seconds: object = None) -> None:
        self.plan.run(*args[:4], seconds=self.seconds)


@dataclass
class Samples:
    """Of each round: wall seconds, and those of each kind of operation, of the prompt and of what follows it; how often
    a layer read the weights of an expert in the prompt's last step, for each of its tokens."""

    prefill: list[dict[str, float]] = field(default_factory=list)
    decode: list[dict[str, float]] = field(default_factory=list)
    expert_reads: list[float] = field(default_factory=list)


class Bench:
    def __init__(self, system: PhaselineSystem, prompt: int, tokens: int) -> None:
        self.system, self.prompt, self.tokens = system, prompt, tokens
        self._rng, self._streams = random.Random(0), 0

    def measure(self, cell: Cell, into: Samples) -> None:
        """A new prompt to its first token, then the others."""
        executor = self.system.executor
        self.system.configure(*cell)
        self._streams += 1
        ids = [self._rng.randrange(2, executor.program.vocab) for _ in range(self.prompt)]
        plan = executor._plan
        watched = Timed(plan, np.zeros(len(executor.program.ops)))
        executor._plan = watched  # type: ignore[assignment]
        try:
            self.system.start(self._streams, ids, 1 + self.tokens)
            for kept in (into.prefill, into.decode):
                watched.seconds[:] = 0
                wall = timed(self._to_first if kept is into.prefill else self._to_last)
                parts = spent(executor.program, watched.seconds)
                kept.append({"wall": wall, **parts, "between": wall - sum(parts.values())})
                if kept is into.prefill:
                    into.expert_reads.append(fmean(found.reads for found in executor.expert_reads()) / cell[1])
        finally:
            executor._plan = plan

    def _to_first(self) -> None:
        while not any(arrival.tokens for arrival in self.system.poll()):
            pass

    def _to_last(self) -> None:
        while not any(arrival.last for arrival in self.system.poll()):
            pass


def middle(rounds: Sequence[Mapping[str, float]], tokens: int) -> dict[str, float]:
    """Microseconds a token of the round whose wall time is the median (of an even number, the faster of two)."""
    one = sorted(rounds, key=lambda r: r["wall"])[(len(rounds) - 1) // 2]
    return {kind: 1e6 * seconds / tokens for kind, seconds in one.items()}


def row(cell: Cell, samples: Samples, prompt: int, tokens: int) -> dict[str, Any]:
    prefill = middle(samples.prefill, prompt)
    decode = middle(samples.decode, tokens)
    rates = [prompt / r["wall"] for r in samples.prefill]
    return {
        "mode": cell[0],
        "chunk": cell[1],
        "tok_s": 1e6 / prefill["wall"],
        "interval": bootstrap_interval(rates),
        "prefill_us": prefill,
        "decode_tok_s": 1e6 / decode["wall"],
        "decode_us": decode,
        "expert_reads": fmean(samples.expert_reads),
        "prefill_rounds": samples.prefill,
        "decode_rounds": samples.decode,
    }


def factors(rows: Mapping[Cell, Mapping[str, Any]], ways: Sequence[Cell]) -> list[dict[str, Any]]:
    """From each way to the next, how many times as fast it reads; the last entry is from the first way to the last."""
    pairs = [*pairwise(ways), (ways[0], ways[-1])]
    return [{"from": a, "to": b, "factor": rows[b]["tok_s"] / rows[a]["tok_s"]} for a, b in pairs]


def show(record: Mapping[str, Any]) -> None:
    kinds = ("wall", *NAMES, "between")
    title = (
        f"{record['model']}, {record['prompt']} tokens, {record['threads']} threads, {record['level']}, {record['cpu']}"
    )
    caption = (
        "decode: tokens/s in the same mode; phases: prefill's over decode's; reads: of experts, a token and layer; "
        "then µs a prompt token: wall, and the parts that add up to it (others: mixes, gates, norms, embedding)"
    )
    table = Table(title=title, caption=caption)
    for heading in ("mode", "chunk", "tok/s", "x walk", "decode", "phases", "reads", *kinds):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    walk = record["rows"][0]["tok_s"]
    for one in record["rows"]:
        rates = (one["tok_s"], one["tok_s"] / walk, one["decode_tok_s"], one["tok_s"] / one["decode_tok_s"])
        parts = [f"{one['prefill_us'][kind]:.0f}" for kind in kinds]
        figures = [f"{figure:.4g}" for figure in (*rates, one["expert_reads"])]
        table.add_row(one["mode"], str(one["chunk"]), *figures, *parts)
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(table)
    for name, chain in record["factors"].items():
        *steps, total = chain
        said = [f"{of(step['from'])} x {step['factor']:.3f}" for step in steps]
        console.print(f"{name}: {' -> '.join(said)} -> {of(total['to'])}; product {total['factor']:.3f}")


def of(cell: Cell) -> str:
    return f"{cell[0]} {cell[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", help="a .gguf path (a random model like Kimi K3, routed experts in IQ1_S, the rest Q8_0)"
    )
    parser.add_argument("--tiny", action="store_true", help="a model of three megabytes, to try the command")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=256, help="prompt tokens")
    parser.add_argument("--tokens", type=int, default=32, help="tokens written behind it")
    parser.add_argument("--level", help="force an instruction-set level")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.prompt % CHUNKS[-1]:
        parser.error(f"--prompt must be a multiple of {CHUNKS[-1]}, so that all steps of a row have as many tokens")
    shape = "tiny-k3" if args.tiny else "k3"
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or write(Path(folder) / "k3.gguf", shape, format="Q8_0", experts_format="IQ1_S")
        options = {"threads": args.threads, "level": args.level, "context": args.prompt + args.tokens + 1}
        system = PhaselineSystem(load(path, chunk=CHUNKS[-1], max_running=1, **options))
    bench = Bench(system, args.prompt, args.tokens)
    cells = [WALK, *((mode, chunk) for mode in WAYS for chunk in CHUNKS)]
    samples = {cell: Samples() for cell in cells}
    bench.measure(("chunk", CHUNKS[-1]), Samples())  # to warm up
    started = time.monotonic()
    for made, order in enumerate(interleave(cells, args.rounds, 0)):
        for cell in order:
            bench.measure(cell, samples[cell])
        print(f"round {made + 1} of {args.rounds}, {time.monotonic() - started:.0f} s", file=sys.stderr, end="\r")
    rows = {cell: row(cell, samples[cell], args.prompt, args.tokens) for cell in cells}
    record = {
        "model": args.model or shape,
        **{name: getattr(args, name) for name in ("threads", "rounds", "prompt", "tokens")},
        "cpu": cpu_model(),
        "level": system.executor.level,
        "rows": list(rows.values()),
        "factors": {
            "by way": factors(rows, [WALK, *((mode, CHUNKS[-1]) for mode in WAYS)]),
            "by chunk": factors(rows, [WALK, *(("chunk", chunk) for chunk in CHUNKS)]),
        },
    }
    if args.json:
        print(json.dumps(record))
    else:
        show(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
