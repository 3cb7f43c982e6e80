"""One side of a comparison in one word of the command line: KIND:WHAT[,OPTION=VALUE...]."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from phaseline.cli.lab.systems import SYSTEMS, add_system_options, load_engine, open_system, vocabulary
from phaseline.cli.options import load_options
from phaseline.errors import RequestError

if TYPE_CHECKING:
    from phaseline.lab.contenders import Contender
    from phaseline.lab.guard_builds import Build
    from phaseline.lab.systems.base import StreamSystem

SYSTEM_SPECS = """\
phaseline:MODEL, llamacpp:MODEL (in this process) or llamacpp:URL, openai:URL, transformers:FOLDER; options of the \
system follow as in the other experiments, e.g. phaseline:smollm2,mode=walk,threads=1 or openai:URL,api=completions"""
BUILD_SPECS = """\
rev:REVISION (of the git repository here, built with pip) and this (the phaseline that runs): they serve --model, in \
processes of their own"""
COMMAND_SPECS = "cmd:COMMAND: prints a record of phaseline run, measure or lab load --json, or llama-bench -o json"
_OWN = {"system", "base-url", "script", "json", "out", "calibrate", "seed"}  # the spec's own, or the command's


def open_contender(spec: str, *, model: str | None = None, slow: Mapping[str, float] | None = None) -> "Contender":
    """What a spec means. It is loaded when it is started. `model` is what builds serve.

    With `slow` it is slowed by those shares of its phases, and measured in the same way if they are empty.
    Raises RequestError for a spec that makes no sense, or for one that cannot be slowed.
    """
    kind, _, what = spec.partition(":")
    if sort_of(spec) == "command":
        from phaseline.lab.guard_commands import CommandContender

        if slow is not None:
            raise RequestError(f"{spec}: a command cannot be slowed in one phase; a build or a server can")
        return CommandContender(what)
    if sort_of(spec) == "build":
        return _open_build(spec, model, slow)
    if kind not in SYSTEMS or not what:
        raise RequestError(f"{spec!r} is not KIND:WHAT with a KIND of {', '.join((*SYSTEMS, 'rev', 'cmd'))}, or this")
    return _open_system(spec, slow)


def sort_of(spec: str) -> str:
    """Who keeps the time: a `build`, in its process; a `command`, in what it prints; or the lab itself, of a `system`.

    Times of different sorts cannot be held against each other.
    """
    if spec == "this" or spec.startswith("rev:"):
        return "build"
    return "command" if spec.startswith("cmd:") else "system"


def same_build(one: str, other: str) -> bool:
    """Whether two specs are one thing, run with different options."""
    return one != other and one.partition(",")[0] == other.partition(",")[0]


def _open_build(spec: str, model: str | None, slow: Mapping[str, float] | None) -> "Contender":
    from phaseline.files.zoo import resolve
    from phaseline.lab.guard_builds import WorkerContender

    if model is None:
        raise RequestError(f"{spec}: say what it serves by --model, e.g. --model smollm2 or --model smollm2,threads=1")
    args = _parse(f"phaseline:{model}")
    options = load_options(args)
    path, words = resolve(args.model).resolve(), vocabulary(args)  # before anything is built
    return WorkerContender(_build(spec), str(path), words, options, slow)


def _build(spec: str) -> "Build":
    from phaseline.cli import guard_worker
    from phaseline.lab.guard_builds import revision_build, this_build

    worker = Path(guard_worker.__file__).resolve()
    return this_build(worker) if spec == "this" else revision_build(spec.partition(":")[2], worker)


def _open_system(spec: str, slow: Mapping[str, float] | None) -> "Contender":
    from phaseline.lab.contenders import StreamContender

    args = _parse(spec)
    words = vocabulary(args)
    if slow is None:
        return StreamContender(spec, lambda: open_system(args), words, lasting=bool(args.base_url))
    if args.base_url:
        from phaseline.lab.proxy import ProxiedContender

        def behind(url: str) -> "StreamSystem":
            return open_system(argparse.Namespace(**vars(args) | {"base_url": url}))

        return ProxiedContender(spec, args.base_url, behind, slow, words)
    if args.system != "phaseline":
        raise RequestError(f"{spec}: only phaseline, rev, this, and servers by their URL can be slowed")
    from phaseline.cli.guard_worker import Slowed
    from phaseline.lab.systems.phaseline import PhaselineStreams

    def slowed() -> "StreamSystem":
        engine = load_engine(args)
        engine.executor = Slowed(engine.executor, **slow)
        return PhaselineStreams(engine)

    return StreamContender(spec, slowed, words)


def _parse(spec: str) -> argparse.Namespace:
    """The options that a spec stands for, as the other experiments take them."""
    kind, _, rest = spec.partition(":")
    what, *settings = rest.split(",")
    parser = _SpecParser(spec)
    add_system_options(parser)
    words = []
    for setting in settings:
        name = setting.partition("=")[0].replace("_", "-")
        if name in _OWN:
            raise RequestError(f"{spec}: {name} is no option of a system")
        words.append(f"--{name}{setting[len(name) :]}")
    if kind == "truth":
        words.append(f"--script={what}")
    elif what.startswith(("http://", "https://")) or kind == "openai":
        words.append(f"--base-url={what}")
    else:
        words += ["--", what]
    return parser.parse_args([f"--system={kind}", *words])


class _SpecParser(argparse.ArgumentParser):
    def __init__(self, spec: str) -> None:
        super().__init__(allow_abbrev=False, add_help=False)
        self._spec = spec

    def error(self, message: str) -> NoReturn:
        raise RequestError(f"{self._spec}: {message}")
