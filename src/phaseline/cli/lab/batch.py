"""`phaseline lab batch`: streams that decode together."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import add_system_options, conduct_command, counts, print_table, vocabulary
from phaseline.cli.lab.own import own_engine

if TYPE_CHECKING:
    from phaseline.cli.show import Screen
    from phaseline.lab.experiments.batch import Batch
    from phaseline.lab.systems.base import StreamSystem


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `batch` and its options."""
    parser = subparsers.add_parser(
        "batch",
        help="streams that decode together: what batching amortises, and what it cannot",
        description="Step time of 1, 2, 4 ... streams that decode together: which part of it they share, and which "
        "comes anew with each of them; for our engine also what the program and the ceilings predict.",
    )
    parser.add_argument("--streams", type=counts, metavar="N,N", help="(1,2,4,8,16)")
    parser.add_argument("--stored", type=int, default=256, metavar="N", help="positions that each has stored (256)")
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds over all (3 to 9 in half a minute)")
    add_system_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; print the finding and a row for each number of streams, or with `--json` the record."""
    return conduct_command(args, lambda system: _build(args, system), show)


def _build(args: argparse.Namespace, system: "StreamSystem") -> "Batch":
    from phaseline.lab.experiments.batch import STREAMS, Batch
    from phaseline.lab.experiments.sweep import DECODED

    own = own_engine(args, system)
    most, longest = (own.system.max_running, own.system.context - DECODED) if own else (max(STREAMS), args.stored)
    return Batch(
        system,
        args.streams or [n for n in STREAMS if n <= most],
        context=min(args.stored, longest),
        rounds=args.repeats,
        vocabulary=vocabulary(args),
        seed=args.seed or 0,
        own=own,
    )


def show(record: Mapping[str, Any], screen: "Screen") -> None:
    """The table of the numbers of streams."""
    priced = any("predicted_s" in row for row in record["results"])
    headers = ["streams", "step ms", "±", "tok/s", "tok/s each", *(["least ms", "limit", "of it"] if priced else [])]
    rows = [
        [
            row["streams"],
            *(None if row[key] is None else row[key] * 1e3 for key in ("median_s", "spread_s")),
            row["tok_s"],
            row["stream_tok_s"],
            *(
                [
                    row["predicted_s"] * 1e3,
                    row["limit"],
                    None if row["fraction"] is None else f"{row['fraction']:.0%}",
                ]
                if priced
                else []
            ),
        ]
        for row in record["results"]
    ]
    print_table(screen, headers, rows)
