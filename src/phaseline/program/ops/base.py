"""What every operation states about itself: shapes, cost, and its meaning in numpy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phaseline.files.base import TensorInfo
from phaseline.program.ir import Rows, Value

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Span:
    """A segment as the cost model sees it: `n` rows at positions start.., `wanted` of them with logits."""

    start: int
    n: int
    wanted: int

    def pairs(self, window: int | None = None) -> int:
        """Query-key pairs under the causal mask: row i reads start + i + 1 positions, of a window at most `window`."""
        within = self.n if window is None else min(self.n, max(0, window - self.start))  # rows that read all
        return within * self.start + within * (within + 1) // 2 + (self.n - within) * (window or 0)


@dataclass(frozen=True, slots=True)
class Work:
    """The size of a step: all that a cost depends on. `kv_bytes` is the width of one stored element."""

    spans: Sequence[Span]
    kv_bytes: float = 2

    @property
    def rows(self) -> int:
        return sum(s.n for s in self.spans)

    @property
    def wanted(self) -> int:
        return sum(s.wanted for s in self.spans)

    def of(self, value: Value) -> int:
        """Rows of a value that has all of the step's, or the wanted ones."""
        return self.rows if value.rows is Rows.TOKENS else self.wanted


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs (a multiply and an add are two) and bytes that one pass must move; weights as the file stores them.

    `routed_bytes` are those of `weight_bytes` that belong to routed experts: the rows do not share them all.
    """

    flops: float = 0
    weight_bytes: float = 0
    state_bytes: float = 0
    routed_bytes: float = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.state_bytes + other.state_bytes,
            self.routed_bytes + other.routed_bytes,
        )

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.state_bytes

    @property
    def shared_bytes(self) -> float:
        """Weights that every row needs."""
        return self.weight_bytes - self.routed_bytes


@dataclass(slots=True)
class Context:
    """What the reference of an op reads and writes for one step; arrays have the executor's float type.

    `pages` is the page table, shape (groups, slots, max pages); `state` the memory of each state group: the arrays of
    its spec by name, each of shape (pages, ...).
    """

    values: dict[Value, Array]
    weights: Mapping[str, Array]
    tokens: NDArray[np.int32]  # (rows,)
    positions: NDArray[np.int32]  # (rows,)
    spans: Sequence[tuple[int, int, int, int]]  # (slot, start position, first row, rows)
    wanted: NDArray[np.int32]  # (wanted,) row numbers
    pages: NDArray[np.int32]
    state: Sequence[Mapping[str, Array]]


class Op(Protocol):
    """One line of a program."""

    def describe(self) -> str:
        """One line for `explain`."""

    def weights(self) -> Iterable[TensorInfo]: ...

    def inputs(self) -> Sequence[Value]: ...

    def outputs(self) -> Sequence[Value]: ...

    def cost(self, work: Work) -> Cost: ...

    def reference(self, ctx: Context) -> None:
        """Compute the outputs with numpy: the specification of every kernel."""
