"""Softmax attention over paged keys and values."""

from dataclasses import dataclass

import numpy as np

from phaseline.files.base import TensorInfo
from phaseline.program.ir import Value
from phaseline.program.ops.base import Context, Cost, Work


@dataclass(frozen=True, eq=False, slots=True)
class Attend:
    """Store k and v at the rows' positions, then out = softmax(q k^T * scale) v, causal.

    The state is layer `layer` of group `group` of `Program.state`. Query heads share key heads in equal groups. A row
    reads the `window` latest positions, its own included, or all up to its own; the group keeps at least those.
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
    group: int = 0
    window: int | None = None

    def describe(self) -> str:
        window = f", window {self.window}" if self.window else ""
        return f"{self.out.name} = attend({self.q.name}, {self.k.name}, {self.v.name}{window})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return ()

    def inputs(self) -> tuple[Value, ...]:
        return (self.q, self.k, self.v)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        pairs = sum(s.pairs(self.window) for s in work.spans)
        # Each segment reads its context, as far as the window reaches, once and writes its own rows.
        positions = sum(s.start - self._oldest(s.start) + 2 * s.n for s in work.spans)
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
        pages, memory = ctx.pages[self.group], ctx.state[self.group]
        size = memory["keys"].shape[2]
        for slot, start, first, n in ctx.spans:
            rows, positions = slice(first, first + n), np.arange(start, start + n)
            page, offset = pages[slot, positions // size], positions % size
            memory["keys"][page, self.layer, offset] = k[rows]
            memory["values"][page, self.layer, offset] = v[rows]
            past = np.arange(self._oldest(start), start + n)
            page, offset = pages[slot, past // size], past % size
            keys, values = memory["keys"][page, self.layer, offset], memory["values"][page, self.layer, offset]
            score = np.einsum("rhgd,thd->rhgt", q[rows], keys) * q.dtype.type(self.scale)
            seen = past <= positions[:, None]  # (rows, positions)
            if self.window is not None:
                seen &= past > positions[:, None] - self.window
            score = np.where(seen[:, None, None, :], score, -np.inf)
            p = np.exp(score - score.max(axis=-1, keepdims=True))
            out[rows] = np.einsum("rhgt,thd->rhgd", p / p.sum(axis=-1, keepdims=True), values)
        ctx.values[self.out] = out.reshape(len(q), heads * dim)

    def _oldest(self, position: int) -> int:
        """The oldest position that the row at `position` reads."""
        return 0 if self.window is None else max(0, position + 1 - self.window)
