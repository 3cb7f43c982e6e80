"""`phaseline lab endtoend`: whole requests over a grid of lengths."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import (
    add_goodput,
    add_system_options,
    conduct_command,
    counts,
    objectives,
    print_table,
    vocabulary,
)

if TYPE_CHECKING:
    from phaseline.cli.show import Screen


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `endtoend` and its options."""
    parser = subparsers.add_parser(
        "endtoend",
        help="whole requests: TTFT, TPOT, worst gap, and which phase dominates",
        description="Whole requests over a grid of prompt and output lengths, one stream at a time: TTFT, TPOT, worst "
        "gap, the share of each phase, and how many requests meet the objectives.",
    )
    parser.add_argument("--prompts", type=counts, default=[16, 128, 512], metavar="N,N", help="tokens (16,128,512)")
    parser.add_argument("--outputs", type=counts, default=[8, 64], metavar="N,N", help="tokens (8,64)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="requests of each cell (5)")
    parser.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers go on to the asked length (yes); some servers do not know how",
    )
    add_goodput(parser)
    add_system_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure the grid; print the finding and a row for each cell, or with `--json` the record."""
    from phaseline.lab.experiments.endtoend import EndToEnd

    wanted = objectives(args)
    return conduct_command(
        args,
        lambda system: EndToEnd(
            system,
            args.prompts,
            args.outputs,
            repeats=args.repeats,
            vocabulary=vocabulary(args),
            objectives=wanted,
            ignore_eos=args.ignore_eos,
            seed=args.seed,
        ),
        show,
    )


def show(record: Mapping[str, Any], screen: "Screen") -> None:
    """The table of the cells: medians, but for the worst gap."""
    goodput = record["slo_attainment"] is not None
    headers = [
        "prompt",
        "output",
        "TTFT\nms",
        "TPOT\nms",
        "worst\ngap ms",
        "total\nms",
        "prefill",
        "decode",
        "dominates",
    ]
    rows = [
        [
            row["prompt"],
            row["output"],
            *(None if row[name] is None else row[name] * 1e3 for name in ("ttft_s", "tpot_s", "worst_gap_s", "e2e_s")),
            *(None if row[name] is None else f"{row[name]:.0%}" for name in ("prefill_share", "decode_share")),
            row["dominant"],
            *([f"{row['slo_attainment']:.0%}"] if goodput else []),
        ]
        for row in record["results"]
    ]
    print_table(screen, [*headers, *(["goodput"] if goodput else [])], rows)
