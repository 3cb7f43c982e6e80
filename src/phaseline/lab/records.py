"""Records of what was measured: strict JSON, with the facts one needs to measure it again."""

import contextlib
import json
import math
import numbers
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from phaseline import __version__
from phaseline.errors import PhaselineError


def provenance(machine: Mapping[str, Any], build: Mapping[str, Any]) -> dict[str, Any]:
    """Who measured, on what and when. `machine` and `build` describe the host and the native part."""
    return {
        "version": __version__,
        "machine": dict(machine),
        "build": dict(build),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def to_json(record: Mapping[str, Any]) -> str:
    """One line of strict JSON: what is not finite becomes null. Raises TypeError for anything but plain data."""
    return json.dumps(_plain(record), allow_nan=False)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record to `path`, whole or not at all. Raises PhaselineError if it cannot be written."""
    write_text(path, to_json(record) + "\n")


def write_text(path: Path, text: str) -> None:
    """As `write_record`, of what a record says in another form."""
    try:
        if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced, only written to
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path.resolve(), text)
    except OSError as error:
        raise PhaselineError(f"cannot write the record to {path}: {error.strerror}") from error


def _replace(target: Path, text: str) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    raise TypeError(f"a record holds plain data, not {type(value).__name__}")
