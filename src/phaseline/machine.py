"""This machine's ceilings, measured with the same threads and instructions that run the model.

A shared machine's speed swings within minutes, so a ceiling counts only for figures of the same run: it is measured
between the replicates, and the maximum is used.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phaseline import _native
from phaseline.execute.host import available_memory, cgroup_cores, cpu_model, usable_cores
from phaseline.execute.native import NativeExecutor, best_level


@dataclass(frozen=True)
class Ceilings:
    """Rates per second of the whole team.

    float_flops: float32 multiply-adds (two each) from registers. quant_flops: products of weight codes and
    fifteen-bit activations, counted likewise. read: (footprint in bytes, bytes per second), by rising footprint.
    empty_plan, empty_eager: seconds of a step without rows, as one call and with one call per operation: what
    launching costs.
    """

    float_flops: float
    quant_flops: float
    read: tuple[tuple[int, float], ...]
    empty_plan: float
    empty_eager: float

    def best(self, other: "Ceilings") -> "Ceilings":
        """The higher of each rate, the lower of each time."""
        return Ceilings(
            max(self.float_flops, other.float_flops),
            max(self.quant_flops, other.quant_flops),
            tuple((f, max(a, b)) for (f, a), (_, b) in zip(self.read, other.read, strict=True)),
            min(self.empty_plan, other.empty_plan),
            min(self.empty_eager, other.empty_eager),
        )

    def read_at(self, footprint: float) -> float:
        """Bytes per second where this many bytes are read again and again: interpolated between measured footprints."""
        below, above = self.read[0], self.read[-1]
        if footprint <= below[0]:
            return below[1]
        for point in self.read:
            if point[0] >= footprint:
                above = point
                break
            below = point
        if above[0] <= below[0]:
            return above[1]
        share = min(1.0, (footprint - below[0]) / (above[0] - below[0]))
        return below[1] + share * (above[1] - below[1])

    def record(self) -> dict[str, Any]:
        """Plain data for a record."""
        return asdict(self) | {"read": [{"footprint": f, "bytes_per_s": r} for f, r in self.read]}


class Machine:
    """Measures ceilings on an executor's own team."""

    def __init__(self, executor: NativeExecutor, footprints: Sequence[int]) -> None:
        self._executor, self._team, self._level = executor, executor.team, executor.level
        self._footprints = sorted(set(footprints))

    def measure(self, seconds: float = 0.05) -> Ceilings:
        """One round of all ceilings, each for about `seconds`."""
        return Ceilings(
            _native.float_rate(self._team, self._level, seconds),
            _native.quant_rate(self._team, self._level, seconds),
            tuple((f, _native.read_rate(self._team, self._level, f, seconds)) for f in self._footprints),
            self._empty("chunk"),
            self._empty("eager"),
        )

    def _empty(self, mode: str, repeats: int = 15) -> float:
        mode, self._executor.mode = self._executor.mode, mode
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            self._executor.empty_step()
            times.append(time.perf_counter() - start)
        self._executor.mode = mode
        return min(times)

    def describe(self) -> dict[str, Any]:
        """The host as far as it tells, and what is used of it."""
        return {
            "cpu": cpu_model(),
            "cores": usable_cores(),
            "core_quota": cgroup_cores(),
            "memory_available": available_memory(),
            "threads": self._team.size,
            "level": self._level,
        }


@dataclass(frozen=True)
class HostRates:
    """What this host offers a model that is not loaded: rates per second as in `Ceilings`, and bytes of memory."""

    threads: int
    level: str
    float_flops: float
    quant_flops: float
    read: float
    memory: int


def host_rates(footprint: int, *, rounds: int = 3, seconds: float = 0.05) -> HostRates:
    """The best of several rounds, each rate for about `seconds`; reading repeats over `footprint` bytes."""
    team, level, memory = _native.Team(usable_cores()), best_level(), available_memory()
    return HostRates(
        team.size,
        level,
        max(_native.float_rate(team, level, seconds) for _ in range(rounds)),
        max(_native.quant_rate(team, level, seconds) for _ in range(rounds)),
        max(_native.read_rate(team, level, footprint, seconds) for _ in range(rounds)),
        memory,
    )
