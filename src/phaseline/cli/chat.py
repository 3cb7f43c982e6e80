"""`phaseline chat`: a conversation, turn by turn."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TextIO

from phaseline.cli.interrupts import deferred_interrupts
from phaseline.cli.options import (
    add_engine_options,
    add_model,
    add_output_options,
    add_sampling_options,
    load_options,
    sampling_params,
)
from phaseline.errors import CapacityError, RequestError

if TYPE_CHECKING:
    from phaseline.engine.engine import Engine
    from phaseline.engine.types import SamplingParams

_HELP = """\
/reset        forget the conversation, but not what /system set
/system TEXT  set the system message for all turns; without TEXT, remove it
/stats        what the conversation amounts to so far
/quit         leave; so do Ctrl-D, and Ctrl-C where a message is awaited
Ctrl-C stops an answer. A line that begins with a space is a message, whatever follows."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `chat` and its options."""
    parser = subparsers.add_parser(
        "chat",
        help="hold a conversation",
        description="Hold a conversation: each line of standard input is a message, or a command (/help lists them). "
        "Answers go to standard output, figures to standard error. What a conversation has in common with its turn "
        "before is read from the prefix cache.",
    )
    add_model(parser)
    add_sampling_options(parser, max_tokens=1024)
    add_engine_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer message by message until the input ends; with `--json` standard output has the record alone."""
    from phaseline.cli.facts import answer_facts, check_out, emit

    check_out(args)
    params = sampling_params(args)

    from phaseline.engine.load import load

    with closing(load(args.model, **load_options(args))) as engine:
        conversation = Conversation(engine, params, sys.stderr if args.json else sys.stdout)
        with suppress(KeyboardInterrupt):  # where no answer is on its way, Ctrl-C leaves
            for line in _lines(asking=not args.json and sys.stdin.isatty() and sys.stdout.isatty()):
                if line.startswith("/"):
                    if not conversation.obey(line):
                        break
                elif line.strip():
                    conversation.say(line.strip())
        if sys.stdout.isatty():
            print()  # the shell's prompt then begins a line
        if args.json or args.out:
            emit(args, conversation.record() | answer_facts(args, engine))
    return 0


def _lines(*, asking: bool) -> Iterator[str]:
    """Lines of standard input, edited with readline at a terminal."""
    if asking:
        import readline  # noqa: F401 (lends its editing to input)

        print("/help lists the commands, Ctrl-D leaves.", file=sys.stderr)
    # A byte that is not UTF-8 then reaches the tokenizer, which refuses it by name.
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    with suppress(EOFError):
        while True:
            yield input("> " if asking else "")


class Conversation:
    """The messages so far. Each turn sends them all; the engine's prefix cache knows most of them."""

    def __init__(self, engine: "Engine", params: "SamplingParams", screen: TextIO) -> None:
        if engine.tokenizer is None or engine.tokenizer.chat_template is None:
            raise RequestError("the file has no chat template, so it can't hold a conversation; use `run --raw`")
        self._engine, self._params, self._screen = engine, params, screen
        self._system: list[dict[str, str]] = []
        self._messages: list[dict[str, str]] = []
        self._turns: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        """Answer a message. Ctrl-C stops the answer, which stays in the conversation as far as it came.

        A message that can't be answered is not kept, and the reason is told.
        """
        from phaseline.cli.answer import answer, answer_record, summary

        self._messages.append({"role": "user", "content": text})
        with deferred_interrupts() as stopped:
            try:
                prompt = self._engine.chat_prompt(self._system + self._messages)
                generation = answer(self._engine, prompt, self._params, self._show, stopped=stopped)
            except (RequestError, CapacityError) as error:
                self._messages.pop()
                full = isinstance(error, CapacityError)
                _tell(f"your message was not kept: {error}{'; /reset begins anew' if full else ''}")
                return
        self._show("\n")
        _tell(summary(generation))
        self._messages.append({"role": "assistant", "content": generation.text})
        self._turns.append(answer_record(generation))

    def obey(self, line: str) -> bool:
        """Carry out a command; False if it is the last."""
        command, _, text = line.partition(" ")
        if command == "/quit":
            return False
        if command == "/reset":
            self._messages.clear()
            _tell("a new conversation")
        elif command == "/system":
            self._system = [{"role": "system", "content": text.strip()}] if text.strip() else []
            _tell("system message set" if self._system else "no system message")
        elif command == "/stats":
            _tell(self._stats())
        else:
            _tell(_HELP if command == "/help" else f"there is no command {command}; /help lists them")
        return True

    def record(self) -> dict[str, Any]:
        """The conversation as it stands, and the facts of every answer since the program began."""
        return {"messages": self._system + self._messages, "turns": self._turns}

    def _stats(self) -> str:
        written = sum(len(turn["token_ids"]) for turn in self._turns)
        read = sum(len(turn["prompt_token_ids"]) for turn in self._turns)
        cached = sum(turn["cached_tokens"] for turn in self._turns)
        used = len(self._engine.chat_prompt(self._system + self._messages)) if self._messages else 0
        return (
            f"{len(self._turns)} answers of {written} tokens; {read} prompt tokens, {cached} of them cached; "
            f"the conversation takes {used} of {self._engine.scheduler.context} positions"
        )

    def _show(self, piece: str) -> None:
        self._screen.write(piece)
        self._screen.flush()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
