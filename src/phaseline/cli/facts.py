"""Records of the command line: what was run on what, and where a record goes."""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseline.cli.interrupts import deferred_interrupts
from phaseline.errors import PhaselineError

if TYPE_CHECKING:
    from phaseline.engine.engine import Engine
    from phaseline.program.ir import Program


def check_out(args: argparse.Namespace) -> None:
    """Refuse a record's destination before the work is done that it is to hold."""
    folder = args.out.parent if args.out else Path()
    if not folder.is_dir():
        raise PhaselineError(f"cannot write the record to {args.out}: there is no folder {folder}")


def emit(args: argparse.Namespace, record: Mapping[str, Any]) -> None:
    """The record, to wherever `--out` and `--json` want it: whole, even if it is interrupted by then.

    It is printed even where it cannot be written: the measurement is not lost to a full disk.
    """
    from phaseline.lab.records import to_json, write_record

    with deferred_interrupts():
        try:
            if args.out:
                write_record(args.out, record)
        finally:
            if args.json:
                print(to_json(record), flush=True)


def read_model(name: str) -> tuple[dict[str, Any], "Program"]:
    """What there is to say about the model `name` (its file, size, the bytes held in each format), and its program."""
    from phaseline.families import model_program
    from phaseline.files.gguf import open_gguf
    from phaseline.files.zoo import resolve

    path = resolve(name)
    with open_gguf(path) as file:
        spec, program = model_program(file)
    formats: dict[str, int] = {}
    for weight in program.weights().values():
        formats[weight.format.name] = formats.get(weight.format.name, 0) + weight.nbytes
    facts = {
        "name": name,
        "file": path.name,
        "file_bytes": path.stat().st_size,
        "arch": spec.arch,
        "layers": spec.layers,
        "parameters": sum(math.prod(w.shape) for w in program.weights().values()),
        "weight_bytes": formats,
        "context": program.context,
    }
    return facts, program


def answer_facts(args: argparse.Namespace, engine: "Engine") -> dict[str, Any]:
    """Provenance of answers: model, machine and build."""
    from phaseline.execute.host import cpu_model, usable_cores
    from phaseline.execute.native import NativeExecutor
    from phaseline.lab.records import provenance

    executor = engine.executor
    build: dict[str, Any] = {"executor": "reference"}
    if isinstance(executor, NativeExecutor):
        build = {"executor": "native", "level": executor.level, "threads": executor.team.size, "mode": executor.mode}
    machine = {"cpu": cpu_model(), "cores": usable_cores()}
    return {"model": read_model(args.model)[0], **provenance(machine, build)}
