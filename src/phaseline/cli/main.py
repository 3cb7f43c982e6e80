"""`phaseline`: the command line's entry, and what every command does about errors and interruptions."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from phaseline import __version__
from phaseline.cli import chat, explain, guard, lab, measure, pull, report, run
from phaseline.cli.interrupts import own_interrupts
from phaseline.errors import PhaselineError

REFUSED, INTERRUPTED, BROKEN_PIPE = 2, 130, 141  # the last two as a shell reports SIGINT and SIGPIPE


class _Parser(argparse.ArgumentParser):
    """Options by their full names only; an error is one line on standard error."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # of help, where an error is still handled
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: error: {_one_line(message)}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: done. 2: bad usage or refused input, with one line on standard error that says what and why. 130: interrupted.
    141: whoever read standard output has closed it.
    """
    parser = _build_parser()
    with own_interrupts() as interrupted:
        try:
            args = parser.parse_args(argv)
            status: int = args.run(args)
            sys.stdout.flush()
            return status
        except BaseException as error:
            if interrupted():
                if sys.stderr.isatty():
                    print(file=sys.stderr)  # the shell's prompt then begins a line
                return INTERRUPTED
            if isinstance(error, OSError):
                # What is still buffered has nowhere to go, and the flush at exit would fail once more.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return BROKEN_PIPE if isinstance(error, BrokenPipeError) else _refuse(error)
            if isinstance(error, PhaselineError):
                return _refuse(error)
            raise


def _refuse(error: Exception) -> int:
    print(f"phaseline: error: {_one_line(str(error))}", file=sys.stderr)
    return REFUSED


def _build_parser() -> _Parser:
    parser = _Parser(
        prog="phaseline",
        description="An LLM inference engine for CPUs, and a lab that measures its prefill and its decode.",
        epilog="MODEL is a name that was pulled, or the path of a .gguf file. Exit status: 0 done, 2 refused, with one "
        "line that says why, 130 interrupted, 141 where the reader of the output has gone.",
    )
    parser.add_argument(
        *("--version", "-V"), action=_Version, nargs=0, help="print the version and the instruction set in use"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (pull, run, chat, measure, explain, lab, guard, report):
        command.add_parser(commands)
    return parser


class _Version(argparse.Action):
    """Asks the compiled part only where the version is wanted."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from phaseline import _native

        levels = _native.levels()
        print(f"{parser.prog} {__version__} ({levels[-1]}; runs here: {', '.join(levels)})")
        parser.exit()


def _one_line(message: str) -> str:
    return " ".join(message.split())
