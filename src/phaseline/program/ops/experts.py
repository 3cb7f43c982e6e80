"""Mixture of experts: each row chooses a few of many small networks; the rows of one are computed together."""

from dataclasses import dataclass

import numpy as np

from phaseline.errors import UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Builder, Value
from phaseline.program.ops.base import Array, Context, Cost, Work
from phaseline.program.ops.linear import Activation
from phaseline.program.ops.norm import Norm
from phaseline.program.sparse import distinct_experts

LEAST_SUM = 2.0**-14  # of the shares that are renormalised: the least normal half, as models are served elsewhere


@dataclass(frozen=True, slots=True)
class Router:
    """How a row chooses `active` of `experts`: the best by score plus bias, ties to the lower id.

    Scores p are the softmax of the logits over all experts, or their sigmoid. With `groups`, experts stand in equal
    groups of neighbours and only the best `kept_groups` groups may be chosen from; a group counts as its best expert,
    or as the sum of its best two (`group_best`). Shares are p without the bias, divided by max(sum, 2^-14) over the
    chosen if `renormalise`, times `scale`. Softmax over the chosen alone is the same as over all, renormalised.
    """

    experts: int
    active: int
    scores: str = "softmax"
    groups: int = 1
    kept_groups: int = 1
    group_best: int = 1
    renormalise: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.scores not in ("softmax", "sigmoid"):
            raise UnsupportedError(f"router: scores {self.scores!r} are not supported (supported: softmax, sigmoid)")
        if not 1 <= self.active <= self.experts:
            raise UnsupportedError(f"router: {self.active} active experts of {self.experts}")
        if self.groups < 1 or self.experts % self.groups:
            raise UnsupportedError(f"router: {self.experts} experts do not stand in {self.groups} equal groups")
        if not 1 <= self.kept_groups <= self.groups:
            raise UnsupportedError(f"router: {self.kept_groups} kept groups of {self.groups}")
        size = self.experts // self.groups
        if self.kept_groups * size < self.active or not 1 <= self.group_best <= min(2, size):
            raise UnsupportedError(f"router: groups of {size} experts are too small, {self.kept_groups} of them kept")

    def choose(self, logits: Array, bias: Array | None) -> tuple[Array, Array]:
        """Ids, best first, and shares: both (rows, active)."""
        if self.scores == "softmax":
            e = np.exp(logits - logits.max(axis=-1, keepdims=True))
            p = e / e.sum(axis=-1, keepdims=True)
        else:
            p = 1 / (1 + np.exp(-logits))
        rank = p if bias is None else p + bias  # (rows, experts)
        if self.groups > 1:
            grouped = rank.reshape(len(rank), self.groups, -1)
            worth = np.sort(grouped, axis=-1)[..., -self.group_best :].sum(axis=-1)  # (rows, groups)
            lost = np.argsort(-worth, axis=-1, kind="stable")[:, self.kept_groups :]
            grouped = grouped.copy()
            np.put_along_axis(grouped, lost[..., None], -np.inf, axis=1)
            rank = grouped.reshape(rank.shape)
        ids = np.argsort(-rank, axis=-1, kind="stable")[:, : self.active]
        shares = np.take_along_axis(p, ids, axis=-1)
        if self.renormalise:
            shares = shares / np.maximum(shares.sum(axis=-1, keepdims=True), LEAST_SUM)
        return ids, shares * logits.dtype.type(self.scale)


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """chosen, shares = the router's choice by `logits` (experts wide). Ids are kept as floats, which is exact."""

    logits: Value
    bias: TensorInfo | None  # (experts,): selects, but does not weight
    chosen: Value
    shares: Value
    router: Router

    def describe(self) -> str:
        bias = f" + {self.bias.name}" if self.bias else ""
        best = f"best {self.router.active} of {self.router.experts}"
        return f"{self.chosen.name}, {self.shares.name} = route({self.router.scores}({self.logits.name}){bias}, {best})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (self.bias,) if self.bias else ()

    def inputs(self) -> tuple[Value, ...]:
        return (self.logits,)

    def outputs(self) -> tuple[Value, ...]:
        return (self.chosen, self.shares)

    def cost(self, work: Work) -> Cost:
        if work.rows == 0:
            return Cost()
        return Cost(flops=3 * work.rows * self.router.experts, weight_bytes=sum(w.nbytes for w in self.weights()))

    def reference(self, ctx: Context) -> None:
        bias = ctx.weights[self.bias.name] if self.bias else None
        ids, shares = self.router.choose(ctx.values[self.logits], bias)
        ctx.values[self.chosen], ctx.values[self.shares] = ids.astype(shares.dtype), shares


