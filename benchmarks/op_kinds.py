"""The kinds of work that benchmarks tell apart: each operation of a program is of one."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from phaseline.program.ir import Program, Rows
from phaseline.program.ops import DeltaAttend, Experts, LatentAttend, Linear, Op, Route

KINDS: Mapping[str, type] = {
    "recurrence": DeltaAttend,
    "latent attention": LatentAttend,
    "experts": Experts,
    "router": Route,
}
NAMES = ("products", *KINDS, "head", "others")


def kind_of(op: Op) -> str:
    """Products of rows whose logits are wanted are the head's."""
    if isinstance(op, Linear):
        return "head" if op.x.rows is Rows.WANTED else "products"
    return next((kind for kind, cls in KINDS.items() if isinstance(op, cls)), "others")


def spent(program: Program, seconds: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Seconds of each kind, from those of each operation."""
    found = dict.fromkeys(NAMES, 0.0)
    for op, took in zip(program.ops, seconds, strict=True):
        found[kind_of(op)] += float(took)
    return found
