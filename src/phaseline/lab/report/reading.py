"""From files to records: JSON, one record to a file, or JSON lines. What is no record of the lab is refused by name."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from phaseline.errors import FileFormatError, PhaselineError
from phaseline.lab.bounded_text import no_constant
from phaseline.lab.report.fields import Fields
from phaseline.lab.report.record import KINDS, Record

_MOST_BYTES, _MOST_DIGITS = 1 << 29, 19


def read_records(paths: Iterable[Path]) -> list[Record]:
    """All records of the files, in order.

    Raises FileFormatError, naming file, line and key, for what is not a record of `measure` or of an experiment, and
    PhaselineError for a file that cannot be read.
    """
    found: list[Record] = []
    for path in paths:
        for place, data in _objects(path):
            found.append(Record(len(found) + 1, place, kind_of(data, place), Fields(data, place)))
    return found


def kind_of(data: Mapping[str, Any], place: str) -> str:
    """Which of KINDS a record is of; `place` is where it stands. Raises FileFormatError if it is of none."""
    known = f"known are measure's and those of the experiments {', '.join(k for k in KINDS if k != 'measure')}"
    name = data.get("experiment")
    if name is None:
        if isinstance(data.get("results"), list) and isinstance(data.get("phase_ratios"), list):
            return "measure"
        keys = ", ".join(list(data)[:8]) or "none"
        raise FileFormatError(f"{place}: not a record that can be reported (keys: {keys:.200}); {known}")
    if not isinstance(name, str) or name not in KINDS or name == "measure":
        raise FileFormatError(f"{place}: a record of the unknown experiment {name!r:.60}; {known}")
    return name


def _objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, object) of each record in a file."""
    whole = _text(path)
    try:
        yield str(path), _object(whole)
        return
    except ValueError as error:
        lines = [(n, line) for n, line in enumerate(whole.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not _is_object(lines[0][1]):  # not JSON lines either
            raise FileFormatError(f"{path}: {error}") from error
    for number, line in lines:
        place = f"{path}, line {number}"
        try:
            yield place, _object(line)
        except ValueError as error:
            raise FileFormatError(f"{place}: {error}") from error


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise FileFormatError(f"{path} has more than {_MOST_BYTES} bytes: too many for a page to show")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PhaselineError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text, parse_constant=no_constant, parse_int=_whole, parse_float=_finite)
    except RecursionError:
        raise ValueError("not a record: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("not a record: a JSON object is expected")
    return found


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"{digits[:_MOST_DIGITS]}... has more digits than any measurement")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is beyond all numbers")
    return number


def _is_object(text: str) -> bool:
    try:
        _object(text)
    except ValueError:
        return False
    return True
