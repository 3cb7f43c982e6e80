"""Every tensor type in both phases: one shape of llama with random weights, beside llama.cpp where it is installed.

For each type a model is written to a temporary folder and both systems take turns on it, as in `versus.py`. Shares are
of this machine's ceilings, measured before and after each type's turns with the same threads (the higher one counts):
decode's of the read bandwidth at the size of the packed weights, which it reads once a token; prefill's of the
arithmetic, of which only the layers' products count as work.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from format_model import CONTEXT, VOCAB, write
from rich.console import Console
from rich.table import Table
from versus import Turns, peer_build, take_turns

from phaseline import _native
from phaseline.cli import guard_worker
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.files.quant import FORMATS, Format
from phaseline.lab.guard_builds import this_build
from phaseline.lab.standings import Ratio
from phaseline.lab.stats import median
from phaseline.machine import host_rates


def measure(format: Format, args: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{format.name}.gguf"
        matrices = write(path, format, args.layers)
        packed = sum(
            _native.packed_bytes(format.name, len(raw), raw.shape[1] // format.bytes * format.block)
            for raw in matrices.values()
        )
        before = host_rates(packed)
        record = compare(path, args)
        after = host_rates(packed)
    weights = sum(raw.size // format.bytes * format.block for raw in matrices.values())
    bandwidth = max(before.read, after.read)
    plain = format.block == 1
    arithmetic = max((r.float_flops if plain else r.quant_flops) for r in (before, after))
    first, *others = record["systems"]
    rows = {(row["phase"], row["system"]): row for row in record["results"]}
    result: dict[str, Any] = {"format": format.name, "file": sum(raw.nbytes for raw in matrices.values())}
    result |= {"packed": packed, "weights": weights, "bandwidth": bandwidth, "arithmetic": arithmetic}
    for phase in ("prefill", "decode"):
        own = rows[phase, first["name"]]
        seconds = median([s for s in own["seconds"] if s is not None])
        if phase == "decode":
            share = packed / seconds / bandwidth
        else:
            share = 2 * (weights - matrices["output"].size // format.bytes * format.block) * args.prompt / seconds
            share /= arithmetic
        theirs = [rows[phase, other["name"]] for other in others]
        ratio = Ratio.of(theirs[0]["seconds"], own["seconds"]) if theirs else None
        result[phase] = {"tok_s": own["tok_s"], "share": share, "seconds": own["seconds"]}
        result[phase] |= {"peer_tok_s": theirs[0]["tok_s"] if theirs else None}
        result[phase] |= {"ratio": ratio.to_dict() if ratio else None}
    return result


def compare(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    options = {"threads": args.threads, "context": CONTEXT}
    ours = options | ({"level": args.level} if args.level else {})
    builds = [this_build(Path(guard_worker.__file__).resolve())]
    if find_spec("xllamacpp"):
        builds.append(peer_build("xllamacpp", sys.executable))
    systems = [
        Turns(build, str(path), range(VOCAB), options if number else ours, patience=60)
        for number, build in enumerate(builds)
    ]
    return take_turns(systems, range(VOCAB), args, {})


def show(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    title = f"{args.layers} layers of 1024 / 3072, {args.threads} threads, {cpu_model()}, {args.rounds} rounds"
    table = Table(title=title)
    table.add_column("type")
    for heading in ("bits", "packed / file", f"prefill {args.prompt} tok/s", "x llama.cpp", "of arithmetic"):
        table.add_column(heading, justify="right")
    for heading in ("decode tok/s", "x llama.cpp", "of bandwidth"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["format"],
            f"{8 * row['file'] / row['weights']:.2f}",
            f"{row['packed'] / row['file']:.2f}",
            *(cell for phase in ("prefill", "decode") for cell in _cells(row[phase])),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _cells(phase: Mapping[str, Any]) -> tuple[str, str, str]:
    ratio = phase["ratio"]
    told = "-"
    if ratio:
        told = f"{ratio['value']:.2f}"
        if ratio["low"] is not None:
            told += f" ({ratio['low']:.2f} - {ratio['high']:.2f})"
    return f"{phase['tok_s']:.1f}", told, f"{phase['share']:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), metavar="TYPE")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=256, help="prompt tokens of the prefill figures")
    parser.add_argument("--tokens", type=int, default=48, help="generated tokens of the decode figures")
    parser.add_argument("--level", help="force an instruction-set level of Phaseline")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name in args.formats:
        rows.append(measure(FORMATS[name], args))
        print(json.dumps(rows[-1]), file=sys.stderr)  # if the rest is never reached
    if args.json:
        print(json.dumps({"cpu": cpu_model(), "threads": args.threads, "layers": args.layers, "rows": rows}))
    else:
        show(rows, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
