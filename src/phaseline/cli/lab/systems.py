"""The system that an experiment measures: the options that name it, and how it is opened."""

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseline.cli.options import MODEL_HELP, add_engine_options, add_output_options, load_options
from phaseline.errors import RequestError

if TYPE_CHECKING:
    from phaseline.engine.engine import Engine
    from phaseline.lab.prompts import Vocabulary
    from phaseline.lab.systems.base import StreamSystem
    from phaseline.lab.systems.timeouts import Timeouts

SYSTEMS = ("phaseline", "openai", "llamacpp", "transformers", "truth")


def add_system_options(parser: argparse.ArgumentParser) -> None:
    """The system to measure, how to reach it, and where the record goes: `--json`, `--out`, `--seed` included."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{MODEL_HELP}; of a server, the name it serves")
    group = parser.add_argument_group("system")
    group.add_argument("--model", dest="model_option", metavar="MODEL", help="the same, as an option")
    group.add_argument("--system", choices=SYSTEMS, help="(phaseline; openai with --base-url)")
    group.add_argument("--base-url", metavar="URL", help="of a running server; /v1 is added to one without a path")
    group.add_argument("--api", choices=("chat", "completions"), default="chat", help="of an OpenAI server (chat)")
    group.add_argument("--api-key", metavar="KEY", help="(the environment variable OPENAI_API_KEY)")
    group.add_argument("--no-stream", action="store_true", help="ask for whole answers: they have no TPOT")
    group.add_argument("--ca-file", metavar="FILE", help="certificates to trust instead of the system's")
    group.add_argument("--insecure", action="store_true", help="do not check the server's certificate")
    group.add_argument("--script", metavar="FILE", help="the timeline of --system truth, as JSON")
    group.add_argument(
        "--max-running",
        type=int,
        metavar="N",
        help="streams at once of an engine in this process (ours: 16, llama.cpp: 1)",
    )
    for name, default, what in (
        ("connect", 10.0, "to open a connection"),
        ("first", 600.0, "until the first token"),
        ("between", 120.0, "between two tokens"),
        ("total", None, "for a whole answer"),
    ):
        told = "no limit" if default is None else f"{default:g}"
        group.add_argument(f"--{name}-timeout", type=float, default=default, metavar="S", help=f"{what} ({told})")
    group.add_argument(
        "--calibrate",
        action=argparse.BooleanOptionalAction,
        help="measure the error of this client's clock first (over HTTP only)",
    )
    add_engine_options(parser)
    add_output_options(parser)


def model_name(args: argparse.Namespace) -> str | None:
    """MODEL, however it was given. Raises RequestError if it was given twice."""
    if args.model is not None and args.model_option is not None:
        raise RequestError(f"give the model once: it is {args.model} and --model {args.model_option}")
    name: str | None = args.model if args.model is not None else args.model_option
    return name


def needed_model(args: argparse.Namespace) -> str:
    """MODEL, where there must be one. Raises RequestError if there is none."""
    name = model_name(args)
    if name is None:
        raise RequestError(f"no MODEL: give {MODEL_HELP}, or a running server by --base-url")
    return name


def system_kind(args: argparse.Namespace) -> str:
    """Which of SYSTEMS is meant."""
    return args.system or ("openai" if args.base_url else "phaseline")


def over_http(args: argparse.Namespace) -> bool:
    """Whether a network, if only this machine's own, lies between the client and the system."""
    return system_kind(args) in ("openai", "llamacpp")


def load_engine(args: argparse.Namespace) -> "Engine":
    """Our engine with MODEL. Raises a PhaselineError that says why it cannot be."""
    from phaseline.engine.load import load

    return load(needed_model(args), **load_options(args))


def open_system(args: argparse.Namespace) -> "StreamSystem":
    """The system that the options name; one in this process has its model loaded. Raises a PhaselineError if not."""
    kind = system_kind(args)
    if args.base_url and not over_http(args):
        raise RequestError(f"--base-url is of a server, but --system {kind} runs in this process: leave one out")
    if args.script and kind != "truth":
        raise RequestError(f"--script is of --system truth, not of {kind}")
    return _OPENERS[kind](args)


