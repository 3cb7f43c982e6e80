"""`phaseline guard`: keeps both phases from getting slower, and wrong answers from passing for fast ones."""

import argparse
import asyncio
import math
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.specs import BUILD_SPECS, COMMAND_SPECS, SYSTEM_SPECS, open_contender, sort_of
from phaseline.cli.options import add_output_options
from phaseline.errors import RequestError

if TYPE_CHECKING:
    from phaseline.cli.show import Screen
    from phaseline.lab.contenders import Contender
    from phaseline.lab.experiments.base import Experiment
    from phaseline.lab.guard import Work
    from phaseline.lab.guard_floors import Anchor, Floors
    from phaseline.lab.guard_stats import Rules

_FLOORS = Path("guard.toml")
_UNKNOWN = 4
_STATUS = (
    "Exit status: 0 passed, 1 a phase is slower than its floor allows, 2 refused, with one line that says why, "
    "3 the answers differ, 4 too noisy to decide, 130 interrupted."
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `guard` and its three commands."""
    parser = subparsers.add_parser(
        "guard",
        help="refuse a change that makes a phase slower, or wrong",
        description="Hold one build, command or server against another: the same answers first, then both phases.",
        epilog=_STATUS,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, run, help, description in (
        ("record", _record, "measure the noise, seal an anchor", "Measure TARGET against itself; write the floors that "
         "follow from the noise, and TARGET as the anchor of later checks."),
        ("check", _check, "head against base, and against the anchor", "Measure HEAD against BASE, and against the "
         "anchor of the floors' file, in turns, until it is certain enough which it is: slower, or not."),
        ("prove", _prove, "inject slowdowns and watch the guard", "Check TARGET against itself, as it is and then with "
         "each phase slowed down: the guard must pass the one and refuse the others."),
    ):  # fmt: skip
        command = commands.add_parser(
            name,
            help=help,
            description=description,
            epilog=f"Targets are {BUILD_SPECS}; {COMMAND_SPECS}; or systems: {SYSTEM_SPECS}. {_STATUS}",
        )
        _add_targets(command, name)
        command.add_argument("--model", metavar="MODEL", help="what builds serve: a model, with options behind a comma")
        command.add_argument(
            "--floors", type=Path, metavar="FILE", help=f"what each phase may lose ({_FLOORS}, if it is there)"
        )
        _add_work(command)
        add_output_options(command)
        command.set_defaults(run=run)


def _add_targets(parser: argparse.ArgumentParser, name: str) -> None:
    if name != "check":
        parser.add_argument("target", metavar="TARGET")
    else:
        parser.add_argument("base", metavar="BASE")
        parser.add_argument("head", metavar="HEAD", nargs="?", default="this", help="(this)")
        parser.add_argument("--anchor", metavar="TARGET", help="to be held against as well (that of the floors' file)")
        parser.add_argument("--aa", action="store_true", help="measure base against itself too, and heed that noise")
    if name == "prove":
        parser.add_argument("--slowdown", type=float, default=5, metavar="PERCENT", help="what is injected (5)")
        parser.add_argument("--trials", type=int, default=1, metavar="N", help="of each kind (1)")


def _add_work(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured, and how long")
    group.add_argument("--prompt-tokens", type=int, default=256, metavar="N", help="of each timed prompt (256)")
    group.add_argument("--output-tokens", type=int, default=33, metavar="N", help="of each timed answer (33)")
    group.add_argument("--asks", type=int, metavar="N", help="per replicate (3; 1 of commands)")
    group.add_argument("--settle", type=float, default=50, metavar="MS", help="rest before each turn (50)")
    group.add_argument("--no-answers", action="store_true", help="do not compare answers: speed alone")
    group.add_argument("--catch", type=float, default=5, metavar="PERCENT", help="a slowdown that must not pass (5)")
    group.add_argument("--least", type=int, metavar="N", help="replicates at the first look (12)")
    group.add_argument("--most", type=int, metavar="N", help="replicates at the last look (140)")
    group.add_argument("--seed", type=int, metavar="N", help="of prompts and order (a new one: servers remember)")


def _record(args: argparse.Namespace) -> int:
    from phaseline.lab.guard import Noise, Replicates
    from phaseline.lab.guard_floors import floors_from_noise, write_floors

    path, rules = args.floors or _FLOORS, _rules(args)
    if not path.parent.is_dir():
        raise RequestError(f"cannot write the floors to {path}: there is no folder {path.parent}")

    def build(contenders: Mapping[str, "Contender"]) -> "Experiment":
        return Noise(Replicates(contenders, _work(args)), rules)

    status, record = _run(args, {"base": args.target, "again": args.target}, build, _show_noise)
    if status:
        return status
    floors = floors_from_noise(record["noise"], _anchor(args.target, record))
    noisy = [phase for phase, floor in floors.floor.items() if floor >= rules.catch]
    told = f"{path} is not written: the noise of {' and '.join(noisy)} hides the {rules.catch:.0%} that must not pass"
    if not noisy:
        write_floors(path, floors)
        known = ", ".join(f"{phase} {floor:.2%}" for phase, floor in floors.floor.items())
        anchor = floors.anchor.target if floors.anchor else "none, since another day it would be something else"
        told = f"written to {path}: floors {known}; anchor: {anchor}"
    if not args.json:
        print(told)
    return _UNKNOWN if noisy else 0


def _check(args: argparse.Namespace) -> int:
    from phaseline.lab.guard import Check, Replicates

    floors, rules = _floors(args), _rules(args)
    anchor = args.anchor or (floors.anchor.target if floors.anchor else None)
    targets = {"base": args.base, "head": args.head} | ({"anchor": anchor} if anchor else {})
    targets |= {"again": args.base} if args.aa else {}
    if len({sort_of(target) for target in targets.values()}) > 1:
        raise RequestError(
            f"{', '.join(targets.values())}: builds keep their own time, commands print it, systems are timed from "
            "outside; only targets of one sort can be held against each other"
        )

    def build(contenders: Mapping[str, "Contender"]) -> "Experiment":
        return Check(Replicates(contenders, _work(args)), floors.floor, rules)

    status, record = _run(args, targets, build, _show_check)
    return status or int(record["status"])


def _prove(args: argparse.Namespace) -> int:
    from phaseline.lab.guard_proof import Proof

    if not 0 < args.slowdown < math.inf or args.trials < 1:
        raise RequestError(f"--slowdown {args.slowdown} --trials {args.trials}: both must be above 0")

    def make(slow: Mapping[str, float]) -> "Contender":
        return open_contender(args.target, model=args.model, slow=slow)

    def build(contenders: Mapping[str, "Contender"]) -> "Experiment":
        slowdown = args.slowdown / 100
        return Proof(make, _work(args), _floors(args).floor, _rules(args), slowdown=slowdown, trials=args.trials)

    status, record = _run(args, {}, build, _show_proof)
    return status or int(record["status"])


def _run(
    args: argparse.Namespace,
    targets: Mapping[str, str],
    build: Callable[[Mapping[str, "Contender"]], "Experiment"],
    show: Callable[[Mapping[str, Any], "Screen"], None],
) -> tuple[int, dict[str, Any]]:
    """Open the targets, run the experiment on them, save and show its record; its exit status, and the record."""
    from phaseline.cli.facts import check_out
    from phaseline.cli.lab.common import conduct_here, finish
    from phaseline.cli.progress import progress_bar
    from phaseline.execute.host import cpu_model, usable_cores
    from phaseline.lab.records import provenance

    check_out(args)
    facts = {"targets": dict(targets), **provenance({"cpu": cpu_model(), "cores": usable_cores()}, {})}

    async def conduct() -> dict[str, Any]:
        opened: dict[str, Contender] = {}
        try:
            for role, target in targets.items():
                opened[role] = open_contender(target, model=args.model)
            return await conduct_here(build(opened), progress, facts)
        finally:
            for contender in opened.values():
                await contender.close()

    with progress_bar() as progress:
        record = asyncio.run(conduct())
    return finish(args, record, show), record


def _work(args: argparse.Namespace) -> "Work":
    from phaseline.lab.guard import Work

    # A command's run is long, and a process of its own each time.
    command = sort_of(getattr(args, "target", None) or args.base) == "command"
    asks = (1 if command else 3) if args.asks is None else args.asks
    for name, value, least in (("prompt", args.prompt_tokens, 1), ("output", args.output_tokens, 2), ("asks", asks, 1)):
        if value < least:
            raise RequestError(f"{name} = {value}: it must be at least {least}")
    if not 0 <= args.settle <= 60_000:
        raise RequestError(f"--settle {args.settle}: it must be from 0 to 60000 ms")
    seed = secrets.randbits(31) if args.seed is None else args.seed
    return Work(args.prompt_tokens, args.output_tokens, asks, not args.no_answers, seed, args.settle / 1e3)


def _rules(args: argparse.Namespace) -> "Rules":
    from phaseline.lab.guard_stats import Rules

    given = {name: value for name in ("least", "most") if (value := getattr(args, name)) is not None}
    return Rules(catch=args.catch / 100, **given)


def _floors(args: argparse.Namespace) -> "Floors":
    from phaseline.lab.guard_floors import Floors, read_floors

    if args.floors is None and not _FLOORS.exists():
        return Floors()
    return read_floors(args.floors or _FLOORS)


def _anchor(target: str, record: Mapping[str, Any]) -> "Anchor | None":
    """The target as an anchor, if it will mean the same another day."""
    from phaseline.lab.guard_builds import resolve_revision
    from phaseline.lab.guard_floors import Anchor

    kind, _, what = target.partition(":")
    if kind == "rev":
        target = f"rev:{resolve_revision(what)}"
    elif kind != "cmd" and not what.startswith(("http://", "https://")):
        return None
    costs = {f"{phase}_ms": round(seconds * 1e3, 4) for phase, seconds in record["costs"].items()}
    return Anchor(target, record["date"], record["command"], **costs)


def _show_check(record: Mapping[str, Any], screen: "Screen") -> None:
    from phaseline.cli.lab.common import print_table

    if not record["results"]:
        return
    names = ("loss", "low", "high", "floor")
    headers = ("phase", "against", "head\nms", "reference\nms", "lost\n%", "from\n%", "to\n%", "floor\n%", "verdict")
    rows = [
        [
            row["phase"],
            row["reference"],
            row["head_s"] * 1e3,
            row["reference_s"] * 1e3,
            *(f"{row[name] * 100:.1f}" if -1 < row[name] < math.inf else "-" for name in names),
            row["verdict"],
        ]
        for row in record["results"]
    ]
    print_table(screen, headers, rows)
    screen.prose(f"{len(record['replicates'])} replicates; seed {record['work']['seed']}")


def _show_noise(record: Mapping[str, Any], screen: "Screen") -> None:
    screen.prose(f"{len(record['replicates'])} replicates; seed {record['work']['seed']}")


def _show_proof(record: Mapping[str, Any], screen: "Screen") -> None:
    from phaseline.cli.lab.common import print_table

    says = {0: "passed", 1: "refused", 4: "undecided"}
    rows = [
        [
            str(row["trial"] + 1),
            row["injected"],
            *(f"{row['losses'][phase]:+.1%}" for phase in ("prefill", "decode")),
            str(row["replicates"]),
            says[row["status"]],
            "yes" if row["as_expected"] else "NO",
        ]
        for row in record["results"]
    ]
    headers = ("trial", "slowed", "prefill\nlost", "decode\nlost", "replicates", "the guard", "as it should")
    print_table(screen, headers, rows)
