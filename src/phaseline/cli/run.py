"""`phaseline run`: answer one prompt."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phaseline.cli.options import (
    add_engine_options,
    add_model,
    add_output_options,
    add_sampling_options,
    load_options,
    sampling_params,
    token_ids,
)
from phaseline.errors import RequestError

if TYPE_CHECKING:
    from phaseline.engine.engine import Engine


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `run` and its options."""
    parser = subparsers.add_parser(
        "run",
        any_order=True,
        help="answer one prompt",
        description="Answer one prompt: the text to standard output as it comes, then one line of figures to standard "
        "error. The prompt is put into the file's chat template where it has one.",
    )
    add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="the text; - reads it from standard input")
    parser.add_argument("--ids", type=token_ids, metavar="1,2,3", help="the prompt as token ids, instead of a text")
    parser.add_argument("--raw", action="store_true", help="send the text as it is, without the chat template")
    add_sampling_options(parser, max_tokens=256)
    add_engine_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Stream the answer; with `--json` print its record alone."""
    from phaseline.cli.answer import answer, answer_record, summary
    from phaseline.cli.facts import answer_facts, check_out, emit

    if (args.prompt is None) == (args.ids is None):
        raise RequestError("run takes one prompt: a text, - for standard input, or --ids")
    check_out(args)
    text = None if args.prompt is None else _read(args.prompt, raw=args.raw)
    params = sampling_params(args)

    from phaseline.engine.load import load

    engine = load(args.model, **load_options(args))
    prompt = args.ids if text is None else _encode(engine, text, raw=args.raw)
    generation = answer(engine, prompt, params, (lambda piece: None) if args.json else _show)
    if not args.json:
        print(flush=True)
        print(summary(generation), file=sys.stderr)
    if args.json or args.out:
        emit(args, answer_record(generation) | answer_facts(args, engine))
    return 0


def _read(prompt: str, *, raw: bool) -> str:
    """The prompt's text. RequestError if there is none, or if it is not UTF-8."""
    piped = prompt == "-"
    if piped and sys.stdin is None:
        raise RequestError("the prompt is -, but standard input is closed")
    try:
        text = (sys.stdin.buffer.read() if piped else os.fsencode(prompt)).decode()
    except UnicodeError as error:
        raise RequestError(f"{'standard input' if piped else 'the prompt'} is not UTF-8: {error}") from None
    if piped and not raw:
        text = text.removesuffix("\n")  # the line's end is not part of a message
    if not text:
        raise RequestError("the prompt is empty: at least one character is needed")
    return text


def _encode(engine: "Engine", text: str, *, raw: bool) -> Sequence[int]:
    tokenizer = engine.tokenizer
    assert tokenizer is not None  # a loaded engine has one
    if raw or tokenizer.chat_template is None:
        return tokenizer.encode(text)
    try:
        return engine.chat_prompt([{"role": "user", "content": text}])
    except RequestError as error:
        raise RequestError(f"{error}; --raw sends the text as it is") from None


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
