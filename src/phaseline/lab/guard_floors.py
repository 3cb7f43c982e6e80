"""The guard's small file: how much each phase may lose, and the anchor that every head is held against."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from phaseline.errors import FileFormatError, PhaselineError
from phaseline.lab.contenders import PHASES

LEAST_FLOOR = 0.01  # a smaller loss is nobody's business, however well it can be seen

_HEAD = """\
# What `phaseline guard check` lets a change cost: percent of a phase's time, beyond which it refuses.
# A floor is 1 %, or the noise where that is larger: what two runs of one and the same thing may differ by (A/A).
"""
_ANCHOR = """
# Measured again in every check, so that small losses cannot add up. Its figures are of the day it was sealed.
"""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A state that was sealed: what it is (as the guard's targets are written), when and how, and its figures then."""

    target: str
    date: str
    command: str
    prefill_ms: float
    decode_ms: float


@dataclass(frozen=True, slots=True)
class Floors:
    """Losses of time, as shares, by phase; the noise that they come from, where it was measured."""

    floor: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, LEAST_FLOOR))
    noise: Mapping[str, float] = field(default_factory=dict)
    anchor: Anchor | None = None


def floors_from_noise(noise: Mapping[str, float], anchor: Anchor | None = None) -> Floors:
    """The default floors on a machine with this noise: 1 %, or the noise where that is larger."""
    return Floors({phase: max(LEAST_FLOOR, noise.get(phase, 0.0)) for phase in PHASES}, dict(noise), anchor)


def write_floors(path: Path, floors: Floors) -> None:
    """Write the file, with its explanation. Raises PhaselineError if it cannot be written."""
    tables = [_HEAD, _table("floor_percent", floors.floor)]
    if floors.noise:
        tables.append("\n" + _table("noise_percent", floors.noise))
    if floors.anchor:
        lines = [f"{f.name} = {_toml(getattr(floors.anchor, f.name))}" for f in fields(Anchor)]
        tables.append("\n".join([_ANCHOR + "[anchor]", *lines, ""]))
    try:
        path.write_text("".join(tables), encoding="utf-8")
    except OSError as error:
        raise PhaselineError(f"cannot write the floors to {path}: {error.strerror}") from error


def read_floors(path: Path) -> Floors:
    """Inverse of `write_floors`; a phase without a floor has the least one. Raises a PhaselineError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PhaselineError(f"cannot read the floors from {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} is not TOML: {error}") from None
    unknown = data.keys() - {"floor_percent", "noise_percent", "anchor"}
    if unknown:
        raise FileFormatError(f"{path}: unknown table {min(unknown)!r}")
    floor = _shares(path, "floor_percent", data.get("floor_percent", {}))
    anchor = data.get("anchor")
    if anchor is not None:
        kinds: Mapping[str, type | tuple[type, ...]] = {
            f.name: str if f.type is str else (int, float) for f in fields(Anchor)
        }
        if not isinstance(anchor, dict) or anchor.keys() != kinds.keys():
            raise FileFormatError(f"{path}: the anchor has exactly {', '.join(kinds)}")
        for name, kind in kinds.items():
            if not isinstance(anchor[name], kind):
                raise FileFormatError(f"{path}: the anchor's {name} cannot be {anchor[name]!r}")
    return Floors(
        dict.fromkeys(PHASES, LEAST_FLOOR) | floor,
        _shares(path, "noise_percent", data.get("noise_percent", {})),
        Anchor(**anchor) if anchor else None,
    )


def _table(name: str, shares: Mapping[str, float]) -> str:
    return "".join([f"[{name}]\n", *(f"{phase} = {share * 100:.2f}\n" for phase, share in shares.items())])


def _shares(path: Path, name: str, table: Any) -> dict[str, float]:
    shares = {}
    for phase, percent in table.items() if isinstance(table, dict) else [(name, table)]:
        if phase not in PHASES or isinstance(percent, bool) or not isinstance(percent, int | float):
            raise FileFormatError(
                f"{path}: {name} gives a number for {' and '.join(PHASES)}, not {phase} = {percent!r}"
            )
        if not 0 <= percent < 100:
            raise FileFormatError(f"{path}: {phase} = {percent} in {name}: percent are from 0 to below 100")
        shares[phase] = percent / 100
    return shares


def _toml(value: str | float) -> str:
    if isinstance(value, str):  # a JSON string is a TOML string, but for this one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{value:.6g}"
