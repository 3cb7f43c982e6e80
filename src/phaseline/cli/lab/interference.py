"""`phaseline lab interference`: a long prompt among running streams."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.common import add_system_options, conduct_command, print_table, system_kind, vocabulary
from phaseline.errors import RequestError

if TYPE_CHECKING:
    from phaseline.cli.show import Screen
    from phaseline.lab.experiments.stage import Scene, Setting, Stage
    from phaseline.lab.systems.base import StreamSystem

_CHUNKS = [0, 64, 128, 256, 512]  # of our own engine
_INTRUDER = 2000  # tokens of its prompt


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `interference` and its options."""
    parser = subparsers.add_parser(
        "interference",
        help="a long prompt among running streams: what it costs them, over chunk sizes",
        description="Streams decode; a long prompt arrives. Their worst gaps and stalls against its TTFT: of our "
        "engine over chunk sizes, and with --itl-budget also with chunks sized by time; of a server as it is.",
    )
    parser.add_argument(
        "--chunks",
        type=_chunks,
        metavar="N,N",
        help="tokens per step, 0: the whole prompt (0,64,128,256,512); of a server the one that it has, if it is known",
    )
    add_scene_options(parser, intruder_tokens=_INTRUDER)
    add_system_options(parser)
    parser.set_defaults(run=run)


def add_scene_options(parser: argparse.ArgumentParser, *, intruder_tokens: int) -> None:
    """Who meets whom, and how often. `intruder_tokens` is this command's default."""
    parser.add_argument("--victims", type=int, default=1, metavar="N", help="streams that decode (1)")
    parser.add_argument("--victim-tokens", type=int, default=32, metavar="N", help="of each victim's prompt (32)")
    parser.add_argument(
        "--stream-tokens", type=int, metavar="N", help="of each victim's answer (as many as outlive the prompt)"
    )
    parser.add_argument(
        "--arrival-step",
        type=int,
        default=32,
        metavar="N",
        help="tokens that victims have when the prompt arrives (32)",
    )
    parser.add_argument(
        "--intruder-tokens", type=int, metavar="N", help=f"of its prompt ({intruder_tokens}, or as many as fit)"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds over all settings (3)")
    parser.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers go on to the asked length (yes); some servers do not know how",
    )


def run(args: argparse.Namespace) -> int:
    """Measure; print the finding and a row for each setting, or with `--json` the record."""
    from phaseline.lab.experiments.interference import Interference

    settings = _settings(args)
    scene = scene_of(args, _INTRUDER)
    prepare(args, max(scene.intruder_tokens if setting.chunk == 0 else setting.chunk or 1 for setting in settings))

    def build(system: "StreamSystem") -> Interference:
        stage = stage_of(args, system)
        return Interference(stage, fitting_scene(args, scene, stage), settings, repeats=args.repeats)

    return conduct_command(args, build, show)


def show(record: Mapping[str, Any], screen: "Screen") -> None:
    """The table of the settings: medians over the rounds."""
    headers = [
        *("setting", "gap before\nmedian ms", "\nworst", "gap during\nmedian ms", "\nworst", "95%\ninterval"),
        *("TTFT\nms", "95%\ninterval", "\nstalls"),
    ]
    rows = [
        [
            row["setting"],
            *(milliseconds(seconds) for seconds in (row["before"]["median_gap_s"], row["before"]["worst_gap_s"])),
            *(milliseconds(row["median_gap_s"]), milliseconds(row["worst_gap_s"])),
            interval(row["worst_gap_interval_s"]),
            *(milliseconds(row["ttft_s"]), interval(row["ttft_interval_s"])),
            _stalls(row),
        ]
        for row in record["results"]
    ]
    print_table(screen, headers, rows)


def scene_of(args: argparse.Namespace, intruder_tokens: int) -> "Scene":
    """The scene that the options describe, where they say nothing of the prompt with so many. Raises RequestError."""
    from phaseline.lab.experiments.stage import Scene

    return Scene(
        victims=args.victims,
        victim_tokens=args.victim_tokens,
        stream_tokens=args.stream_tokens,
        step=args.arrival_step,
        intruder_tokens=intruder_tokens if args.intruder_tokens is None else args.intruder_tokens,
    )


def fitting_scene(args: argparse.Namespace, scene: "Scene", stage: "Stage") -> "Scene":
    """The same with the longest prompt that our engine's context holds, where the options leave its length open."""
    if args.intruder_tokens is not None or stage.own is None:
        return scene
    most = max(1, stage.own.context - scene.intruder_output)
    return replace(scene, intruder_tokens=min(scene.intruder_tokens, most))


def stage_of(args: argparse.Namespace, system: "StreamSystem") -> "Stage":
    """Where the scene is played."""
    from phaseline.lab.experiments.stage import Stage
    from phaseline.lab.systems.phaseline import PhaselineStreams

    own = system.stepwise() if isinstance(system, PhaselineStreams) else None
    words = vocabulary(args)
    return Stage(system, own, args.mode or "chunk", words, ignore_eos=args.ignore_eos, seed=args.seed or 0)


def prepare(args: argparse.Namespace, chunk: int) -> None:
    """Make room for this chunk, and for all streams, in an engine that is loaded in this process."""
    if system_kind(args) == "phaseline":
        args.chunk = chunk
    if args.max_running is None:
        args.max_running = args.victims + 1


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def interval(seconds: tuple[float, float] | None) -> str | None:
    """In milliseconds, to three digits or whole."""
    from phaseline.cli.show import figure

    return None if seconds is None else "..".join(figure(each * 1e3, 3) for each in seconds)


def _stalls(row: Mapping[str, Any]) -> str | None:
    """The most of a clash, of those that the chunk allows."""
    if not row["stalls"]:
        return None
    return str(max(row["stalls"])) + ("" if row["most_stalls"] is None else f" of {row['most_stalls']}")


def _settings(args: argparse.Namespace) -> "list[Setting]":
    from phaseline.lab.experiments.stage import Setting

    if system_kind(args) != "phaseline":
        if args.itl_budget_ms is not None:
            raise RequestError("--itl-budget is our engine's: a server keeps its own settings")
        return [Setting(chunk) for chunk in args.chunks or [None]]
    chunks = list(dict.fromkeys(args.chunks or _CHUNKS))
    settings = [Setting(chunk) for chunk in chunks]
    if args.itl_budget_ms is not None:
        settings.append(Setting(0 if 0 in chunks else max(chunks), args.itl_budget_ms))
        args.itl_budget_ms = None  # it is a setting, not how the engine is loaded
    return settings


def _chunks(text: str) -> list[int]:
    """Whole numbers from 0."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a list of chunk sizes such as 0,64,128")
    return [int(part) for part in parts]
