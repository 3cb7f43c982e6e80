"""`phaseline measure`: prefill and decode of a model on this machine."""

import argparse
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from phaseline.cli.options import add_engine_options, add_model, add_output_options, load_options, sampling_params
from phaseline.cli.progress import progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from phaseline.cli.show import Screen

_WIDTH = 80  # of the table where no terminal sets one


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `measure` and its options."""
    parser = subparsers.add_parser(
        "measure",
        help="measure both phases",
        description="Measure prefill at several lengths and decode at several contexts, with the ways to read a prompt "
        "side by side, each against the ceilings of this machine.",
    )
    add_model(parser)
    parser.add_argument("--full", action="store_true", help="more lengths, contexts and rounds: several minutes")
    parser.add_argument("--ops", action="store_true", help="also the time of each operation, and its limit")
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds over all that is measured")
    add_engine_options(parser, mode_help="read prompts in this way only (all four, side by side)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print the table, or with `--json` the record; progress goes to a terminal's standard error."""
    from phaseline.cli.facts import check_out, emit, read_model
    from phaseline.engine.load import load
    from phaseline.execute.native import KV_TYPES
    from phaseline.lab.experiments.ops import measure_ops
    from phaseline.lab.experiments.phases import measure_phases
    from phaseline.lab.systems.phaseline import PhaselineSystem

    check_out(args)
    sampling_params(args)  # refuses a seed that no request could have
    options = load_options(args)
    only = options.pop("mode", None)  # the engine is loaded for all of them
    with closing(load(args.model, **options)) as engine, progress_bar() as progress:
        system, chunk, kv_bytes = PhaselineSystem(engine), engine.scheduler.chunk, KV_TYPES[args.kv_type].itemsize
        record = measure_phases(
            system,
            model=read_model(args.model, args.weights)[0],
            chunk=chunk,
            mode=only,
            full=args.full,
            repeats=args.repeats,
            seed=args.seed or 0,
            kv_bytes=kv_bytes,
            progress=progress,
        )
        if args.ops:
            system.configure("chunk", chunk)
            record |= measure_ops(system, chunk=chunk, seed=args.seed or 0, kv_bytes=kv_bytes, progress=progress)
    try:
        emit(args, record)  # first of all: it cost the time
    finally:  # the table is not lost where the record is
        if not args.json:
            _print(record)
    return 0


def _print(record: Mapping[str, Any]) -> None:
    from phaseline.cli.show import Screen, headline

    screen = Screen(_WIDTH)
    machine, build = record["machine"], record["build"]
    screen.prose(headline(record["model"]))
    screen.prose(f"on {machine['cpu'] or 'an unnamed processor'}, {build['threads']} threads, {build['level']}")
    screen.prose(f"by phaseline {record['version']}, rounds: {record['rounds']}; medians ± median deviations")
    screen.print(_table(record["results"]))
    screen.prose(_ceilings(record["machine"]["ceilings"]))
    for ratio in record["phase_ratios"]:
        screen.prose(_sentence(ratio))
    _print_sparse(screen, record)
    for step in record.get("op_steps", ()):
        screen.prose(_step(step))
        screen.print(_op_table([row for row in record["ops"] if row["phase"] == step["phase"]]))


def _print_sparse(screen: "Screen", record: Mapping[str, Any]) -> None:
    """What the steps of a sparse model read, and what its chunks won; nothing for a dense one."""
    from phaseline.lab.sparsity import Reading, win_sentence

    for row in record["results"]:
        if row["mode"] == "chunk" and "sparse" in row:
            screen.prose(f"{row['phase']} of {Reading(**row['sparse']).sentence()}")
    for win in record["chunk_wins"]:
        screen.prose(win_sentence(win))


def _table(rows: list[Mapping[str, Any]]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from phaseline.cli.show import figure

    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("phase", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    for header in ("tokens/\ncontext", "\nstreams", "\nms", "\n±", "\ntok/s", "GFLOP\n/s", "\nGB/s"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    table.add_column("of it", justify="right", no_wrap=True)
    phase = None
    for row in rows:
        if phase not in (None, row["phase"]):
            table.add_section()
        phase, seconds = row["phase"], row["median_s"]
        table.add_row(
            phase,
            row["mode"],
            str(row["tokens" if phase == "prefill" else "context"]),
            str(row["streams"]),
            figure(seconds * 1e3),
            figure(row["spread_s"] * 1e3, 2),
            figure(row["tok_s"]),
            figure(row["flops"] / seconds / 1e9, 3),
            figure(row["bytes"] / seconds / 1e9, 3),
            row["limit"],
            f"{row['fraction']:.0%}",
        )
    return table


def _ceilings(ceilings: Mapping[str, Any]) -> str:
    reads = ", ".join(f"{r['bytes_per_s'] / 1e9:.1f} at {r['footprint'] / 1e6:.0f} MB" for r in ceilings["read"])
    return "; ".join(
        [
            f"ceilings: {ceilings['float_flops'] / 1e9:.1f} GFLOP/s float32",
            f"{ceilings['quant_flops'] / 1e9:.1f} GFLOP/s quantised",
            f"reading, in GB/s, {reads}",
            f"a step without rows {ceilings['empty_plan'] * 1e6:.0f} µs as one call",
            f"{ceilings['empty_eager'] * 1e6:.0f} µs with a call per operation",
        ]
    )


def _sentence(ratio: Mapping[str, Any]) -> str:
    from phaseline.cli.show import figure

    marginal = ratio["marginal_tok_s"]
    more = f"; marginal rate {marginal:.0f} tok/s" if marginal else ""
    reading = f"a prompt of {ratio['prefill_tokens']} tokens is read at {ratio['prefill_tok_s']:.0f} tok/s"
    decode = f"decode's {ratio['decode_tok_s']:.0f} tok/s at context {ratio['decode_context']}"
    return f"{ratio['mode']}: {reading}, {figure(ratio['ratio'], 2)} times {decode}{more}"


def _step(step: Mapping[str, Any]) -> str:
    from phaseline.lab.stats import median

    size = f"of {step['tokens']} tokens" if step["phase"] == "prefill" else f"at context {step['context']}"
    agreement = "within 5%" if step["agrees"] else "MORE THAN 5% APART"
    whole, plain = median(step["profiled_s"]) * 1e3, median(step["step_s"]) * 1e3
    return (
        f"a {step['phase']} step {size}, by operation: their sum is {step['ratio']:.1%} of the step ({agreement}), "
        f"which takes {whole:.3g} ms with their clocks and {plain:.3g} ms without"
    )


def _op_table(rows: list[Mapping[str, Any]]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from phaseline.cli.show import figure

    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("operation", no_wrap=True)
    for header in ("times", "ms", "share", "GFLOP/s", "GB/s"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    table.add_column("of it", justify="right", no_wrap=True)
    for row in rows:
        seconds = row["median_s"]
        table.add_row(
            row["op"],
            str(row["count"]),
            figure(seconds * 1e3, 3),
            f"{row['share']:.1%}",
            figure(row["flops"] / seconds / 1e9, 3) if row["flops"] else "-",
            figure(row["bytes"] / seconds / 1e9, 2) if row["bytes"] else "-",
            row["limit"],
            f"{row['fraction']:.0%}",
        )
    return table
