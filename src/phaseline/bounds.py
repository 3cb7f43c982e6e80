"""The least time that each resource allows a step, from the program's costs and the ceilings of the same run.

A limit is named where the largest of these bounds explains at least half of a measured time; else it is "unknown".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from phaseline.machine import Ceilings
from phaseline.program.ir import Program
from phaseline.program.ops import Cost, Experts, Linear, Op, Work

NEAR = 0.5  # share of the measured time that a bound must explain before its name is given
_PLAIN = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Bounds:
    """Least seconds that each resource allows for some work, and the work itself."""

    cost: Cost
    compute: float
    bandwidth: float
    launch: float

    @property
    def seconds(self) -> float:
        """What all of them allow."""
        return max(self.compute, self.bandwidth, self.launch)

    def limit(self, seconds: float) -> tuple[str, float]:
        """(name, fraction): the tightest bound over the measured time, named if it is near enough."""
        name, bound = max(
            ("compute", self.compute), ("bandwidth", self.bandwidth), ("launch", self.launch), key=lambda b: b[1]
        )
        fraction = bound / seconds
        return (name if fraction >= NEAR else "unknown"), fraction


def bounds(program: Program, steps: Sequence[Work], ceilings: Ceilings, mode: str = "chunk") -> Bounds:
    """Bounds of a sequence of steps. Products of quantised weights are held against that ceiling, all else
    against float32; bytes against the read rate at the footprint of one step; launches against empty steps."""
    total, compute, bandwidth, launch = Cost(), 0.0, 0.0, 0.0
    for work in steps:
        step = Cost()
        for op in program.ops:
            cost = op.cost(work)
            compute += cost.flops / flop_rate(op, ceilings)
            step += cost
        bandwidth += step.bytes / ceilings.read_at(step.bytes)
        launches = work.rows if mode == "layer" else 1  # that mode runs every layer once per row
        launch += launches * (ceilings.empty_eager if mode == "eager" else ceilings.empty_plan)
        total += step
    return Bounds(total, compute, bandwidth, launch)


def quantised(op: Op) -> bool:
    """Whether an operation multiplies codes of quantised weights, not floats."""
    return isinstance(op, Linear | Experts) and op.matrices[0].format.name not in _PLAIN


def flop_rate(op: Op, ceilings: Ceilings) -> float:
    """The arithmetic ceiling that an operation is held against."""
    return ceilings.quant_flops if quantised(op) else ceilings.float_flops
