"""What the host tells: its processor, cores and memory, as affinity and control groups limit them."""

import os
from pathlib import Path

import pytest

from phaseline.execute.host import available_memory, cgroup_cores, cpu_model, usable_cores


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_processor_is_named_or_null(tmp_path: Path) -> None:
    assert cpu_model(tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\nmodel name\t: A CPU: fast\n"})) == "A CPU: fast"
    assert cpu_model(tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\n"})) is None
    assert cpu_model(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "2 1", "sys/fs/cgroup/a/b/cpu.max": "3 1"}, 2.0),
        ({"proc/self/cgroup": "0::/host/only\n", "sys/fs/cgroup/cpu.max": "4 1\n"}, 4.0),
        (
            {
                "proc/self/cgroup": "5:memory:/y\n4:cpu,cpuacct:/x\n0::/\n",
                "sys/fs/cgroup/cpu/y/cpu.cfs_quota_us": "10000\n",
                "sys/fs/cgroup/cpu/y/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        ({}, None),
    ],
)
def test_the_tightest_quota_counts(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    assert cgroup_cores(tree(tmp_path, files)) == cores


def test_affinity_bounds_the_usable_cores() -> None:
    allowed = os.sched_getaffinity(0)
    assert 1 <= usable_cores() <= len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


MEMINFO = {"proc/meminfo": "MemTotal:       9000 kB\nMemAvailable:   4000 kB\nHugePages_Total: 0\n"}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 4000 << 10),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 4000 << 10),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "3000000\n",
                "sys/fs/cgroup/a/memory.current": "1000000\n",
                "sys/fs/cgroup/a/b/memory.max": "2500000\n",
                "sys/fs/cgroup/a/b/memory.current": "1000\n",
            },
            2_000_000,
        ),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "1000\n",
                "sys/fs/cgroup/a/memory.current": "2000\n",
            },
            0,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/y\n4:memory:/x\n0::/\n",
                "sys/fs/cgroup/memory/y/memory.limit_in_bytes": "1\n",
                "sys/fs/cgroup/memory/y/memory.usage_in_bytes": "0\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "700000\n",
                "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "100000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "200000\n",
            },
            600_000,
        ),
        # the cache of files counts as used, and is given up when memory is asked for
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "3000000\n",
                "sys/fs/cgroup/memory.current": "2900000\n",
                "sys/fs/cgroup/memory.stat": "anon 100000\nactive_file 500000\ninactive_file 1500000\n",
            },
            2_100_000,
        ),
        # more than the host has
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": str(1 << 40),
                "sys/fs/cgroup/memory.current": "0",
            },
            4000 << 10,
        ),
    ],
)
def test_the_tightest_memory_limit_counts(tmp_path: Path, files: dict[str, str], free: int) -> None:
    assert available_memory(tree(tmp_path, MEMINFO | files)) == free


def test_a_host_that_tells_nothing_has_nothing(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == 0


def test_this_host_has_memory() -> None:
    assert available_memory() > 1 << 20
