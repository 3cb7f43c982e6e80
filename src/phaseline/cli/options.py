"""Options that several commands share, and what becomes of them.

An option that was not given stays out of what is passed on: its default is that of `load` or `SamplingParams`.
"""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseline.errors import RequestError

if TYPE_CHECKING:
    from phaseline.engine.types import Grammar, SamplingParams

MODEL_HELP = "a name that was pulled, a .gguf file, or a Hugging Face folder"
# As `load` has them, whose import would take longer than to refuse a misspelt one.
CHUNK = 512  # prompt tokens per step: larger ones read no faster
CHUNK_AMONG_STREAMS = 128  # a third of the gaps that 512 make, for a tenth of the throughput at most (docs/log.md)
MODES = ("walk", "eager", "layer", "dispatch", "chunk")
NUMERICS = ("fast", "invariant", "reference")
WEIGHTS = ("bf16", "q8_0")
_UNITS = {"B": 1} | {
    f"{prefix}{end}": (1000 if end == "B" else 1024) ** power
    for power, prefix in enumerate("KMGT", 1)
    for end in ("B", "iB", "")
}
POLICIES = ("mixed", "prefill-first", "decode-first")
_LOAD = (
    *("threads", "chunk", "mode", "numerics", "context", "memory", "kv_type", "weights", "level", "itl_budget_ms"),
    *("max_running", "policy"),
)
_SAMPLING = (
    *("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "ignore_eos", "seed"),
)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the record as JSON, and nothing else")
    group.add_argument("--out", type=Path, metavar="FILE", help="write the record into FILE as well")


def add_memory_options(parser: argparse._ArgumentGroup, *, chunk: int = CHUNK, chunk_note: str = "") -> None:
    """What decides whether a model fits. `chunk` is this command's default, as far as `chunk_note` does not tell."""
    text = f"most prompt tokens per step ({chunk}{chunk_note})"
    parser.add_argument("--chunk", type=int, metavar="N", default=None if chunk_note else chunk, help=text)
    parser.add_argument(
        "--memory", type=size, metavar="SIZE", help="most that is taken, e.g. 4GiB or 4G (all there is)"
    )
    parser.add_argument("--kv-type", choices=("bf16", "f32"), default="bf16", help="of keys and values (bf16)")
    parser.add_argument("--weights", choices=WEIGHTS, help="hold matrices as this type (as in the file)")


def add_engine_options(parser: argparse.ArgumentParser, *, mode_help: str = "how the prompt is read (chunk)") -> None:
    """How the model is run."""
    _add_size_options(add_common_options(parser, mode_help))


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """How a model is run for many at once."""
    group = parser.add_argument_group("engine")
    _add_threads(group)
    group.add_argument("--policy", choices=POLICIES, help="which phase goes first (mixed: both share a step)")
    group.add_argument("--max-running", type=int, metavar="N", help="most completions in a step (16)")
    _add_size_options(group, chunk=CHUNK_AMONG_STREAMS, chunk_note=f"; {CHUNK} with --itl-budget")


def add_common_options(parser: argparse.ArgumentParser, mode_help: str) -> "argparse._ArgumentGroup":
    """What every command about a model takes, so that one set of options fits them all."""
    group = parser.add_argument_group("engine")
    _add_threads(group)
    group.add_argument("--mode", choices=MODES, help=mode_help)
    group.add_argument("--numerics", choices=NUMERICS, help="reference: numpy, float32 (fast)")
    group.add_argument("--seed", type=int, metavar="N", help="makes what is drawn at random repeatable")
    return group


def add_sampling_options(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    """How tokens are chosen. `max_tokens` is this command's default."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, metavar="N", default=max_tokens, help=f"({max_tokens})")
    group.add_argument("--min-tokens", type=int, metavar="N", help="no end before so many (0)")
    group.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest token (0)")
    group.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens (0: all)")
    group.add_argument("--top-p", type=float, metavar="P", help="only the likeliest tokens of mass P (1)")
    group.add_argument("--min-p", type=float, metavar="P", help="only those at least P times as likely as the best (0)")
    for name, neutral in (("repetition", 1), ("presence", 0), ("frequency", 0)):
        group.add_argument(f"--{name}-penalty", type=float, metavar="X", help=f"({neutral}: none)")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before TEXT; may be given several times")
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on past the end-of-text token")
    form = group.add_mutually_exclusive_group()
    form.add_argument("--json-object", action="store_true", help="the answer is a JSON object")
    form.add_argument("--json-schema", type=Path, metavar="FILE", help="the answer is JSON that follows the schema")


def load_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments for `load` among `args`."""
    return _given(args, _LOAD)


def serving_options(args: argparse.Namespace) -> dict[str, Any]:
    """The same where many are served: unless a budget sizes the chunks that join streams, they are small."""
    chunk = CHUNK if args.itl_budget_ms is not None else CHUNK_AMONG_STREAMS
    return {"chunk": chunk, **load_options(args)}


def sampling_params(args: argparse.Namespace) -> "SamplingParams":
    """The sampling options, checked before a model is opened. RequestError names the one that is refused."""
    import sys

    from phaseline.engine.types import Request, SamplingParams
    from phaseline.engine.validate import validate

    params = SamplingParams(**_given(args, _SAMPLING), grammar=_grammar(args))
    validate(Request("options", [0], params), vocab=1, context=sys.maxsize)  # the prompt is a stand-in
    return params


def size(text: str) -> int:
    """Bytes that a text such as 4GiB, 4G (the same), 1.5GB or 100000 stands for."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?) ?([A-Za-z]*)", text, re.ASCII)
    unit = next((u for u in _UNITS if match and u.lower() == (match[2] or "B").lower()), None)
    if match is None or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; sizes are bytes or have a unit: {', '.join(_UNITS)}")
    return int(float(match[1]) * _UNITS[unit])


def token_ids(text: str) -> list[int]:
    """Token ids from a text such as 1,2,3."""
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a list of token ids such as 1,2,3") from None


def _add_threads(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--threads", type=int, metavar="N", help="that compute (the cores this process may use)")


def _add_size_options(group: "argparse._ArgumentGroup", *, chunk: int = CHUNK, chunk_note: str = "") -> None:
    """How much is held, and how much is read at once."""
    group.add_argument("--context", type=int, metavar="N", help="positions to make room for (the model's own limit)")
    group.add_argument(
        "--level", metavar="portable|avx2|avx512|amx", help="instruction set (the widest that runs here)"
    )
    group.add_argument(
        "--itl-budget",
        type=float,
        metavar="MS",
        dest="itl_budget_ms",
        help="while others decode, read only as much of a prompt per step as keeps their gaps below MS (all)",
    )
    add_memory_options(group, chunk=chunk, chunk_note=chunk_note)


def _grammar(args: argparse.Namespace) -> "Grammar | None":
    from phaseline.engine.types import Grammar

    path: Path | None = getattr(args, "json_schema", None)
    if path is None:
        return Grammar("json_object") if getattr(args, "json_object", False) else None
    try:
        with path.open(encoding="utf-8") as file:
            return Grammar("json_schema", file.read(1 << 20))  # more than any schema may have
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(f"--json-schema {path}: cannot be read: {reason}") from None


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}
