"""`phaseline`: the command line's entry, and what every command does about errors and interruptions.

It imports next to nothing by itself: what takes time to import is imported where Ctrl-C is handled already.
"""

import os
import sys
from collections.abc import Sequence

from phaseline.cli.interrupts import own_interrupts
from phaseline.errors import PhaselineError

REFUSED, INTERRUPTED, BROKEN_PIPE = 2, 130, 141  # the last two as a shell reports SIGINT and SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: done. 2: bad usage or refused input, with one line on standard error that says what and why. 130: interrupted.
    141: whoever read standard output has closed it.
    """
    words = sys.argv[1:] if argv is None else argv
    with own_interrupts() as interrupted:
        try:
            _settle_streams()
            from phaseline.cli.parser import build_parser

            args = build_parser(words).parse_args(words)
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
                return BROKEN_PIPE if isinstance(error, BrokenPipeError) else _refuse(error, words)
            if isinstance(error, PhaselineError):
                return _refuse(error, words)
            raise


def _settle_streams() -> None:
    """Make output that the terminal's encoding lacks a question mark, not an error; refuse to work for no output."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it lasts as long as the process)
    if sys.stdout is None:
        raise PhaselineError("standard output is closed")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _refuse(error: Exception, words: Sequence[str]) -> int:
    from phaseline.cli.parser import as_typed, one_line

    print(f"phaseline: error: {one_line(as_typed(str(error), words))}", file=sys.stderr)
    return REFUSED
