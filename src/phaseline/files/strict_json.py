"""JSON from strangers: bounded in size, depth and number of values; no key twice, no number that is none."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from phaseline.errors import FileFormatError

MAX_BYTES = 4 << 20  # of a file
MAX_DEPTH = 32
MAX_VALUES = 1 << 20


def read_object(path: Path, *, limit: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object that a file is. FileFormatError says what is wrong with it."""
    try:
        if not path.is_file():  # a pipe would keep us waiting
            raise FileFormatError(f"{path}: there is no such file")
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > limit:
        raise FileFormatError(f"{path} has more than the {limit} bytes that are read of such a file")
    return parse_object(raw, str(path))


def parse_object(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `raw`; FileFormatError, which begins with `where`, for anything else."""
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MAX_VALUES:
        raise FileFormatError(f"{where} holds more than {MAX_VALUES} values")
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:  # no UTF-8 is a ValueError too
        raise FileFormatError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FileFormatError(f"{where} holds no JSON object")
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        if not level:
            return value
    raise FileFormatError(f"{where} is nested deeper than {MAX_DEPTH} levels")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = Counter(names).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r:.80} appears twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text:.40} is too large")
    return value
