"""Softmax attention over paged keys and values, and the rotation that gives them positions."""

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


@dataclass(frozen=True, eq=False, slots=True)
class Attend:
    """Store k and v at the rows' positions in state layer `layer`, then out = softmax(q k^T * scale) v, causal.

    Query heads share key heads in equal groups. A row reads all positions up to and with its own.
    """

    q: Value
    k: Value
    v: Value
    out: Value
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float

    def describe(self) -> str:
        return f"{self.out.name} = attend({self.q.name}, {self.k.name}, {self.v.name}, kv[{self.layer}])"

    def weights(self) -> tuple[TensorInfo, ...]:
        return ()

    def inputs(self) -> tuple[Value, ...]:
        return (self.q, self.k, self.v)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        pairs = sum(s.pairs for s in work.spans)
        # Each segment reads its whole context once and writes its own rows.
        positions = sum(s.start + 2 * s.n for s in work.spans)
        return Cost(
            flops=4 * pairs * self.heads * self.head_dim,
            state_bytes=positions * 2 * self.kv_heads * self.head_dim * work.kv_bytes,
        )

    def reference(self, ctx: Context) -> None:
        heads, kv_heads, dim = self.heads, self.kv_heads, self.head_dim
        q = ctx.values[self.q].reshape(-1, kv_heads, heads // kv_heads, dim)
        k = ctx.values[self.k].reshape(-1, kv_heads, dim)
        v = ctx.values[self.v].reshape(-1, kv_heads, dim)
        out = np.empty_like(q)
        size = ctx.keys.shape[2]
        for slot, start, first, n in ctx.spans:
            rows, positions = slice(first, first + n), np.arange(start, start + n)
            page, offset = ctx.pages[slot, positions // size], positions % size
            ctx.keys[page, self.layer, offset] = k[rows]
            ctx.values_state[page, self.layer, offset] = v[rows]
            past = np.arange(start + n)
            page, offset = ctx.pages[slot, past // size], past % size
            keys, values = ctx.keys[page, self.layer, offset], ctx.values_state[page, self.layer, offset]
            score = np.einsum("rhgd,thd->rhgt", q[rows], keys) * q.dtype.type(self.scale)
            score = np.where((past <= positions[:, None])[:, None, None, :], score, -np.inf)
            p = np.exp(score - score.max(axis=-1, keepdims=True))
            out[rows] = np.einsum("rhgt,thd->rhgd", p / p.sum(axis=-1, keepdims=True), values)
        ctx.values[self.out] = out.reshape(len(q), heads * dim)