@dataclass(frozen=True, eq=False, slots=True)
class Experts:
    """out = residual + sum over the row's chosen e of share * down_e(act(gate_e(h)) * up_e(h)), h = norm(x).

    Rows are grouped by expert, so that a step reads each expert's weights at most once.
    """

    x: Value
    norm: Norm | None
    gate: TensorInfo  # (experts, ff, width)
    up: TensorInfo  # (experts, ff, width)
    down: TensorInfo  # (experts, width, ff)
    chosen: Value
    shares: Value
    out: Value
    residual: Value | None
    activation: Activation = Activation.SILU  # gates `up`, as `Activation.gate` has it

    @property
    def matrices(self) -> tuple[TensorInfo, ...]:
        return (self.gate, self.up, self.down)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert as the file stores it."""
        return sum(w.nbytes for w in self.matrices) // self.gate.shape[0]

    def describe(self) -> str:
        x = self.norm.describe(self.x.name) if self.norm else self.x.name
        names = " | ".join(w.name for w in self.matrices)
        act = "" if self.activation is Activation.SILU else f"{self.activation.value}_"
        body = f"{act}experts({x}, {self.chosen.name}, {self.shares.name}, {names})"
        return f"{self.out.name} = {f'{self.residual.name} + ' if self.residual else ''}{body}"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (*self.matrices, *(self.norm.weights() if self.norm else ()))

    def inputs(self) -> tuple[Value, ...]:
        return (self.x, self.chosen, self.shares, *((self.residual,) if self.residual else ()))

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def distinct(self, rows: float) -> float:
        """Experts that a step of so many rows is expected to read, under uniform routing."""
        return distinct_experts(self.gate.shape[0], self.chosen.width, rows)

    def cost(self, work: Work) -> Cost:
        """Bytes are those of the experts expected under uniform routing; `routed_bytes` tells them from the rest."""
        if work.rows == 0:
            return Cost()
        _, ff, width = self.gate.shape
        routed = self.distinct(work.rows) * self.expert_bytes
        return Cost(
            flops=2 * work.rows * self.chosen.width * 3 * ff * width,
            weight_bytes=routed + (sum(w.nbytes for w in self.norm.weights()) if self.norm else 0),
            routed_bytes=routed,
        )

    def reference(self, ctx: Context) -> None:
        x = ctx.values[self.x]
        if self.norm:
            x = self.norm.reference(x, ctx.weights)
        gate, up, down = (ctx.weights[w.name] for w in self.matrices)
        chosen, shares = ctx.values[self.chosen].astype(np.int64), ctx.values[self.shares]
        out = np.zeros((len(x), self.out.width), x.dtype)
        for e in np.unique(chosen):
            rows, place = np.nonzero(chosen == e)
            h = self.activation.gate(x[rows] @ gate[e].T, x[rows] @ up[e].T)  # (rows of this expert, ff)
            out[rows] += shares[rows, place][:, None] * (h @ down[e].T)
        ctx.values[self.out] = out + ctx.values[self.residual] if self.residual else out


def route(b: Builder, logits: Value, router: Router, bias: TensorInfo | None = None) -> tuple[Value, Value]:
    """Append a Route: (chosen, shares), each `active` wide."""
    if logits.width != router.experts:
        raise UnsupportedError(f"route: {logits.width} logits for {router.experts} experts")
    chosen, shares = (Value(n, logits.rows, router.active) for n in ("chosen", "shares"))
    b.add(Route(logits, bias, chosen, shares, router))
    return chosen, shares


def experts(
    b: Builder,
    x: Value,
    matrices: tuple[TensorInfo, TensorInfo, TensorInfo],
    routed: tuple[Value, Value],
    name: str,
    *,
    norm: Norm | None = None,
    residual: Value | None = None,
    activation: Activation = Activation.SILU,
) -> Value:
    """Append Experts with stacked weights (gate, up, down). Shapes are checked here, so that an executor need not."""
    gate, up, down = matrices
    if len(gate.shape) != 3 or up.shape != gate.shape or gate.shape[2] != x.width:
        raise UnsupportedError(f"experts: {gate.name} {gate.shape} and {up.name} {up.shape} do not fit width {x.width}")
    count, ff, _ = gate.shape
    if len(down.shape) != 3 or (down.shape[0], down.shape[2]) != (count, ff):
        raise UnsupportedError(f"experts: {down.name} of shape {down.shape} does not fit {count} experts of width {ff}")
    if ff % 16 or down.shape[1] % 16:
        raise UnsupportedError(f"experts: widths {ff}, {down.shape[1]} are not supported; supported: multiples of 16")
    if residual and residual.width != down.shape[1]:
        raise UnsupportedError("experts: a residual needs the output's width")
    out = Value(name, x.rows, down.shape[1])
    b.add(Experts(x, norm, gate, up, down, *routed, out, residual, activation))
    return out
