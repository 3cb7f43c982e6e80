"""Servers side by side on the same model, prompts and cores: goodput, time to first token and gaps, over streams.

Every block (a server, a prompt length, a number of streams) is timed once a round, in a random order, while all servers
that were started here but one are halted. Prompts are token ids and new in every block, equal for all servers; answers
are greedy and of a fixed length. Before anything is timed the answers of Phaseline's server, all streams at once, are
compared with those of an engine in this process: if one differs, there are no figures.

A gap lies between two events that bring text, as a client sees them.
"""

import argparse
import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from servers import Server, our_command, started
from timing import summary

from phaseline.engine.load import load
from phaseline.engine.types import SamplingParams
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.lab.drive import drive_streams
from phaseline.lab.metrics import TraceMetrics, trace_metrics
from phaseline.lab.prompts import WORDS, random_asks
from phaseline.lab.stats import interleave
from phaseline.lab.summary import P99_SAMPLES, Objectives, parse_goodput, summarise
from phaseline.lab.summary_checks import FLAGS
from phaseline.lab.systems.base import Ask
from phaseline.lab.trace import Trace
from phaseline.lab.workload import Workload, asked

GOALS = "ttft:2000 tpot:100"
SETTLE_S = 0.3  # after a server goes on, before it is asked
FIGURES: Mapping[str, tuple[str, int]] = {  # of a block: its heading, and whether more (1) or less (-1) is better
    "output_throughput": ("tok/s", 1),
    "request_goodput": ("good req/s", 1),
    "median_ttft_ms": ("TTFT p50", -1),
    "median_tpot_ms": ("TPOT p50", -1),
    "median_gap_ms": ("gap p50", -1),
    "p99_gap_ms": ("gap p99", -1),
    "max_worst_gap_ms": ("worst gap", -1),
}
WIDTH = 150  # of the tables, in characters
_EXPECTED = (FLAGS["first_tokens_assumed"], FLAGS["uncounted_gaps"], f"{P99_SAMPLES} samples")  # ends of such notes
HEADLINES = ("output_throughput", "request_goodput", "median_ttft_ms", "max_worst_gap_ms")


@dataclass
class Cell:
    """A server under so many streams with prompts of one length: a summary of each round, and all metrics."""

    server: str
    prompt: int
    streams: int
    rounds: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[TraceMetrics] = field(default_factory=list)
    client_cpu: list[float] = field(default_factory=list)  # share of a core

    def row(self) -> dict[str, Any]:
        """Its figures over rounds; percentiles of TTFT over the requests of all rounds, where these are enough."""
        figures = {name: summary(values) for name in FIGURES if (values := self._known(name))}
        ttft = [1e3 * one.ttft for one in self.metrics if one.ttft is not None]
        counts = {name: sum(one[name] for one in self.rounds) for name in ("completed", "failed")}
        return {
            **{name: getattr(self, name) for name in ("server", "prompt", "streams")},
            **counts,
            **figures,
            "p99_ttft_ms": float(np.percentile(ttft, 99)) if len(ttft) >= P99_SAMPLES else None,
            "slo_attainment": float(np.mean([one["slo_attainment"] for one in self.rounds])),
            "client_cpu_share": summary(self.client_cpu),
            "notes": sorted({note for one in self.rounds for note in one["notes"] if not note.endswith(_EXPECTED)}),
        }

    def _known(self, name: str) -> list[float]:
        values = [one[name] for one in self.rounds]
        return [] if None in values else values


async def block(server: Server, cell: Cell, asks: Sequence[Ask], warmup: Ask, goals: Objectives) -> None:
    """Time one block; the server runs for so long only."""
    server.resume()
    system = server.system()
    try:
        await asyncio.sleep(SETTLE_S)
        await drive_streams(system, Workload([], None, 1, [warmup]))
        busy, start = time.process_time(), time.monotonic()
        traces = await drive_streams(system, Workload(asks, None, cell.streams))
        took = time.monotonic() - start
        cell.client_cpu.append((time.process_time() - busy) / took)
    finally:
        await system.close()
        server.halt()
    traces = [whole(trace, ask) for trace, ask in zip(traces, asks, strict=True)]
    what = {"asked": [asked(ask) for ask in asks], "objectives": goals, "max_concurrency": cell.streams}
    cell.rounds.append(summarise(traces, took, **what))
    cell.metrics += map(trace_metrics, traces)


