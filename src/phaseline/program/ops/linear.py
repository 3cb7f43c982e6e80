"""Matrix products, with what the kernels do in the same pass: norm before, gate or residual after."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaseline.errors import UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Builder, Rows, Value
from phaseline.program.ops.base import Array, Context, Cost, Work


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""

    weight: TensorInfo  # (width,)
    eps: float

    def reference(self, x: Array, weight: Array) -> Array:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(self.eps))
        return x / scale * weight  # type: ignore[no-any-return]


def silu(x: Array) -> Array:
    """x * sigmoid(x), without overflow for large negative x."""
    return x / (1 + np.exp(-np.maximum(x, -80)))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False, slots=True)
class Linear:
    """outs[i] = norm(x) @ weights[i].T, all sharing one prepared input.

    gate: two weights make one output, silu(first) * second. residual: added to the single output.
    """

    x: Value
    norm: RMSNorm | None
    matrices: tuple[TensorInfo, ...]  # each (outputs, inputs)
    outs: tuple[Value, ...]
    gate: bool = False
    residual: Value | None = None

    def describe(self) -> str:
        x = f"rms_norm({self.x.name})" if self.norm else self.x.name
        names = " | ".join(w.name for w in self.matrices)
        body = f"linear({x}, {names})"
        if self.gate:
            body = f"silu_gate({body})"
        if self.residual:
            body = f"{self.residual.name} + {body}"
        return f"{', '.join(o.name for o in self.outs)} = {body}"

    def weights(self) -> tuple[TensorInfo, ...]:
        return (*self.matrices, *((self.norm.weight,) if self.norm else ()))

    def inputs(self) -> tuple[Value, ...]:
        return (self.x, *((self.residual,) if self.residual else ()))

    def outputs(self) -> tuple[Value, ...]:
        return self.outs

    def cost(self, work: Work) -> Cost:
        rows = work.rows if self.x.rows is Rows.TOKENS else work.wanted
        if rows == 0:
            return Cost()
        products = sum(w.shape[0] * w.shape[1] for w in self.matrices)
        return Cost(flops=2 * rows * products, weight_bytes=sum(w.nbytes for w in self.weights()))

    def reference(self, ctx: Context) -> None:
        x = ctx.values[self.x]
        if self.norm:
            x = self.norm.reference(x, ctx.weights[self.norm.weight.name])
        ys = [x @ ctx.weights[w.name].T for w in self.matrices]  # each (rows, outputs)
        if self.gate:
            ys = [silu(ys[0]) * ys[1]]
        if self.residual:
            ys = [ctx.values[self.residual] + ys[0]]
        ctx.values.update(zip(self.outs, ys, strict=True))


def linear(
    b: Builder,
    x: Value,
    matrices: Sequence[TensorInfo],
    names: Sequence[str],
    *,
    norm: RMSNorm | None = None,
    gate: bool = False,
    residual: Value | None = None,
) -> tuple[Value, ...]:
    """Append a Linear. Widths are checked here, so that an executor need not."""
    for w in matrices:
        if len(w.shape) != 2 or w.shape[1] != x.width:
            raise UnsupportedError(f"linear: {w.name} of shape {w.shape} cannot take an input of width {x.width}")
    outs = tuple(Value(n, x.rows, w.shape[0]) for n, w in zip(names, matrices, strict=False))
    if residual and (len(matrices) != 1 or residual.width != outs[0].width):
        raise UnsupportedError("linear: a residual needs one output of its own width")
    if gate and (len(matrices) != 2 or matrices[0].shape != matrices[1].shape or len(outs) != 1):
        raise UnsupportedError("linear: a gate needs two weights of one shape and one output")
    b.add(Linear(x, norm, tuple(matrices), outs, gate, residual))
    return outs
