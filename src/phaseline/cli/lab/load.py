"""`phaseline lab load`: many requests, at a rate or as streams, as the field's benchmarks send them."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import add_system_options, conduct_command, print_table, settle_seed
from phaseline.cli.lab.load_options import add_load_options, experiment_of, result_file, streams_asked

if TYPE_CHECKING:
    from phaseline.cli.show import Screen

_COLUMNS = (
    *("completed", "failed", "request_throughput", "output_throughput"),
    *("median_ttft_ms", "median_ttft_from_due_ms", "median_tpot_ms", "max_worst_gap_ms"),
)
_LATENCIES = (("TTFT", "ttft"), ("TTFT from due", "ttft_from_due"), ("TPOT", "tpot"), ("ITL", "itl"), ("total", "e2el"))


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `load` and its options."""
    parser = subparsers.add_parser(
        "load",
        help="many requests: rates, streams, sweeps to the knee, the best rate within objectives",
        description="Send requests at a rate (open loop) or as so many streams (closed loop), with the flags of the "
        "usual benchmarks; sweep over several, or search the highest rate that keeps the objectives.",
        epilog="Without a rate and a concurrency all requests are sent at once, or at the log's own times. -p, -n, -pg "
        "and -d send them one after another, one a run.",
    )
    add_load_options(parser)
    add_system_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Send the load; print what came of it, or with `--json` the record."""
    settle_seed(args)
    args.out = args.out or result_file(args)
    args.max_running = args.max_running or streams_asked(args)
    make = experiment_of(args)  # refuses what makes no sense before a model is loaded
    return conduct_command(args, make, show, lambda record: _export(args, record))


def show(record: Mapping[str, Any], screen: "Screen") -> None:
    """The latencies of the run that the summary is about, and a row for each pace where there are several."""
    summary, rows = record["summary"], record["results"]
    if summary is not None:
        values = [
            (name, *(summary[f"{kind}_{key}_ms"] for kind in ("mean", "median", "p99"))) for name, key in _LATENCIES
        ]
        known = [row for row in values if row[1] is not None]
        if known:
            print_table(screen, ["ms", "mean", "median", "p99"], known)
    if len(rows) > 1:
        headers = ["pace", "requests", "failed", "req/s", "output\ntok/s", "TTFT\nms", "from\ndue ms", "TPOT\nms"]
        goodput = [row["slo_attainment_from_due"] or row["slo_attainment"] for row in rows]
        shares = [None if share is None else f"{share:.0%}" for share in goodput]
        lines = [
            [row["label"], *(row[key] for key in _COLUMNS), share] for row, share in zip(rows, shares, strict=True)
        ]
        print_table(screen, [*headers, "worst\ngap ms", "goodput"], lines)
    if record["llama_bench"]:
        names = [(row, _test(row)) for row in record["llama_bench"]]
        print_table(screen, ["test", "tok/s", "±"], [(name, row["avg_ts"], row["stddev_ts"]) for row, name in names])


def _goodput(row: Mapping[str, Any]) -> str | None:
    share = row["slo_attainment"] if row["slo_attainment_from_due"] is None else row["slo_attainment_from_due"]
    return None if share is None else f"{share:.0%}"


def _test(row: Mapping[str, Any]) -> str:
    """As llama-bench names it."""
    parts = [f"{name}{row[key]}" for name, key in (("pp", "n_prompt"), ("tg", "n_gen")) if row[key]]
    return "+".join(parts) + (f" @ d{row['n_depth']}" if row["n_depth"] else "")


def _export(args: argparse.Namespace, record: Mapping[str, Any]) -> None:
    """A row for each request, into `--export`."""
    if args.export is None:
        return
    from phaseline.cli.lab.common import objectives
    from phaseline.lab.records import write_text
    from phaseline.lab.summary_rows import request_rows, to_csv, to_jsonl
    from phaseline.lab.trace import Trace
    from phaseline.lab.workload import Asked

    rows = []
    wanted = objectives(args)
    for number, run in enumerate(record["runs"]):
        part = slice(run["first"], run["first"] + run["count"])
        traces = [Trace.from_dict(trace) for trace in record["traces"][part]]
        asked = [Asked(**request) for request in record["requests"][part]]
        rows += [{"run": number, "pace": run["label"], **row} for row in request_rows(traces, asked, wanted)]
    write_text(args.export, to_csv(rows) if args.export.suffix == ".csv" else to_jsonl(rows))
