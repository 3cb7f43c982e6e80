"""`phaseline lab regime`: what limits each phase."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import add_system_options, conduct_command, counts, print_table, vocabulary
from phaseline.cli.lab.own import own_engine, variant_engines

if TYPE_CHECKING:
    from phaseline.cli.show import Screen
    from phaseline.lab.experiments.base import Experiment
    from phaseline.lab.systems.base import StreamSystem

VARIANTS = ("q8_0", "bf16", "f32-state")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `regime` and its options."""
    parser = subparsers.add_parser(
        "regime",
        help="what limits each phase: launching, bandwidth, arithmetic, capacity, or unknown",
        description="Name the limit of prefill and decode, with the evidence. Of our engine: its program's costs "
        "against ceilings of the same run, and interventions (other numbers of rows, weights held as q8_0 and bf16, "
        "state as f32, a step without rows), for whole steps and operation by operation. Of other systems only how "
        "times scale is seen: such claims are inferred.",
    )
    parser.add_argument("--tokens", type=int, default=512, metavar="N", help="of the prompt (512)")
    parser.add_argument(
        "--stored", type=int, default=512, metavar="N", help="positions that decode looks back on (512)"
    )
    parser.add_argument("--streams", type=counts, default=[1, 8], metavar="N,N", help="that decode together (1,8)")
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds over all (3 to 9 in half a minute)")
    add_system_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Probe; print the finding, the claims and the operations, or with `--json` the record."""
    with ExitStack() as opened:
        return conduct_command(args, lambda system: _build(args, system, opened), show)


def _build(args: argparse.Namespace, system: "StreamSystem", opened: ExitStack) -> "Experiment":
    from phaseline.lab.experiments.regime_probe import Regime
    from phaseline.lab.experiments.signature import Signature

    own = own_engine(args, system)
    sizes = {"tokens": args.tokens, "context": args.stored, "streams": args.streams, "rounds": args.repeats}
    if own is None:
        return Signature(system, vocabulary=vocabulary(args), seed=args.seed or 0, **sizes)
    variants = {name: each for name, (_, each) in variant_engines(args, VARIANTS, opened).items()}
    return Regime(own, variants, seed=args.seed or 0, **sizes)


def show(record: Mapping[str, Any], screen: "Screen") -> None:
    """The claims with their evidence, and the operations; a limit with "?" is inferred from ceilings alone."""
    for row in record["results"]:
        screen.prose(f"\n{row['label']}: {row['limit']}{' (inferred)' * row['inferred']}")
        for sentence in row["evidence"]:
            screen.prose(f"  - {sentence}")
    for label in dict.fromkeys(row["label"] for row in record["results"]):
        rows = [row for row in record.get("ops", ()) if row["label"] == label]
        if rows:
            screen.prose(f"\n{label}, by operation; on the right the factor of its time by intervention")
            print_table(screen, *_op_table(rows))


def _op_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str | float | None]]]:
    changes = [one["change"].replace(" as ", "\nas ").replace(" the ", " the\n") for one in rows[0]["interventions"]]
    headers = ["operation", "ms", "share", "limit", "of it", *changes]
    body: list[list[str | float | None]] = [
        [
            f"{row['count']} {row['op']}",
            row["median_s"] * 1e3,
            f"{row['share']:.1%}",
            row["limit"] + "?" * row["inferred"],
            f"{row['fraction']:.0%}",
            *(f"{one['factor']:.2f}" for one in row["interventions"]),
        ]
        for row in rows
    ]
    return headers, body
