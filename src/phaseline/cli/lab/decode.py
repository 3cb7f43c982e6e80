"""`phaseline lab decode`: what a token costs, by the context it looks back on."""

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import add_system_options, conduct_command, counts, print_table, vocabulary
from phaseline.cli.lab.own import fitting, own_engine, variant_engines

if TYPE_CHECKING:
    from phaseline.cli.show import Screen
    from phaseline.lab.experiments.decode import Decode
    from phaseline.lab.systems.base import StreamSystem

VARIANTS = ("eager", "q8_0", "bf16")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `decode` and its options."""
    parser = subparsers.add_parser(
        "decode",
        help="tokens by context: TPOT, and what each stored position adds",
        description="Time per output token of one stream over contexts, and what each stored position adds to it; for "
        "our engine also what its keys and values should add, and the time with other weights and another mode.",
    )
    parser.add_argument("--contexts", type=counts, metavar="N,N", help="positions (64 to 2000, as far as they fit)")
    parser.add_argument(
        "--variants",
        type=lambda text: [part for part in text.split(",") if part],
        metavar="NAME,NAME",
        help="of our engine: eager (a call per operation), q8_0, bf16 (weights), f32-state (eager,q8_0,bf16; none: '')",
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds over all (3 to 9 in half a minute)")
    add_system_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; print the finding and a row for each context, or with `--json` the record."""
    with ExitStack() as opened:
        return conduct_command(args, lambda system: _build(args, system, opened), show)


def _build(args: argparse.Namespace, system: "StreamSystem", opened: ExitStack) -> "Decode":
    from phaseline.lab.experiments.decode import CONTEXTS, Decode
    from phaseline.lab.experiments.sweep import DECODED

    own = own_engine(args, system)
    engines = variant_engines(args, VARIANTS if args.variants is None else args.variants, opened) if own else {}
    return Decode(
        system,
        fitting(args.contexts, CONTEXTS, own, DECODED),
        variants={name: streams for name, (streams, _) in engines.items()},
        owns=({"": own} | {name: each for name, (_, each) in engines.items()}) if own else {},
        rounds=args.repeats,
        vocabulary=vocabulary(args),
        seed=args.seed or 0,
    )


def show(record: Mapping[str, Any], screen: "Screen") -> None:
    """The table of the contexts and the variants."""
    priced = any("limit" in row for row in record["results"])
    headers = ["variant", "context", "ms", "±", "tok/s", *(["GB/s", "limit", "of it"] if priced else [])]
    rows = [
        [
            row["system"] or "",
            row["context"],
            *(None if row[key] is None else row[key] * 1e3 for key in ("median_s", "spread_s")),
            row["tok_s"],
            *(
                [
                    row["bytes"] / row["median_s"] / 1e9 if row["median_s"] else None,
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
