"""Kimi delta attention (Kimi Team 2025, "Kimi Linear"): a state of fixed size, decayed channel by channel and corrected
by the delta rule (Yang et al. 2024, "Gated delta networks"), instead of stored keys and values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from phaseline.files.base import TensorInfo
from phaseline.program.ir import Value
from phaseline.program.ops.base import Array, Context, Cost, Work
from phaseline.program.ops.linear import silu
from phaseline.program.ops.norm import RMSNorm

CHUNK = 16  # rows that the chunk form takes at once
# (q, k, v, g, beta, state) to (outputs, state)
Form = Callable[[Array, Array, Array, Array, Array, Array], tuple[Array, Array]]


@dataclass(frozen=True, slots=True)
class Decay:
    """How fast a channel forgets: log g <= 0 of what its state is multiplied by, from r = x + shift.

    rate * softplus(r); with `lowest` (Kimi K3) lowest * sigmoid(-rate r), which no longer falls without a bound.
    """

    rate: TensorInfo  # -e^a of each head, as files store it: heads elements
    shift: TensorInfo  # (heads * dim,)
    lowest: float | None = None

    def reference(self, x: Array, weights: Mapping[str, Array]) -> Array:
        """x and result: (rows, heads, dim)."""
        rate = weights[self.rate.name].reshape(-1, 1)
        r = x + weights[self.shift.name].reshape(x.shape[1:])
        if self.lowest is None:
            return np.asarray(rate * np.logaddexp(0, r))
        return np.asarray(x.dtype.type(self.lowest) / (1 + np.exp(rate * r)))


@dataclass(frozen=True, eq=False, slots=True)
class DeltaAttend:
    """out = norm of each head's o, times sigmoid(gate), where heads read and write a matrix S of their own:

    q, k, v = silu of a causal convolution over the latest rows, channel by channel; q and k of each head get length 1,
    q then 1 / sqrt(dim); S = diag(e^g) S; d = sigmoid(beta) (v - S^T k); S = S + k d^T; o = S^T q.
    The state is layer `layer` of group `group`: `state`, (heads, dim, dim), and `window`, the latest rows of q, k and v
    side by side, oldest first. Entry 0 of a sequence's page list is read (below zero: nothing yet), entry 1 written.
    """

    q: Value  # each heads * dim
    k: Value
    v: Value
    decay_input: Value  # heads * dim
    beta: Value  # heads
    gate: Value  # heads * dim
    out: Value  # heads * dim
    convolutions: tuple[TensorInfo, TensorInfo, TensorInfo]  # of q, k, v: taps for each channel, the oldest row's first
    decay: Decay
    norm: RMSNorm  # of width dim
    layer: int
    group: int = 0
    unit_eps: float = 1e-6  # under the root of a length

    @property
    def heads(self) -> int:
        return self.beta.width

    @property
    def dim(self) -> int:
        return self.q.width // self.heads

    @property
    def taps(self) -> int:
        return self.convolutions[0].shape[-1]

    def describe(self) -> str:
        inputs = ", ".join(v.name for v in self.inputs())
        return f"{self.out.name} = delta_attend({inputs})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (*self.convolutions, self.decay.rate, self.decay.shift, self.norm.weight)

    def inputs(self) -> tuple[Value, ...]:
        return (self.q, self.k, self.v, self.decay_input, self.beta, self.gate)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        """A row decays S, reads it for k, corrects it and reads it for q; its state comes and goes once per segment."""
        width, read = self.q.width, self.heads * self.dim**2
        state = read + (self.taps - 1) * 3 * width
        return Cost(
            flops=work.rows * (7 * read + 2 * self.taps * 3 * width),
            weight_bytes=sum(w.nbytes for w in self.weights()),
            state_bytes=sum(4 * state * (2 if s.start else 1) for s in work.spans),
        )

    def reference(self, ctx: Context) -> None:
        self.attend(ctx, recurrent)

    def attend(self, ctx: Context, form: Form) -> None:
        """By the recurrence, or by chunks: equal but for rounding."""
        heads, dim, taps = self.heads, self.dim, self.taps
        qkv = np.concatenate([ctx.values[x] for x in (self.q, self.k, self.v)], axis=1)  # (rows, 3 width)
        taps_of = np.concatenate([ctx.weights[w.name].reshape(-1, taps) for w in self.convolutions])  # (3 width, taps)
        g = self.decay.reference(ctx.values[self.decay_input].reshape(-1, heads, dim), ctx.weights)
        beta = 1 / (1 + np.exp(-ctx.values[self.beta]))  # (rows, heads)
        memory, pages = ctx.state[self.group], ctx.pages[self.group]
        o = np.empty((len(qkv), heads, dim), qkv.dtype)
        for slot, _, first, n in ctx.spans:
            rows, (source, target) = slice(first, first + n), pages[slot, :2]
            before, s = (
                memory[part][source, self.layer] if source >= 0 else np.zeros_like(memory[part][0, self.layer])
                for part in ("window", "state")
            )
            recent = np.concatenate([before, qkv[rows]])  # (taps - 1 + n, 3 width)
            mixed = sum(recent[i : i + n] * taps_of[:, i] for i in range(taps))
            q, k, v = np.moveaxis(silu(np.asarray(mixed)).reshape(n, 3, heads, dim), 1, 0)
            q, k = (x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(self.unit_eps)) for x in (q, k))
            o[rows], s = form(q * q.dtype.type(dim**-0.5), k, v, g[rows], beta[rows], s)
            memory["state"][target, self.layer], memory["window"][target, self.layer] = s, recent[n:]
        normed = self.norm.reference(o, ctx.weights).reshape(len(o), -1)
        ctx.values[self.out] = normed / (1 + np.exp(-ctx.values[self.gate]))


def recurrent(q: Array, k: Array, v: Array, g: Array, beta: Array, s: Array) -> tuple[Array, Array]:
    """Row by row. q, k, v, g: (rows, heads, dim); beta: (rows, heads); s: (heads, dim, dim). Returns o and s."""
    o = np.empty_like(v)
    for t in range(len(q)):
        s = np.exp(g[t])[:, :, None] * s
        d = beta[t][:, None] * (v[t] - np.einsum("hij,hi->hj", s, k[t]))
        s = s + k[t][:, :, None] * d[:, None, :]
        o[t] = np.einsum("hij,hi->hj", s, q[t])
    return o, s


def chunked(q: Array, k: Array, v: Array, g: Array, beta: Array, s: Array) -> tuple[Array, Array]:
    """The same, CHUNK rows at once: within a chunk the corrections solve a triangular system.

    With G the sums of g so far, row t sees what row s wrote decayed by e^(G_t - G_s). These are formed as differences,
    never as e^-G alone, which has no bound where g has none.
    """
    o = np.empty_like(v)
    for at in range(0, len(q), CHUNK):
        part = slice(at, at + CHUNK)
        total = np.cumsum(g[part], axis=0)  # (n, heads, dim)
        n = len(total)
        late = np.arange(n)[:, None] >= np.arange(n)  # (t, s)
        gap = np.where(late[:, :, None, None], total[:, None] - total[None], -np.inf)
        fade = np.exp(gap)  # (t, s, heads, dim)
        below = np.einsum("thd,shd,tshd->hts", k[part], k[part], fade) * beta[part].T[:, :, None]
        below = np.where(late & ~np.eye(n, dtype=bool), below, 0)
        seen = np.einsum("thd,shd,tshd->hts", q[part], k[part], fade)
        decayed = np.exp(total)
        wrong = v[part] - np.einsum("thi,hij->thj", k[part] * decayed, s)
        wanted = np.moveaxis(beta[part][..., None] * wrong, 0, 1)  # (heads, t, dim)
        d = np.linalg.solve(np.eye(n, dtype=below.dtype) + below, wanted)
        o[part] = np.einsum("thi,hij->thj", q[part] * decayed, s) + np.einsum("hts,hsj->thj", seen, d)
        s = decayed[-1][:, :, None] * s + np.einsum("shi,hsj->hij", k[part] * fade[-1], d)
    return o, s