def whole(trace: Trace, ask: Ask) -> Trace:
    """The trace, a failed one if it brought another number of tokens than was asked for, or read part of its prompt."""
    if trace.error is None and trace.output_tokens not in (None, ask.max_tokens):
        return replace(trace, error=f"{trace.output_tokens} tokens came of {ask.max_tokens}")
    if trace.error is None and trace.prompt_tokens not in (None, len(ask.prompt)):
        return replace(trace, error=f"the prompt of {len(ask.prompt)} tokens was taken for {trace.prompt_tokens}")
    if trace.error is None and (trace.cached_tokens or 0) > 0.1 * len(ask.prompt):
        return replace(trace, error=f"a cache served {trace.cached_tokens} tokens of the prompt")
    return trace


async def differing(server: Server, asks: Sequence[Ask], expected: Sequence[Sequence[int]]) -> int:
    """How many of the answers that a server gives to all asks at once are not those expected."""

    def answer(ask: Ask) -> list[int]:
        body = {"prompt": ask.prompt, "max_tokens": ask.max_tokens, "temperature": 0, "ignore_eos": True}
        data = json.dumps(body | {"return_token_ids": True}).encode()
        request = urllib.request.Request(server.url + "/v1/completions", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            ids: list[int] = json.load(response)["choices"][0]["token_ids"]
            return ids

    server.resume()
    answers = await asyncio.gather(*(asyncio.to_thread(answer, ask) for ask in asks))
    server.halt()
    return sum(list(one) != list(other) for one, other in zip(answers, expected, strict=True))


def measure(
    servers: Sequence[Server],
    cells: Mapping[tuple[str, int, int], Cell],
    make: Callable[[int, int, int], Sequence[Ask]],
    args: argparse.Namespace,
) -> int:
    """All blocks, once a round; how many rounds there were, fewer if a signal ended it. `make` gives asks: of a prompt
    length, so many, by a seed."""
    blocks, done = list(product(servers, args.prompts, args.streams)), 0
    try:
        for order in interleave(blocks, args.rounds, args.seed):
            for server, prompt, streams in order:
                requests = max(args.least, args.per_stream * streams)
                size = args.prompts.index(prompt) * len(args.streams) + args.streams.index(streams)
                *asks, warmup = make(prompt, requests + 1, args.seed + 1000 * done + size)  # no prompt begins another
                cell = cells[server.name, prompt, streams]
                asyncio.run(block(server, cell, asks, replace(warmup, prompt=warmup.prompt[:16]), args.goals))
            done += 1
            print(f"round {done} of {args.rounds} done", file=sys.stderr)
    except SystemExit:
        if not done:
            raise
    for cell in cells.values():
        whole_rounds = done * (len(cell.metrics) // len(cell.rounds))
        del cell.rounds[done:], cell.client_cpu[done:], cell.metrics[whole_rounds:]
    return done


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of Phaseline to each other server, cell by cell and round by round: above 1 where Phaseline is ahead."""
    own, found = {(row["prompt"], row["streams"]): row for row in rows if row["server"] == "phaseline"}, []
    for row in rows:
        mine = own[row["prompt"], row["streams"]]
        if row is mine:
            continue
        one = {name: row[name] for name in ("server", "prompt", "streams")}
        for name in HEADLINES:
            if name in row and name in mine and all(row[name]["rounds"]) and all(mine[name]["rounds"]):
                pairs = zip(mine[name]["rounds"], row[name]["rounds"], strict=True)
                one[name] = summary([(a / b) ** FIGURES[name][1] for a, b in pairs])
        found.append(one)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a pulled name or a .gguf path")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL|NAME=COMMAND", help="see README.md")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="further options of `phaseline serve`")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16], metavar="N")
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 1024], metavar="N", help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--per-stream", type=int, default=2, metavar="N", help="requests of a block, for each stream")
    parser.add_argument("--least", type=int, default=8, metavar="N", help="requests of a block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--goodput", default=GOALS, metavar="NAME:MS ...", help=f'objectives ("{GOALS}")')
    parser.add_argument("--patience", type=float, default=900, metavar="S", help="for a server to start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.goals = parse_goodput(args.goodput)
    named = [("phaseline", our_command(args.model, args.threads, *args.serve.split()))]
    named += [(name, where) for name, _, where in (one.partition("=") for one in args.peer)]
    if not all(where for _, where in named):
        parser.error("a peer is NAME=URL or NAME=COMMAND")

    with load(args.model, threads=args.threads) as engine:
        assert engine.tokenizer, "a model without a tokenizer has no words to ask with"
        spelt = [engine.tokenizer.encode(f" {word}") for word in WORDS]
        vocabulary = [ids[0] for ids in spelt if len(ids) == 1]

        def make(prompt: int, count: int, seed: int) -> list[Ask]:
            options = {"temperature": 0}
            return list(random_asks(count, prompt, args.tokens, vocabulary=vocabulary, seed=seed, options=options))

        checks = [ask for prompt in args.prompts for ask in make(prompt, max(args.streams), args.seed + 999)]
        params = SamplingParams(max_tokens=args.tokens, temperature=0, ignore_eos=True)
        expected = [one.token_ids for one in engine.generate([ask.prompt for ask in checks], params)]
    with started(named, args.patience) as servers:
        if wrong := asyncio.run(differing(servers[0], checks, expected)):
            print(f"void: {wrong} of {len(checks)} answers differ from those of an engine alone", file=sys.stderr)
            return 1
        order = product(args.prompts, args.streams, (server.name for server in servers))
        cells = {(name, prompt, streams): Cell(name, prompt, streams) for prompt, streams, name in order}
        args.rounds = measure(servers, cells, make, args)
        rows = [cell.row() for cell in cells.values()]
        names = ("model", "threads", "tokens", "rounds", "goodput", "per_stream", "least", "seed")
        record = {name: getattr(args, name) for name in names} | {"cpu": cpu_model(), "checked": len(checks)}
        record["servers"] = {server.name: server.command or server.url for server in servers}
        record |= {"results": rows, "ratios": ratios(rows)}
        print(json.dumps(record), flush=True) if args.json else show(record)
    return 0


def show(record: Mapping[str, Any]) -> None:
    console = Console(width=WIDTH)
    title = f"{record['model']}, {record['threads']} threads, {record['cpu']}, {record['rounds']} rounds"
    table = Table(title=f"{title}, answers of {record['tokens']}; good: {record['goodput']} (ms)")
    for heading in ("prompt", "streams", "server", *(told for told, _ in FIGURES.values()), "TTFT p99", "in time"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for row in record["results"]:
        figures = [_spread(row.get(name)) for name in FIGURES]
        p99 = "-" if row["p99_ttft_ms"] is None else f"{row['p99_ttft_ms']:.4g}"
        size = [str(row[name]) for name in ("prompt", "streams", "server")]
        table.add_row(*size, *figures, p99, f"{row['slo_attainment']:.0%}")
    console.print(table)
    if record["ratios"]:
        table = Table(title="Phaseline to each peer: above 1 is ahead")
        for heading in ("prompt", "streams", "peer", *(FIGURES[name][0] for name in HEADLINES)):
            table.add_column(heading, justify="left" if heading == "peer" else "right")
        for one in record["ratios"]:
            size = [str(one[name]) for name in ("prompt", "streams", "server")]
            table.add_row(*size, *(_spread(one.get(name)) for name in HEADLINES))
        console.print(table)
    console.print(f"{record['checked']} answers of Phaseline's server are those of an engine alone", highlight=False)
    for name, where in record["servers"].items():
        console.print(f"{name}: {where}", highlight=False)
    for row in record["results"]:
        for note in row["notes"]:
            console.print(f"{row['server']}, {row['prompt']} x {row['streams']}: {note}", highlight=False)


def _spread(figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return "-"
    span = "" if figure["low"] is None else f"\n{figure['low']:.3g} - {figure['high']:.3g}"
    return f"{figure['value']:.4g}{span}"


if __name__ == "__main__":
    sys.exit(main())
