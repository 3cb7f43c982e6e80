"""What a chunk of a model with linear attention spends its time on, against how much of the prompt lies behind it.

One prompt is read chunk by chunk, every operation timed; each round reads it anew. Attention over stored rows alone
takes longer the more there are: without it the rate ought to be flat. `recurrence` is delta attention as a whole:
convolutions, decay, the delta rule, norm and gate.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from op_kinds import spent
from random_model import write
from rich.console import Console
from rich.table import Table
from timing import summary

from phaseline.engine.load import load
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.lab.systems.phaseline import PhaselineSystem, carried_on
from phaseline.program.step import Segment, Step

CONTEXTS = (512, 1024, 2048, 4096, 8192)
TINY = 1024  # what the tiny model holds
FLAT = 0.15  # by how much the rate may fall from the shortest context to the longest


def read(system: PhaselineSystem, tokens: Sequence[int], chunk: int) -> list[dict[str, float]]:
    """Seconds of each kind of operation, chunk by chunk."""
    executor = system.executor
    found = []
    with system.slots([len(tokens)]) as ((slot,), pages):
        for start in range(0, len(tokens), chunk):
            step = Step([Segment(slot, start, tokens[start : start + chunk])])
            _, seconds = executor.profile(step, carried_on(executor.program, pages, start // chunk))
            found.append(spent(executor.program, seconds))
    return found


def row(readings: Sequence[Sequence[Mapping[str, float]]], context: int, chunk: int) -> dict[str, Any]:
    """What is said of one context, over rounds."""
    last = [chunks[context // chunk - 1] for chunks in readings]
    prompts = [chunks[: context // chunk] for chunks in readings]
    return {
        "context": context,
        "prompt_tok_s": summary([context / sum(sum(one.values()) for one in prompt) for prompt in prompts]),
        "chunk_tok_s": summary([chunk / sum(one.values()) for one in last]),
        "without_latent_tok_s": summary([chunk / (sum(one.values()) - one["latent attention"]) for one in last]),
        "shares": {kind: summary([one[kind] / sum(one.values()) for one in last]) for kind in last[0]},
    }


def falls(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """By what share of itself a rate falls from the shortest context to the longest."""
    first, last = (rows[i][key]["rounds"] for i in (0, -1))
    return summary([1 - b / a for a, b in zip(first, last, strict=True)])


def show(record: Mapping[str, Any]) -> None:
    title = f"{record['model']}, chunks of {record['chunk']}, {record['threads']} threads, {record['cpu']}"
    table = Table(title=title)
    shares = list(record["rows"][0]["shares"])
    for heading in ("context", "prompt tok/s", "chunk tok/s", "without latent attention", *shares):
        table.add_column(heading, justify="right")
    for one in record["rows"]:
        rates = [f"{one[key]['value']:.1f}" for key in ("prompt_tok_s", "chunk_tok_s", "without_latent_tok_s")]
        table.add_row(str(one["context"]), *rates, *(f"{one['shares'][kind]['value']:.1%}" for kind in shares))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for what, figure in record["falls"].items():
        span = "" if figure["low"] is None else f" ({figure['low']:.1%} to {figure['high']:.1%})"
        console.print(f"{what}: the rate falls by {figure['value']:.1%}{span}; wanted: {FLAT:.0%} at most")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a .gguf path (a random model of 0.76e9 parameters, in Q4_K)")
    parser.add_argument("--tiny", action="store_true", help="a model of four megabytes, to try the command")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--longest", type=int, help=f"context to stop at ({CONTEXTS[-1]}; --tiny: {TINY})")
    parser.add_argument("--level", help="force an instruction-set level")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    longest = args.longest or (TINY if args.tiny else CONTEXTS[-1])
    contexts = [c for c in CONTEXTS if args.chunk <= c <= longest and c % args.chunk == 0]
    if not contexts:
        parser.error(f"no context of {', '.join(map(str, CONTEXTS))} is a multiple of that chunk, and short enough")
    with tempfile.TemporaryDirectory() as folder:
        made = None if args.model else write(Path(folder) / "m.gguf", "tiny-linear" if args.tiny else "linear")
        options = {"threads": args.threads, "level": args.level, "context": contexts[-1]}
        system = PhaselineSystem(load(args.model or made, chunk=args.chunk, max_running=1, **options))
    rng = random.Random(0)
    tokens = [rng.randrange(system.executor.program.vocab) for _ in range(contexts[-1])]
    read(system, tokens[: args.chunk], args.chunk)  # to warm up
    readings = [read(system, tokens, args.chunk) for _ in range(args.rounds)]
    rows = [row(readings, context, args.chunk) for context in contexts]
    named = {"the chunk": "chunk_tok_s", "without latent attention": "without_latent_tok_s"}
    record = {
        "model": args.model or ("tiny-linear" if args.tiny else "linear"),
        **{name: getattr(args, name) for name in ("chunk", "threads", "rounds")},
        "cpu": cpu_model(),
        "level": system.executor.level,
        "rows": rows,
        "falls": {what: falls(rows, key) for what, key in named.items()},
    }
    if args.json:
        print(json.dumps(record))
    else:
        show(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
