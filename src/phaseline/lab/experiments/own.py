"""Our own engine beside its streams: its program, which prices what was measured, and this machine's ceilings."""

from collections.abc import Sequence
from typing import Any

from phaseline.bounds import Bounds, bounds
from phaseline.errors import PhaselineError
from phaseline.lab.experiments.phases import Cell as PhaseCell
from phaseline.lab.experiments.sweep import Cell
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.machine import Ceilings, Machine
from phaseline.program.cost import step_cost
from phaseline.program.ops import Experts, Linear, Work


class Own:
    """What only our own engine can tell. `mode` and `chunk` are those that it was loaded with.

    Ceilings are measured by `observe`, between the rounds of what they are held against; the best of each counts.
    """

    def __init__(self, system: PhaselineSystem, *, mode: str, chunk: int, kv_bytes: float) -> None:
        self.system, self.program = system, system.executor.program
        self.mode, self.chunk, self.kv_bytes = mode, 1 if mode == "walk" else chunk, kv_bytes
        self._ceilings: Ceilings | None = None
        self._machine: Machine | None = None

    def expect(self, works: Sequence[Work]) -> None:
        """Say beforehand which steps the ceilings must suit: reading is measured at their footprints."""
        sizes = {int(step_cost(self.program, work).bytes) for work in works}
        self._machine = Machine(self.system.executor, [min(sizes), max(sizes), 512 << 20])

    def observe(self) -> None:
        """Measure the ceilings once more."""
        if self._machine is None:
            raise PhaselineError("ceilings of which footprints? `expect` comes first")
        found = self._machine.measure()
        self._ceilings = found if self._ceilings is None else self._ceilings.best(found)

    def share_ceilings(self, other: "Own") -> None:
        """Take the ceilings that another engine on the same machine has observed."""
        self._ceilings = other.ceilings

    @property
    def ceilings(self) -> Ceilings:
        """The best of all observations. Raises PhaselineError before the first."""
        if self._ceilings is None:
            raise PhaselineError("no ceilings were measured")
        return self._ceilings

    def steps(self, cell: Cell) -> list[Work]:
        """The work of one sample of a cell."""
        chunk = self.chunk if cell.phase == "prefill" else 1
        named = PhaseCell(cell.phase, self.mode, cell.tokens, cell.context, cell.streams, chunk)
        return named.steps(self.kv_bytes)

    def bounds(self, works: Sequence[Work]) -> Bounds:
        """Least seconds that each resource allows for these steps."""
        return bounds(self.program, works, self.ceilings, self.mode)

    def priced(self, cell: Cell, row: dict[str, Any]) -> dict[str, Any]:
        """A cell's row with what our program says of it: work, bounds and the limit that the ceilings suggest."""
        least = self.bounds(self.steps(cell))
        limit, fraction = least.limit(row["median_s"]) if row["median_s"] else ("unknown", None)
        return row | {
            "mode": self.mode,
            "chunk": self.chunk,
            "flops": least.cost.flops,
            "bytes": least.cost.bytes,
            "limit": limit,
            "fraction": fraction,
            "bounds_s": {"compute": least.compute, "bandwidth": least.bandwidth, "launch": least.launch},
        }

    def product_flops(self, work: Work) -> float:
        """FLOPs of the weight products of a step."""
        return sum(op.cost(work).flops for op in self.program.ops if isinstance(op, Linear | Experts))
