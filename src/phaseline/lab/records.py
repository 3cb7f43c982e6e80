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


def provenance(build: Mapping[str, Any]) -> dict[str, Any]:
    """Who measured, on what and when. `build` describes the native part; None stands where the host does not tell."""
    return {
        "version": __version__,
        "build": dict(build),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "core_quota": cgroup_cores(),
    }


def cpu_model(root: Path = Path("/")) -> str | None:
    """The processor's name as the kernel gives it, None if it does not."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def cgroup_cores(root: Path = Path("/")) -> float | None:
    """The tightest CPU quota of this process's control groups (v2 or v1), in cores; None without a quota."""
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        here = root / "sys/fs/cgroup" / ("cpu" if controllers else "") / group.lstrip("/")
        # every group above limits too; in a container the path may be the host's, and only its top is mounted
        for folder in (here, *here.parents):
            limit = _read(folder / "cpu.max").split() or [
                *_read(folder / "cpu.cfs_quota_us").split(),
                *_read(folder / "cpu.cfs_period_us").split(),
            ]
            if len(limit) == 2 and limit[0] not in ("max", "-1"):
                quotas.append(int(limit[0]) / int(limit[1]))
    return min(quotas, default=None)


def to_json(record: Mapping[str, Any]) -> str:
    """One line of strict JSON: what is not finite becomes null. Raises TypeError for anything but plain data."""
    return json.dumps(_plain(record), allow_nan=False)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record to `path`, whole or not at all. Raises PhaselineError if it cannot be written."""
    line = to_json(record) + "\n"
    try:
        if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced, only written to
            path.write_text(line, encoding="utf-8")
        else:
            _replace(path.resolve(), line)
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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
