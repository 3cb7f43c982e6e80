"""`phaseline lab compare`: systems side by side, and which phase of which is furthest behind."""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import conduct_here, counts, finish, print_table
from phaseline.cli.lab.specs import BUILD_SPECS, SYSTEM_SPECS, open_contender, same_build, sort_of
from phaseline.cli.options import add_output_options
from phaseline.errors import RequestError

if TYPE_CHECKING:
    from phaseline.cli.show import Screen
    from phaseline.lab.contenders import Contender
    from phaseline.lab.experiments.compare import Roles


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `compare` and its options."""
    parser = subparsers.add_parser(
        "compare",
        help="systems side by side: both phases, and the one that is furthest behind",
        description="Give several systems the same work by turns, in rounds of random order, and hold them against the "
        "first one: both phases, both phase ratios, and what the worst of it looks like.",
        epilog=f"Systems are {SYSTEM_SPECS}; or {BUILD_SPECS}.",
    )
    parser.add_argument("systems", metavar="SYSTEM", nargs="+", help="the first one is the reference")
    parser.add_argument("--model", metavar="MODEL", help="what builds serve: a model, with options behind a comma")
    group = parser.add_argument_group("what is measured")
    group.add_argument("--prompts", type=counts, default=[128, 512], metavar="N,N", help="prompt tokens (128,512)")
    group.add_argument("--context", type=int, default=128, metavar="N", help="tokens before those decoded (128)")
    group.add_argument("--tokens", type=int, default=32, metavar="N", help="tokens decoded per sample (32)")
    group.add_argument("--rounds", type=int, default=9, metavar="N", help="whole replicates (9)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and order (0)")
    group = parser.add_argument_group("denominators; where one build comes twice, its options are one by themselves")
    group.add_argument("--parent", metavar="SYSTEM", help="what came before, measured again now, e.g. rev:HEAD~1")
    group.add_argument("--published", type=Path, metavar="FILE", help="the figures last published (TOML)")
    group.add_argument("--aa", action="store_true", help="measure the reference against itself too: the noise")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, and print the tables, or with `--json` the record."""
    from phaseline.cli.facts import check_out
    from phaseline.cli.progress import progress_bar
    from phaseline.execute.host import cpu_model, usable_cores
    from phaseline.lab.experiments.compare import Compare
    from phaseline.lab.records import provenance
    from phaseline.lab.standings import Published

    check_out(args)
    roles = _roles(args)
    published = Published.read(args.published) if args.published else None
    facts = provenance({"cpu": cpu_model(), "cores": usable_cores()}, {})

    async def conduct() -> dict[str, Any]:
        opened: list[Contender] = []
        try:
            more = [*([args.parent] if args.parent else []), *(args.systems[:1] if args.aa else [])]
            for spec in [*args.systems, *more]:
                opened.append(open_contender(spec, model=args.model))
            experiment = Compare(
                opened,
                roles,
                prompts=args.prompts,
                context=args.context,
                tokens=args.tokens,
                rounds=args.rounds,
                seed=args.seed,
                published=published,
            )
            return await conduct_here(experiment, progress, facts)
        finally:
            for contender in opened:
                await contender.close()

    with progress_bar() as progress:
        record = asyncio.run(conduct())
    return finish(args, record, _show)


def _roles(args: argparse.Namespace) -> "Roles":
    from phaseline.lab.experiments.compare import Roles

    specs: Sequence[str] = args.systems
    pairs = [(a, b) for a in range(len(specs)) for b in range(a + 1, len(specs)) if same_build(specs[a], specs[b])]
    others = [number for number in range(1, len(specs)) if (0, number) not in pairs]
    subject = others[0] if others else 0
    if args.parent and sort_of(args.parent) != sort_of(specs[subject]):
        raise RequestError(
            f"--parent {args.parent} is not measured as {specs[subject]} is: a build keeps its own time. Hold "
            "builds against builds (this, rev:REVISION), systems against systems"
        )
    return Roles(
        systems=len(specs),
        subject=subject,
        parent=len(specs) if args.parent else None,
        again=len(specs) + bool(args.parent) if args.aa else None,
        attributions=pairs,
    )


def _show(record: Mapping[str, Any], screen: "Screen") -> None:
    headers = ("system", "phase", "tokens", "context", "tok/s", "of the first", "95% of rounds")
    rows: list[Sequence[str | float | None]] = []
    for number, row in enumerate(record["standings"]):
        sizes = {"prefill": (row["prefill_tokens"], None), "decode": (None, row["decode_context"])}
        for phase, (tokens, context) in sizes.items():
            ratio = (row[f"{phase}_of_reference"] if number else None) or dict.fromkeys(("value", "low", "high"))
            span = None if ratio["low"] is None else f"{ratio['low']:.3g} - {ratio['high']:.3g}"
            value = None if ratio["value"] is None else f"{ratio['value']:.3g}"
            rows.append([_short(row["system"]), phase, tokens, context, row[f"{phase}_tok_s"], value, span])
    print_table(screen, headers, rows)
    for row in record["standings"]:
        marginal = row["marginal_tok_s"]
        beside = "" if marginal is None else f", beside a marginal rate of {marginal:.0f} tok/s"
        screen.prose(f"{row['system']}: phase ratio {_ratio(row['phase_ratio'])}{beside}")
    for row in record["denominators"]:
        screen.prose(_denominator(row))
    if record["noise"]:
        told = ", ".join(f"{phase} {share:.1%}" for phase, share in record["noise"].items() if share is not None)
        screen.prose(f"noise (the first system against itself): {told or 'unknown'}")
    screen.prose(f"rounds: {record['rounds']}; medians; in brackets intervals of 95% over rounds")


def _short(name: str) -> str:
    """For a table: a file without its folders."""
    kind, _, rest = name.partition(":")
    what, comma, options = rest.partition(",")
    return name if "://" in what else f"{kind}:{Path(what).name}{comma}{options}" if rest else name


def _ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return "unknown"
    span = "" if ratio["low"] is None else f" ({ratio['low']:.3g}-{ratio['high']:.3g})"
    return f"{ratio['value']:.3g}{span}"


def _denominator(row: Mapping[str, Any]) -> str:
    questions = {
        "attribution": "what its option is worth (attribution)",
        "parent": "what the change is worth (parent, measured again now)",
        "published": "against the published figure",
    }
    figures = ", ".join(f"{phase} {_ratio(row[phase])}" for phase in ("prefill", "decode"))
    where = f"; commit {row['commit']}, by {row['command']}" if row["commit"] else ""
    until = f"; good until {row['expires']}{', EXPIRED' if row['expired'] else ''}" if row["expires"] else ""
    return f"{questions[row['kind']]}: {row['of']} over {row['against']}: {figures}{where}{until}"
