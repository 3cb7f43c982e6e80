"""What this process may use of its host: cores, memory. Every figure honours affinity and control groups."""

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def cpu_model(root: Path = _ROOT) -> str | None:
    """The processor's name as the kernel gives it, None if it does not."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def cgroup_cores(root: Path = _ROOT) -> float | None:
    """The tightest CPU quota of this process's control groups (v2 or v1), in cores; None without a quota."""
    quotas = []
    for folder in _control_groups("cpu", root):
        limit = _read(folder / "cpu.max").split() or [
            *_read(folder / "cpu.cfs_quota_us").split(),
            *_read(folder / "cpu.cfs_period_us").split(),
        ]
        if len(limit) == 2 and limit[0] not in ("max", "-1"):
            quotas.append(int(limit[0]) / int(limit[1]))
    return min(quotas, default=None)


def usable_cores() -> int:
    """Threads that can run at once: the affinity mask, and the quota rounded up."""
    quota = cgroup_cores()
    allowed = len(os.sched_getaffinity(0))
    return allowed if quota is None else max(1, min(allowed, int(-(-quota // 1))))


def available_memory(root: Path = _ROOT) -> int:
    """Bytes that this process can still take without swapping: the host's estimate, and its groups' limits."""
    amounts = []
    for line in _read(root / "proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            amounts.append(int(value.split()[0]) * 1024)
    for folder in _control_groups("memory", root):
        limit = (_read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")).strip()
        used = (_read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")).strip()
        if limit.isdigit() and used.isdigit():
            amounts.append(max(0, int(limit) - int(used) + _reclaimable(folder)))
    return min(amounts, default=0)


def _reclaimable(folder: Path) -> int:
    """Bytes of file cache counted as used by a memory group, which it gives up when asked for more."""
    counts = dict(line.split(None, 1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
    prefix = "total_" if "total_active_file" in counts else ""  # version 1 has both, with and without its children
    return sum(int(counts.get(prefix + name, 0)) for name in ("active_file", "inactive_file"))


def _control_groups(controller: str, root: Path) -> Iterator[Path]:
    """This process's groups and all above them, which limit it too."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # In a container the path may be the host's, and only its top is mounted.
        here = root / "sys/fs/cgroup" / (controller if controllers else "") / group.lstrip("/")
        yield from (here, *here.parents)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
