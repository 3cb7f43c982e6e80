"""`phaseline lab prefill`: what reading a prompt costs, by its length."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import add_system_options, conduct_command, counts, print_table, vocabulary
from phaseline.cli.lab.own import fitting, own_engine

if TYPE_CHECKING:
    from phaseline.cli.show import Screen
    from phaseline.lab.experiments.prefill import Prefill
    from phaseline.lab.systems.base import StreamSystem


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `prefill` and its options."""
    parser = subparsers.add_parser(
        "prefill",
        help="prompts by length: the floor, the slope behind it, the phase ratio",
        description="Time to the first token over prompt lengths: the least a prompt costs, where that floor ends, and "
        "what each token costs beyond; the phase ratio; for our engine also what logits of all rows would cost.",
    )
    parser.add_argument("--lengths", type=counts, metavar="N,N", help="prompt tokens (1 to 1024, as far as they fit)")
    parser.add_argument("--decode-context", type=int, default=64, metavar="N", help="of the phase ratio's decode (64)")
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds over all lengths (3 to 9 in half a minute)")
    add_system_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; print the finding and a row for each length, or with `--json` the record."""
    return conduct_command(args, lambda system: _build(args, system), show)


def _build(args: argparse.Namespace, system: "StreamSystem") -> "Prefill":
    from phaseline.lab.experiments.prefill import LENGTHS, Prefill

    own = own_engine(args, system)
    return Prefill(
        system,
        fitting(args.lengths, LENGTHS, own, 1),
        context=args.decode_context,
        rounds=args.repeats,
        vocabulary=vocabulary(args),
        seed=args.seed or 0,
        own=own,
    )


def show(record: Mapping[str, Any], screen: "Screen") -> None:
    """The table of the lengths, and of the decode that the ratio stands on."""
    fit, priced = record["fit"], any("limit" in row for row in record["results"])
    headers = ["phase", "tokens", "context", "ms", "±", "tok/s", "fit ms", *(["limit", "of it"] if priced else [])]
    rows = []
    for row in record["results"]:
        prefill = row["phase"] == "prefill"
        known = fit and prefill
        fitted = fit["floor_s"] + fit["slope_s"] * max(0, row["tokens"] - (fit["knee"] or 0)) if known else None
        rows.append(
            [
                row["phase"],
                row["tokens"] if prefill else None,
                None if prefill else row["context"],
                *(None if row[key] is None else row[key] * 1e3 for key in ("median_s", "spread_s")),
                row["tok_s"],
                None if fitted is None else fitted * 1e3,
                *([row["limit"], None if row["fraction"] is None else f"{row['fraction']:.0%}"] if priced else []),
            ]
        )
    print_table(screen, headers, rows)
