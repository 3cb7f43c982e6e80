"""The rotation that gives queries and keys their positions."""

from dataclasses import dataclass

import numpy as np

from phaseline.files.base import TensorInfo
from phaseline.program.ir import Value
from phaseline.program.ops.base import Array, Context, Cost, Work


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Pairs (2i, 2i+1) of the first `dims` entries of each head turn by position * base^(-2i/dims) (Su et al. 2021)."""

    dims: int
    base: float

    def angles(self, positions: Array) -> Array:
        """Shape (positions, dims / 2), float64."""
        frequency = self.base ** (-np.arange(0, self.dims, 2, dtype=np.float64) / self.dims)
        return np.asarray(positions.astype(np.float64)[:, None] * frequency)


@dataclass(frozen=True, eq=False, slots=True)
class Rope:
    """Rotate the heads of a value. The output keeps the input's shape."""

    x: Value
    out: Value
    head_dim: int
    rope: RopeSpec

    def describe(self) -> str:
        return f"{self.out.name} = rope({self.x.name}, base {self.rope.base:g})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return ()

    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        return Cost(flops=3 * work.rows * self.x.width)

    def reference(self, ctx: Context) -> None:
        x = ctx.values[self.x]
        y = x.reshape(len(x), -1, self.head_dim).copy()  # (rows, heads, head_dim)
        angle = self.rope.angles(ctx.positions)[:, None, :]  # (rows, 1, dims / 2)
        cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
        even, odd = y[..., 0 : self.rope.dims : 2].copy(), y[..., 1 : self.rope.dims : 2].copy()
        y[..., 0 : self.rope.dims : 2] = even * cos - odd * sin
        y[..., 1 : self.rope.dims : 2] = even * sin + odd * cos
        ctx.values[self.out] = y.reshape(x.shape)
