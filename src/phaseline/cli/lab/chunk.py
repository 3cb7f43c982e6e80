"""`phaseline lab chunk`: which chunk size, for which gap."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import add_system_options, conduct_command, counts, print_table
from phaseline.cli.lab.interference import (
    add_scene_options,
    fitting_scene,
    interval,
    milliseconds,
    prepare,
    scene_of,
    stage_of,
)

if TYPE_CHECKING:
    from phaseline.cli.show import Screen
    from phaseline.lab.systems.base import StreamSystem


_INTRUDER = 1024  # tokens of its prompt
_SIZES = (8, 16, 32, 64, 128, 256, 512)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `chunk` and its options."""
    parser = subparsers.add_parser(
        "chunk",
        help="what chunks cost, and which one keeps a stated gap",
        description="What a chunk of a prompt adds to a step beside running streams, over sizes: floor, knee, slope; "
        "worst gap against TTFT; and with --itl-budget MS the chunk that keeps gaps below MS, tried at once. Of a "
        "server, whose chunk can't be changed from here, the sizes are those of whole prompts.",
    )
    usual = ",".join(map(str, _SIZES))
    parser.add_argument("--sizes", type=counts, metavar="N,N", help=f"tokens ({usual}, as far as the prompt goes)")
    add_scene_options(parser, intruder_tokens=_INTRUDER)
    add_system_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; print the finding and a row for each size, or with `--json` the record."""
    from phaseline.lab.experiments.chunk import ChunkSize

    scene = scene_of(args, _INTRUDER)
    budget, args.itl_budget_ms = args.itl_budget_ms, None  # the question, not how the engine is loaded
    prepare(args, max(args.sizes or _SIZES))

    def build(system: "StreamSystem") -> ChunkSize:
        stage = stage_of(args, system)
        fitting = fitting_scene(args, scene, stage)
        sizes = args.sizes or [size for size in _SIZES if size <= fitting.intruder_tokens]
        return ChunkSize(stage, fitting, sizes, repeats=args.repeats, itl_budget_ms=budget)

    return conduct_command(args, build, show)


def show(record: Mapping[str, Any], screen: "Screen") -> None:
    """Sizes, then what was tried with the answer: medians over the rounds."""
    headers = ["chunk", "prompt", "gap during\nmedian ms", "\nworst", "95%\ninterval", "TTFT\nms", "95%\ninterval"]
    rows = [
        [
            row.get("setting") if "size" not in row else str(row["size"]),
            row["asked_tokens"],
            *(milliseconds(row["median_gap_s"]), milliseconds(row["worst_gap_s"])),
            interval(row["worst_gap_interval_s"]),
            milliseconds(row["ttft_s"]),
            interval(row["ttft_interval_s"]),
        ]
        for row in (*record["results"], *record["checks"])
    ]
    print_table(screen, headers, rows)
