"""The command line's grammar: every command's options, and how a usage error is told."""

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from phaseline import __version__

_COMMANDS = ("pull", "run", "chat", "serve", "measure", "explain", "lab", "guard", "report")


class Parser(argparse.ArgumentParser):
    """Options by their full names only; an error is one line on standard error.

    With `any_order` positional arguments may stand before, between and behind options, each of which takes at most one
    value; by itself argparse gives up on an optional argument as soon as an option follows the one before.
    """

    def __init__(self, *, any_order: bool = False, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)
        self._any_order = any_order

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args(self._options_first(args) if self._any_order else args, namespace)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # of help, where an error is still handled
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {one_line(message)}\n")

    def _options_first(self, args: Iterable[str]) -> list[str]:
        """Options, each in one piece with its value, then `--`, then all else."""
        known, options, words, left = self._option_string_actions, list[str](), list[str](), deque(args)
        while left:
            arg = left.popleft()
            if arg == "--":
                words += left
                break
            if not self._is_option(arg):
                words.append(arg)
            elif arg in known and known[arg].nargs is None and left and left[0] not in (*known, "--"):
                options.append(f"{arg}={left.popleft()}")
            else:
                options.append(arg)
        return [*options, "--", *words]

    def _is_option(self, arg: str) -> bool:
        """As argparse has it: neither a dash alone nor a negative number, nor what has a space in its name."""
        number = self._negative_number_matcher.match(arg)
        return arg.startswith("-") and arg != "-" and not number and " " not in arg.partition("=")[0]


def build_parser(words: Sequence[str]) -> Parser:
    """The parser of the command that `words` begin with, or of all where it is none."""
    parser = Parser(
        prog="phaseline",
        description="An LLM inference engine for CPUs, and a lab that measures its prefill and its decode.",
        epilog="MODEL is a name that was pulled, a .gguf file, or a Hugging Face folder. Exit status: 0 done, 2 "
        "refused, with one line that says why, 130 interrupted, 141 where the reader of the output has gone.",
    )
    parser.add_argument(
        *("--version", "-V"), action=_Version, nargs=0, help="print the version and the instruction set in use"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in words[:1] if words[:1] and words[0] in _COMMANDS else _COMMANDS:
        import_module(f"phaseline.cli.{name}").add_parser(commands)
    return parser


def as_typed(message: str, words: Sequence[str]) -> str:
    """A refusal of a setting ("max_queue = 0: ...") by the option and value that were typed for it, if they were."""
    name, equals, rest = message.partition(" = ")
    value, colon, reason = rest.partition(": ")
    setting = name.lower().replace(" ", "_")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, has_value, typed = word.partition("=")
        typed = typed if has_value else following
        ours = option.startswith("--") and option[2:].replace("-", "_") in (setting, setting.removesuffix("s"))
        if equals and colon and ours and _same(typed, value):  # not where it was converted, or is one of several
            return f"{option} {typed}: {reason}"
    return message


def _same(typed: str, value: str) -> bool:
    if typed == value.strip("'\""):
        return True
    try:
        return float(typed) == float(value.partition(" ")[0])  # which may have a unit
    except ValueError:
        return False


def one_line(message: str) -> str:
    return " ".join(message.split())


class _Version(argparse.Action):
    """Asks the compiled part only where the version is wanted."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from phaseline import _native

        levels = _native.levels()
        print(f"{parser.prog} {__version__} ({levels[-1]}; runs here: {', '.join(levels)})")
        parser.exit()
