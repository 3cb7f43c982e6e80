"""The time of one product against its rows, 1 to 64, in every format: decode, batched decode and short chunks.

Several weights of one shape take turns, so that each comes from memory as in a model. There is a cliff where a row
costs more than it does among fewer rows: the worst is the most that a row costs, over the least among fewer rows.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from line_plot import line_plot
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from phaseline.errors import UnsupportedError
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.execute.native import NativeExecutor
from phaseline.files.base import TensorInfo
from phaseline.files.quant import FORMATS, Format
from phaseline.lab.stats import median
from phaseline.program.ir import Builder, Program, Rows, Value
from phaseline.program.ops import Embed, SelectRows, linear
from phaseline.program.step import Segment, Step, Want

ROWS = (*range(1, 17), 20, 24, 32, 40, 48, 64)
FOOTPRINT = 64 << 20  # bytes of all weights together, beyond the caches
TOKENS = 64


class RandomFile:
    """Stands in a model file's place: tensors of random bytes, all of whose values are finite."""

    def __init__(self) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self._raw: dict[str, NDArray[np.uint8]] = {}

    def add(self, name: str, format: Format, rows: int, cols: int) -> TensorInfo:
        raw = np.random.default_rng(len(self._raw)).integers(0, 64, (rows, format.row_bytes(cols)), np.uint8)
        self._raw[name] = raw
        self.tensors[name] = info = TensorInfo(name, (rows, cols), format, raw.nbytes)
        return info

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self._raw[name]

    def release(self, name: str) -> None:
        del self._raw[name]


def products(format: Format, outputs: int, inputs: int, threads: int, level: str | None) -> NativeExecutor:
    """An executor of enough products of one shape."""
    file = RandomFile()
    builder, x = Builder(file.tensors), Value("x", Rows.TOKENS, inputs)
    builder.add(Embed(file.add("x", FORMATS["F32"], TOKENS, inputs), x))
    for number in range(-(-FOOTPRINT // (outputs * format.row_bytes(inputs)))):
        weight = file.add(f"w{number}", format, outputs, inputs)
        (y,) = linear(builder, x, [weight], [f"y{number}"])
    logits = Value("logits", Rows.WANTED, outputs)
    builder.add(SelectRows(y, logits))
    program = Program(builder.ops, builder.layers, (), logits, outputs, TOKENS)
    return NativeExecutor(file, program, 1, threads=threads, level=level, max_rows=TOKENS)  # type: ignore[arg-type]


def sweep(executor: NativeExecutor, rounds: int) -> dict[int, list[float]]:
    """Seconds of one product by rows, one figure a round; the row counts come in random order."""
    seconds, rng = {rows: list[float]() for rows in ROWS}, random.Random(0)
    pages = np.zeros((1, TOKENS // executor.page_size), np.int32)
    for round_ in range(rounds + 1):
        for rows in rng.sample(ROWS, len(ROWS)):
            step = Step([Segment(0, 0, [rng.randrange(TOKENS) for _ in range(rows)], Want.LAST)])
            took = executor.profile(step, pages)[1][1:-1]
            if round_:
                seconds[rows].append(float(np.mean(took)))
    return seconds


def worst(seconds: Mapping[int, float]) -> tuple[int, float]:
    """Where a row costs most over what it costs at best among fewer rows, and by which factor."""
    each = [(rows, took / rows) for rows, took in seconds.items()]
    factors = [(rows, cost / min(c for _, c in each[:i])) for i, (rows, cost) in enumerate(each) if i]
    return max(factors, key=lambda one: one[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS), help="of tensors, with commas between them (all)")
    parser.add_argument("--shape", default="1024,3072", metavar="INPUTS,OUTPUTS", help="of each product")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--level", help="force an instruction-set level")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="plot the times")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    inputs, outputs = map(int, args.shape.split(","))
    names: Sequence[str] = args.formats.split(",")
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise UnsupportedError(f"no format is called {', '.join(unknown)} (there are {', '.join(FORMATS)})")
    found: dict[str, dict[int, float]] = {}
    for name in names:
        executor = products(FORMATS[name], outputs, inputs, args.threads, args.level)
        found[name] = {rows: median(seconds) for rows, seconds in sweep(executor, args.rounds).items()}
        level = executor.level
        executor.close()
        print(name, file=sys.stderr)
    title = f"A product of {inputs} to {outputs}, {args.threads} threads, {level}, {cpu_model()}"
    if args.svg:
        lines = {name: [(rows, 1e6 * s) for rows, s in of.items()] for name, of in found.items()}
        args.svg.write_text(line_plot(title, "rows", "µs", lines), encoding="utf-8")
    record: dict[str, Any] = {
        "title": title,
        "seconds": found,
        "worst": {name: worst(of) for name, of in found.items()},
    }
    print(json.dumps(record)) if args.json else show(record)
    return 0


def show(record: Mapping[str, Any]) -> None:
    table, shown = Table(title=record["title"]), (1, 2, 4, 8, 16, 32, 64)
    for heading in ("µs at rows", *map(str, shown), "a row's worst"):
        table.add_column(heading, justify="left" if heading == "µs at rows" else "right")
    for name, seconds in record["seconds"].items():
        rows, factor = record["worst"][name]
        table.add_row(name, *(f"{1e6 * seconds[r]:.0f}" for r in shown), f"{factor:.2f} at {rows}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