def vocabulary(args: argparse.Namespace) -> "Vocabulary":
    """What random prompts for the system are made of: all token ids where MODEL is a file here, else words."""
    from phaseline.lab.prompts import WORDS

    if not args.base_url and system_kind(args) in ("phaseline", "llamacpp", "transformers"):
        path = _model_path(args)
        if path.is_file() or system_kind(args) == "phaseline":
            from phaseline.files.model_file import open_model_file

            with closing(open_model_file(path)) as file:
                return range(file.tensors["token_embd.weight"].shape[0])
    return WORDS


def _model_path(args: argparse.Namespace) -> Path:
    """The file of MODEL; the folder, where it is one."""
    from phaseline.files.zoo import resolve

    folder = Path(needed_model(args))
    return folder if folder.is_dir() else resolve(str(folder))


def _needed_url(args: argparse.Namespace) -> str:
    if not args.base_url:
        raise RequestError(f"--system {system_kind(args)} needs --base-url, for example http://127.0.0.1:8000")
    return str(args.base_url)


def _access(args: argparse.Namespace) -> dict[str, Any]:
    """How a server is reached, as the systems' keyword arguments have it."""
    if args.insecure and args.ca_file:
        raise RequestError("--insecure and --ca-file exclude each other")
    return {
        "api_key": args.api_key or os.environ.get("OPENAI_API_KEY"),
        "verify": args.ca_file or not args.insecure,
        "timeouts": _timeouts(args),
    }


def _timeouts(args: argparse.Namespace) -> "Timeouts":
    from phaseline.lab.systems.timeouts import Timeouts

    return Timeouts(args.connect_timeout, args.first_timeout, args.between_timeout, args.total_timeout)


def _open_phaseline(args: argparse.Namespace) -> "StreamSystem":
    from phaseline.lab.systems.phaseline import PhaselineStreams

    return PhaselineStreams(load_engine(args))


def _open_openai(args: argparse.Namespace) -> "StreamSystem":
    from phaseline.lab.systems.openai_http import OpenAISystem

    stream = not args.no_stream
    return OpenAISystem(_needed_url(args), model_name(args), api=args.api, stream=stream, **_access(args))


def _open_llamacpp(args: argparse.Namespace) -> "StreamSystem":
    from phaseline.execute.host import usable_cores
    from phaseline.lab.systems.llamacpp import LlamaCppSystem

    if args.base_url:
        if model_name(args) is not None:
            raise RequestError("a running llama-server serves the model it has: leave MODEL out, or --base-url")
        return LlamaCppSystem(args.base_url, **_access(args))
    return LlamaCppSystem.launch(
        _model_path(args),
        threads=args.threads or usable_cores(),
        context=args.context or 4096,
        streams=args.max_running or 1,
        ubatch=args.chunk,
        timeouts=_timeouts(args),
    )


def _open_transformers(args: argparse.Namespace) -> "StreamSystem":
    from phaseline.lab.systems.transformers import TransformersSystem

    return TransformersSystem.load(_model_path(args), threads=args.threads)


def _open_truth(args: argparse.Namespace) -> "StreamSystem":
    from phaseline.lab.systems.truth import TruthSystem
    from phaseline.lab.systems.truth_script import Script

    if args.script is None:
        raise RequestError("--system truth needs --script: the timeline that it plays")
    try:
        script = Script.from_json(Path(args.script).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read the script {args.script}: {error}") from error
    return TruthSystem(script, _timeouts(args))


_OPENERS: Mapping[str, Callable[[argparse.Namespace], "StreamSystem"]] = {
    "phaseline": _open_phaseline,
    "openai": _open_openai,
    "llamacpp": _open_llamacpp,
    "transformers": _open_transformers,
    "truth": _open_truth,
}
