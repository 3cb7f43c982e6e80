"""What the experiments' commands share: how they are run, interrupted and saved. See also `systems` and `printing`."""

import argparse
import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from phaseline.cli.lab.printing import print_record, print_table
from phaseline.cli.lab.systems import (
    add_system_options,
    load_engine,
    model_name,
    needed_model,
    open_system,
    over_http,
    system_kind,
    vocabulary,
)
from phaseline.errors import PhaselineError

if TYPE_CHECKING:
    import asyncio

    from phaseline.cli.show import Screen
    from phaseline.lab.experiments.base import Experiment, Progress
    from phaseline.lab.summary import Objectives
    from phaseline.lab.systems.base import StreamSystem

__all__ = [
    "add_goodput",
    "add_system_options",
    "conduct_command",
    "conduct_here",
    "counts",
    "finish",
    "load_engine",
    "model_name",
    "needed_model",
    "objectives",
    "open_system",
    "over_http",
    "print_table",
    "settle_seed",
    "system_facts",
    "system_kind",
    "vocabulary",
]
DONE, INTERRUPTED = 0, 130


def counts(text: str) -> list[int]:
    """The type of options such as --prompts 16,128,512: whole numbers from 1."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a list of whole numbers above 0 such as 16,128,512")
    return [int(part) for part in parts]


def add_goodput(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """`--goodput`, as one text or as several words."""
    parser.add_argument(
        "--goodput", nargs="+", metavar="NAME:MS", help='what requests must keep, e.g. "ttft:500 tpot:50 e2el:3000"'
    )


def objectives(args: argparse.Namespace) -> "Objectives | None":
    """What `--goodput` asks for. Raises RequestError."""
    from phaseline.lab.summary import parse_goodput

    return None if args.goodput is None else parse_goodput(" ".join(args.goodput))


def settle_seed(args: argparse.Namespace) -> None:
    """`--seed`; else a new one, for the record: a server may still hold the prompts of an earlier run in its cache."""
    if args.seed is None:
        args.seed = secrets.randbelow(1 << 31)


async def system_facts(args: argparse.Namespace, system: "StreamSystem") -> dict[str, Any]:
    """`system` (in its own words), `model`, and provenance: machine, build, date, command.

    The machine is the one that this process runs on, which may not be the server's. An API key is left out.
    Raises StreamFault if a server does not answer.
    """
    from phaseline.cli.facts import read_model
    from phaseline.execute.host import cpu_model, usable_cores
    from phaseline.lab.records import provenance

    kind, told = system_kind(args), dict(await system.describe())
    model = read_model(needed_model(args), args.weights)[0] if kind == "phaseline" else {"name": _named(args, told)}
    build = told if kind == "phaseline" else {}
    machine = {"cpu": cpu_model(), "cores": usable_cores(), "client_only": bool(args.base_url)}
    facts = {"system": {"name": system.name, **told}, "model": model, **provenance(machine, build)}
    if args.api_key:
        facts["command"] = facts["command"].replace(shlex.quote(args.api_key), "...")
    return facts


def _named(args: argparse.Namespace, told: Mapping[str, Any]) -> str | None:
    """The model, as the system calls it; as it was asked for, where it does not."""
    return told.get("model") or model_name(args) or told.get("model_path")


def conduct_command(
    args: argparse.Namespace,
    build: Callable[["StreamSystem"], "Experiment"],
    show: Callable[[Mapping[str, Any], "Screen"], None],
    keep: Callable[[Mapping[str, Any]], None] = lambda record: None,
) -> int:
    """Open the system, run the experiment on it, and save and show the record; gives the exit status.

    The record goes to `--out` and, with `--json`, alone to standard output; else its `finding` is printed, then what
    `show` prints (tables). `keep` puts it elsewhere too. Ctrl-C ends the measuring: the record is kept, says `partial`,
    and the status is 130. A record with an `error` (nothing could be measured) is saved and shown as well, and refused
    with status 2.
    """
    import asyncio

    from phaseline.cli.facts import check_out
    from phaseline.cli.progress import progress_bar

    check_out(args)
    settle_seed(args)
    system = open_system(args)
    calibration = _calibration(args)
    with progress_bar() as progress:
        record = asyncio.run(_conduct(args, system, build, progress, calibration))
    return finish(args, record, show, keep)


def finish(
    args: argparse.Namespace,
    record: Mapping[str, Any],
    show: Callable[[Mapping[str, Any], "Screen"], None],
    keep: Callable[[Mapping[str, Any]], None] = lambda record: None,
) -> int:
    """Save and show a record that exists, and give the exit status: the second half of `conduct_command`.

    It is shown even where it cannot be saved.
    """
    from phaseline.cli.facts import emit

    with ExitStack() as stack:  # from the last to the first, each even if one before it fails
        if not args.json:
            stack.callback(print_record, record, show)
        stack.callback(keep, record)
        stack.callback(emit, args, record)  # first of all: it cost the time
    if record.get("partial"):
        print("phaseline: interrupted: the record is partial, it holds what was measured until then", file=sys.stderr)
        return INTERRUPTED
    if record.get("error"):
        raise PhaselineError(record["error"])
    return DONE


async def _conduct(
    args: argparse.Namespace,
    system: "StreamSystem",
    build: Callable[["StreamSystem"], "Experiment"],
    progress: "Progress",
    calibration: Mapping[str, Any] | None,
) -> dict[str, Any]:
    try:
        facts = await system_facts(args, system) | {"seed": args.seed, "calibration": calibration}
        return await conduct_here(build(system), progress, facts)
    finally:
        await system.close()


async def conduct_here(experiment: "Experiment", progress: "Progress", facts: Mapping[str, Any]) -> dict[str, Any]:
    """`conduct` under Ctrl-C, which ends the measuring and leaves a partial record; a second one interrupts that too.

    What streams that ran at once raise is one error, the first of them.
    """
    import asyncio

    from phaseline.lab.experiments.base import conduct

    task = asyncio.current_task()
    assert task is not None  # this is a coroutine
    try:
        with _interrupts_cancel(task):
            return await conduct(experiment, progress, facts)
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


@contextmanager
def _interrupts_cancel(task: "asyncio.Task[Any]") -> Iterator[None]:
    """Within it the first Ctrl-C cancels the task, which then ends in good order; a second one interrupts."""
    import asyncio

    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed and callable(before):
            before(number, frame)
        pressed = True
        loop.call_soon_threadsafe(task.cancel)

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _calibration(args: argparse.Namespace) -> dict[str, Any] | None:
    wanted = over_http(args) if args.calibrate is None else args.calibrate
    if not wanted:
        return None
    from phaseline.lab.calibration import calibrate

    return calibrate()
