"""Records of the command line: what was run on what, and where a record goes."""

import argparse
import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseline.cli.interrupts import deferred_interrupts
from phaseline.errors import PhaselineError

if TYPE_CHECKING:
    from phaseline.engine.engine import Engine
    from phaseline.program.ir import Program


def check_out(args: argparse.Namespace) -> None:
    """Refuse a record's destination before the work is done that it is to hold."""
    if args.out is None:
        return
    try:
        reason = _obstacle(args.out)
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise PhaselineError(f"cannot write the record to {args.out}: {reason}")


def _obstacle(out: Path) -> str | None:
    """Why no file can be put at `out`. Raises OSError where the system says so."""
    if out.is_dir():
        return "it is a folder"
    if out.exists() and not out.is_file():  # a device or a pipe: written to, not replaced
        return None if os.access(out, os.W_OK) else "it is not writable"
    if not out.parent.is_dir():
        return f"there is no folder {out.parent}"
    with tempfile.NamedTemporaryFile(dir=out.resolve().parent, prefix=f".{out.name}."):  # as the record's draft
        return None


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


def read_model(name: str, weights: str | None = None) -> tuple[dict[str, Any], "Program"]:
    """What there is to say about the model `name` (its file, size, the bytes held in each format), and its program.

    weights: the type that matrices are held in, instead of the file's.
    """
    from phaseline.families import model_program
    from phaseline.files.model_file import open_model_file
    from phaseline.files.recode import RecodedFile
    from phaseline.files.zoo import resolve

    path = resolve(name)
    with closing(open_model_file(path)) as opened:
        file = opened if weights is None else RecodedFile(opened, weights)
        spec, program = model_program(file)
        size = sum(part.stat().st_size for part in file.parts)
    formats: dict[str, int] = {}
    for weight in program.weights().values():
        formats[weight.format.name] = formats.get(weight.format.name, 0) + weight.nbytes
    facts = {
        "name": name,
        "file": path.resolve().name if path.is_dir() else path.name,
        "file_bytes": size,
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
    return {"model": read_model(args.model, args.weights)[0], **provenance(machine, build)}
