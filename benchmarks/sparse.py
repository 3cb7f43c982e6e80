"""What a chunk wins where experts are not shared: tokens/s against the chunk, of a sparse and of a dense random model.

Both have as many active parameters. Beside each rate stands what is predicted: the rate at a chunk of one, times the
win that the bytes allow (weights shared by all rows, and the union of the experts that the executor counted), but no
more than the arithmetic ceiling of the same run. The control reads experts row by row (mode dispatch) and is otherwise
the same. Cells take turns in a random order that is new in every round.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from line_plot import line_plot
from random_model import write

from phaseline.engine.load import load
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.lab.drive import Job, drive
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.sparsity import Reading, allowed_win, dispatch_win, mean_reading, reading
from phaseline.lab.stats import bootstrap_interval, interleave, median
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.machine import Ceilings, Machine
from phaseline.program.cost import decode_work, prefill_work, prompt_cost, step_cost

CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Cell:
    model: str  # sparse | dense
    phase: str  # prefill | decode
    mode: str  # chunk | dispatch
    chunk: int  # rows per step: of the prompt, or streams that decode


@dataclass
class Samples:
    seconds: list[float] = field(default_factory=list)  # of a prompt, or of a decode step
    readings: list[Reading] = field(default_factory=list)  # of its last step


class Bench:
    """The two engines, and one measurement after the other on either."""

    def __init__(self, paths: Mapping[str, Path], prompt: int, tokens: int, threads: int) -> None:
        self.prompt, self.tokens = prompt, tokens
        self.systems = {
            name: PhaselineSystem(load(path, threads=threads, chunk=CHUNKS[-1], context=2 * prompt + tokens))
            for name, path in paths.items()
        }
        self._rng = random.Random(0)

    def machine(self) -> Machine:
        """Ceilings at the footprints of one decode step of either."""
        steps = [step_cost(s.executor.program, decode_work(1)) for s in self.systems.values()]
        return Machine(self.systems["sparse"].executor, [int(step.bytes) for step in steps])

    def measure(self, cell: Cell, into: Samples) -> None:
        system = self.systems[cell.model]
        program = system.executor.program
        ids = [[self._rng.randrange(2, program.vocab) for _ in range(self.prompt)] for _ in range(cell.chunk)]
        if cell.phase == "prefill":
            system.configure(cell.mode, cell.chunk)
            seconds = trace_metrics(drive(system, [Job(ids[0], 1)])[0]).ttft
            work = prefill_work(cell.chunk, start=self.prompt - cell.chunk)
        else:
            system.configure(cell.mode, CHUNKS[-1])
            traces = drive(system, [Job(each[:16], self.tokens) for each in ids])
            seconds = median([trace_metrics(trace).tpot or 0.0 for trace in traces])
            work = decode_work(16, streams=cell.chunk)
        assert seconds
        into.seconds.append(seconds)
        found = reading(program, work, system.executor.expert_reads())
        into.readings += [found] if found else []

    def row(self, cell: Cell, samples: Samples, ceilings: Ceilings) -> dict[str, Any]:
        program = self.systems[cell.model].executor.program
        made = self.prompt if cell.phase == "prefill" else cell.chunk
        rates = [made / seconds for seconds in samples.seconds]
        row = {**vars(cell), "tok_s": median(rates), "interval": bootstrap_interval(rates), "seconds": samples.seconds}
        many = mean_reading(samples.readings) if samples.readings else None
        if cell.phase == "prefill":
            whole = prompt_cost(program, cell.chunk, cell.chunk)
            one = prompt_cost(program, cell.chunk, 1).weight_bytes
            row["allowed"] = allowed_win(program, many) if many else one / whole.weight_bytes
            row["arithmetic_tok_s"] = cell.chunk * ceilings.quant_flops / whole.flops
        if many:
            row |= {"sparse": many.record(), "allowed_over_dispatch": dispatch_win(program, many)}
        return row


def predict(rows: Sequence[dict[str, Any]]) -> None:
    """To every rate of the curves, what its bytes and the arithmetic ceiling allow from the rate at a chunk of one."""
    for row in rows:
        if row["phase"] == "prefill" and row["mode"] == "chunk":
            one = next(r for r in rows if (r["model"], r["phase"], r["chunk"]) == (row["model"], "prefill", 1))
            row["predicted_tok_s"] = min(one["tok_s"] * row["allowed"], row["arithmetic_tok_s"])


def draw(rows: Sequence[dict[str, Any]]) -> str:
    """The curves, each with its prediction."""
    lines = {}
    for model in ("sparse", "dense"):
        curve = [r for r in rows if (r["model"], r["phase"], r["mode"]) == (model, "prefill", "chunk")]
        lines[model] = [(r["chunk"], r["tok_s"]) for r in curve]
        lines[f"{model} bound"] = [(r["chunk"], r["predicted_tok_s"]) for r in curve]
    title = "Prefill against the chunk: measured, and what bytes and arithmetic allow"
    return line_plot(title, "prompt tokens per step", "tokens/s", lines)


def ratio(samples: Mapping[Cell, Samples], fast: Cell, slow: Cell) -> dict[str, Any]:
    """How many times as fast one cell is as another, over rounds."""
    pairs = [b / a for a, b in zip(samples[fast].seconds, samples[slow].seconds, strict=True)]
    return {"fast": vars(fast), "slow": vars(slow), "ratio": median(pairs), "interval": bootstrap_interval(pairs)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="models of a few hundred kilobytes, to try the command")
    parser.add_argument("--format", default="Q4_K", help="of all matrices")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512, help="prompt tokens")
    parser.add_argument("--tokens", type=int, default=32, help="generated tokens of the decode rows")
    parser.add_argument("--svg", type=Path, help="draw the curves here")
    args = parser.parse_args()
    chunks = [c for c in CHUNKS if c <= args.prompt]
    cells = [Cell(model, "prefill", "chunk", c) for model in ("sparse", "dense") for c in chunks]
    cells.append(Cell("sparse", "prefill", "dispatch", chunks[-1]))
    cells += [Cell("sparse", "decode", mode, streams) for mode in ("chunk", "dispatch") for streams in (1, 8)]
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name in ("sparse", "dense"):
            shape = f"tiny-{name}" if args.tiny else name
            paths[name] = write(Path(folder) / f"{name}.gguf", shape, format=args.format)
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        bench = Bench(paths, args.prompt, args.tokens, args.threads)
    samples = {cell: Samples() for cell in cells}
    machine = bench.machine()
    for cell in (cells[0], cells[len(chunks)]):
        bench.measure(cell, Samples())
    ceilings, started = machine.measure(), time.monotonic()
    for made, order in enumerate(interleave(cells, args.rounds, 0)):
        for cell in order:
            bench.measure(cell, samples[cell])
        ceilings = ceilings.best(machine.measure())
        print(f"round {made + 1} of {args.rounds}, {time.monotonic() - started:.0f} s", file=sys.stderr, end="\r")
    rows = [bench.row(cell, samples[cell], ceilings) for cell in cells]
    predict(rows)
    chunk, dispatch = cells[len(chunks) - 1], cells[2 * len(chunks)]
    ratios = [ratio(samples, chunk, dispatch), ratio(samples, chunk, cells[0])]
    ratios += [ratio(samples, cells[-4 + n], cells[-2 + n]) for n in (0, 1)]
    record = {
        **{name: getattr(args, name) for name in ("format", "threads", "rounds", "prompt", "tokens")},
        "cpu": cpu_model(),
        "file_bytes": sizes,
        "ceilings": ceilings.record(),
        "rows": rows,
        "ratios": ratios,
    }
    print(json.dumps(record))
    if args.svg:
        args.svg.write_text(draw(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
