"""`phaseline chat`: a conversation, turn by turn."""

import argparse
import sys
from collections.abc import Callable
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
/quit         leave; so do Ctrl-D, and Ctrl-C twice where a message is awaited
Ctrl-C stops an answer. All other lines are messages, and so is a command behind a space."""
_COMMANDS = ("/help", "/reset", "/system", "/stats", "/quit")


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
    if sys.stdin is None:
        raise RequestError("standard input is closed: chat reads messages from it")
    params = sampling_params(args)

    from phaseline.engine.load import load

    with closing(load(args.model, **load_options(args))) as engine:
        conversation = Conversation(engine, params, sys.stderr if args.json else sys.stdout)
        with suppress(KeyboardInterrupt):
            _converse(conversation, asking=not args.json and sys.stdin.isatty() and sys.stdout.isatty())
        if sys.stdout.isatty():
            print()  # the shell's prompt then begins a line
        if args.json or args.out:
            emit(args, conversation.record() | answer_facts(args, engine))
    return 0


def _converse(conversation: "Conversation", *, asking: bool) -> None:
    """Take line after line of standard input, edited with readline at a terminal, until the last.

    Where no answer is on its way Ctrl-C says how to leave, as it may have been meant for an answer that had just ended;
    a second one in a row leaves.
    """
    if asking:
        import readline  # noqa: F401 (lends its editing to input)

        print("/help lists the commands, Ctrl-D leaves.", file=sys.stderr)
    # A byte that is not UTF-8 then reaches the tokenizer, which refuses it by name.
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    more, warned = True, False
    while more:
        try:
            line = input("> " if asking else "")
            with deferred_interrupts() as stopped:
                warned = True  # the first Ctrl-C only stops the answer; a second one leaves, in the midst of a step
                more = conversation.take(line, stopped)
                warned = False
                if stopped() and not conversation.cut_short:
                    raise KeyboardInterrupt  # it came when there was nothing to stop any more
        except EOFError:
            more = False
        except KeyboardInterrupt:
            if warned:
                raise
            warned = True
            _tell(f"{chr(10) * asking}press Ctrl-C again or Ctrl-D to leave")


class Conversation:
    """The messages so far. Each turn sends them all; the engine's prefix cache knows most of them."""

    def __init__(self, engine: "Engine", params: "SamplingParams", screen: TextIO) -> None:
        if engine.tokenizer is None or engine.tokenizer.chat_template is None:
            raise RequestError("the file has no chat template, so it can't hold a conversation; use `run --raw`")
        self._engine, self._params, self._screen = engine, params, screen
        self._system: list[dict[str, str]] = []
        self._messages: list[dict[str, str]] = []
        self._turns: list[dict[str, Any]] = []

    def take(self, line: str, stopped: Callable[[], bool]) -> bool:
        """Carry out a command or answer a message; False if it was the last. `stopped` ends an answer where it is."""
        if line.startswith("/") and line.split()[0] in _COMMANDS:
            return self._obey(line)
        if line.strip():
            self._say(line.strip(), stopped)
        return True

    def _say(self, text: str, stopped: Callable[[], bool]) -> None:
        """Answer a message. The answer stays in the conversation as far as it came.

        A message that can't be answered is not kept, and the reason is told.
        """
        from phaseline.cli.answer import answer, answer_record, summary

        self._messages.append({"role": "user", "content": text})
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

    def _obey(self, line: str) -> bool:
        """Carry out a command; False if it is the last."""
        command, *text = line.split(maxsplit=1)
        if command == "/quit":
            return False
        if command == "/reset":
            self._messages.clear()
            _tell("a new conversation")
        elif command == "/system":
            self._system = [{"role": "system", "content": text[0].strip()}] if text else []
            _tell("system message set" if self._system else "no system message")
        elif command == "/stats":
            _tell(self._stats())
        else:
            _tell(_HELP)
        return True

    @property
    def cut_short(self) -> bool:
        """Whether the latest answer was stopped."""
        return bool(self._turns) and self._turns[-1]["finish_reason"] == "abort"

    def record(self) -> dict[str, Any]:
        """The conversation as it stands, and the facts of every answer since the program began."""
        return {"messages": self._system + self._messages, "turns": self._turns}

    def _stats(self) -> str:
        written = sum(len(turn["token_ids"]) for turn in self._turns)
        read = sum(len(turn["prompt_token_ids"]) for turn in self._turns)
        cached = sum(turn["cached_tokens"] for turn in self._turns)
        used = len(self._engine.chat_prompt(self._system + self._messages)) if self._messages else 0
        return (
            f"{_count(len(self._turns), 'answer')} of {_count(written, 'token')}; "
            f"{_count(read, 'prompt token')}, {cached} of them cached; "
            f"the conversation takes {used} of {_count(self._engine.scheduler.context, 'position')}"
        )

    def _show(self, piece: str) -> None:
        self._screen.write(piece)
        self._screen.flush()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
