"""A program's operations by what they do: the same line of every layer is one group, with its cost and its bounds."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaseline.bounds import Bounds, flop_rate
from phaseline.machine import Ceilings
from phaseline.program.ir import Program
from phaseline.program.ops import Cost, Op, Work

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class OpGroup:
    """`numbers` are places in the program."""

    label: str
    numbers: tuple[int, ...]

    def total(self, seconds: Floats) -> float:
        """Of the group, from the seconds of each operation."""
        return float(seconds[list(self.numbers)].sum())


def op_groups(program: Program) -> list[OpGroup]:
    """All operations, in groups by order of their first."""
    found: dict[str, list[int]] = {}
    for number, op in enumerate(program.ops):
        found.setdefault(_label(op), []).append(number)
    return [OpGroup(label, tuple(numbers)) for label, numbers in found.items()]


def group_bounds(program: Program, group: OpGroup, work: Work, ceilings: Ceilings, empty_seconds: Floats) -> Bounds:
    """A group's bounds in a step.

    All weights pass by between two uses of one, so bytes are held against the rate at the whole step's footprint.
    `empty_seconds`: of each operation over no rows, which is what launching it costs.
    """
    footprint = sum(op.cost(work).bytes for op in program.ops)
    total, compute = Cost(), 0.0
    for number in group.numbers:
        op = program.ops[number]
        cost = op.cost(work)
        total += cost
        compute += cost.flops / flop_rate(op, ceilings)
    bandwidth = total.bytes / ceilings.read_at(footprint)
    return Bounds(total, compute, bandwidth, group.total(empty_seconds))


def _label(op: Op) -> str:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(op).__name__).lower()
    names = dict.fromkeys(re.sub(r"^blk\.\d+\.|\.weight$", "", w.name) for w in op.weights() if len(w.shape) > 1)
    return " ".join([kind, *names])
