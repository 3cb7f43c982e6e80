"""Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): all heads read one short row per token."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phaseline.files.base import TensorInfo
from phaseline.program.ir import Value
from phaseline.program.ops.base import Array, Context, Cost, Work
from phaseline.program.ops.norm import RMSNorm
from phaseline.program.ops.rope import RopeSpec

# (nope, pe, stored rows, seen, context) to (rows, heads, value size)
Form = Callable[[Array, Array, Array, Array, Context], Array]


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A small matrix for each head: rows first .. first + rows - 1 of that head's part of a tensor, perhaps transposed.

    The tensor is (heads, all rows, columns), or (heads * all rows, columns) where a file fuses what heads need.
    """

    tensor: TensorInfo
    heads: int
    first: int
    rows: int
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, outputs, inputs)."""
        columns = self.tensor.shape[-1]
        return (self.heads, columns, self.rows) if self.transposed else (self.heads, self.rows, columns)

    @property
    def nbytes(self) -> float:
        """Its share of the tensor, as the file stores it."""
        return self.tensor.nbytes * self.rows * self.heads * self.tensor.shape[-1] / np.prod(self.tensor.shape)

    def cut(self, values: Array) -> Array:
        """(heads, outputs, inputs) from rows of the tensor, decoded or raw: anything but the last axis is rows.

        Rows of bytes can be cut, but not transposed.
        """
        parts = values.reshape(self.heads, -1, values.shape[-1])[:, self.first : self.first + self.rows]
        return parts.swapaxes(1, 2) if self.transposed else parts


@dataclass(frozen=True, eq=False, slots=True)
class LatentAttend:
    """Store a row [norm(c[:rank]) | rope(c[rank:])] per token, then attend to the rows of all positions so far, causal.

    A head's query is [nope | pe] of q, pe turned as the rows are. In absorbed form it meets the rows in their own
    space: Q = [k_b nope | rope(pe)], p = softmax(Q . row * scale), out = v_b (sum of p row[:rank]). That equals the
    expanded form, in which each head has keys [k_b^T latent | rope(c[rank:])] and values v_b latent of its own.
    """

    q: Value  # heads * (nope + pe)
    c: Value  # rank + pe
    out: Value  # heads * value size
    norm: RMSNorm  # of width rank
    rope: RopeSpec | None  # of pe; None: positions are not marked
    k_b: HeadWeights  # (heads, rank, nope)
    v_b: HeadWeights  # (heads, value size, rank)
    scale: float
    layer: int
    group: int = 0

    @property
    def heads(self) -> int:
        return self.k_b.heads

    @property
    def rank(self) -> int:
        return self.norm.weight.shape[0]

    def describe(self) -> str:
        turned = f", {self.rope.describe()}" if self.rope else ""
        place = f"latent[{self.layer}]" if not self.group else f"latent{self.group}[{self.layer}]"
        names = " | ".join(w.name for w in self.weights()[1:])
        return f"{self.out.name} = latent_attend({self.q.name}, {self.c.name}, {names}, {place}{turned})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return tuple(dict.fromkeys((self.norm.weight, self.k_b.tensor, self.v_b.tensor)))

    def inputs(self) -> tuple[Value, ...]:
        return (self.q, self.c)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        width, pairs = self.c.width, sum(s.pairs() for s in work.spans)
        # Each segment reads its whole context once, for all heads, and writes its own rows.
        positions = sum(s.start + 2 * s.n for s in work.spans)
        absorbed = work.rows * sum(float(np.prod(w.shape)) for w in (self.k_b, self.v_b))
        return Cost(
            flops=2 * absorbed + 2 * pairs * self.heads * (width + self.rank),
            weight_bytes=self.norm.weight.nbytes + self.k_b.nbytes + self.v_b.nbytes,
            state_bytes=positions * width * work.kv_bytes,
        )

    def reference(self, ctx: Context) -> None:
        self._attend(ctx, self.absorbed)

    def reference_expanded(self, ctx: Context) -> None:
        """The same by keys and values of each head's own: equal but for rounding."""
        self._attend(ctx, self.expanded)

    def absorbed(self, nope: Array, pe: Array, rows: Array, seen: Array, ctx: Context) -> Array:
        """nope, pe: (rows, heads, .); rows: (context, width); seen: (rows, context). Returns (rows, heads, value)."""
        k_b, v_b = self.k_b.cut(ctx.weights[self.k_b.tensor.name]), self.v_b.cut(ctx.weights[self.v_b.tensor.name])
        query = np.concatenate([np.einsum("hcn,rhn->rhc", k_b, nope), pe], axis=-1)  # (rows, heads, width)
        p = _softmax(np.einsum("rhc,tc->rht", query, rows) * nope.dtype.type(self.scale), seen)
        latent = np.einsum("rht,tc->rhc", p, rows[:, : self.rank])
        return np.asarray(np.einsum("hvc,rhc->rhv", v_b, latent))

    def expanded(self, nope: Array, pe: Array, rows: Array, seen: Array, ctx: Context) -> Array:
        """As `absorbed`."""
        k_b, v_b = self.k_b.cut(ctx.weights[self.k_b.tensor.name]), self.v_b.cut(ctx.weights[self.v_b.tensor.name])
        latent, turned = rows[:, : self.rank], rows[:, self.rank :]
        keys, values = np.einsum("hcn,tc->thn", k_b, latent), np.einsum("hvc,tc->thv", v_b, latent)
        score = np.einsum("rhn,thn->rht", nope, keys) + np.einsum("rhp,tp->rht", pe, turned)
        p = _softmax(score * nope.dtype.type(self.scale), seen)
        return np.asarray(np.einsum("rht,thv->rhv", p, values))

    def _attend(self, ctx: Context, form: Form) -> None:
        q, c = ctx.values[self.q], ctx.values[self.c]
        q = q.reshape(len(q), self.heads, -1)  # (rows, heads, nope + pe)
        split = self.k_b.shape[2]
        latent = self.norm.reference(c[:, : self.rank], ctx.weights)
        pe, turned = q[..., split:], c[:, None, self.rank :]
        if self.rope:
            pe, turned = (self.rope.rotate(x, ctx.positions, ctx.weights) for x in (pe, turned))
        fresh = np.concatenate([latent, turned[:, 0]], axis=1)  # (rows, width)
        out = np.empty((len(q), self.heads, self.v_b.shape[1]), q.dtype)
        pages, memory = ctx.pages[self.group], ctx.state[self.group]["rows"]  # (pages, layers, page size, width)
        size = memory.shape[2]
        for slot, start, first, n in ctx.spans:
            rows, positions = slice(first, first + n), np.arange(start, start + n)
            memory[pages[slot, positions // size], self.layer, positions % size] = fresh[rows]
            past = np.arange(start + n)
            stored = memory[pages[slot, past // size], self.layer, past % size]
            out[rows] = form(q[rows, :, :split], pe[rows], stored, past <= positions[:, None], ctx)
        ctx.values[self.out] = out.reshape(len(q), -1)


def _softmax(score: Array, seen: Array) -> Array:
    """score: (rows, heads, context), of which a row takes in what it has `seen`, (rows, context)."""
    score = np.where(seen[:, None], score, -np.inf)
    p = np.exp(score - score.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]
